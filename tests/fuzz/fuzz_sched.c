/* Bytes as choices: which event comes next and with what, against the model of tests/scenario. */
#include <stdint.h>

#include "tests/fuzz/fuzz.h"
#include "tests/scenario/sched_model.h"

struct bytes {
    const uint8_t *next, *end;
};

/* One byte a choice, two where one is too few. Past the end the last choice, which is the dullest. */
static uint32_t below(void *context, uint32_t n)
{
    struct bytes *b = context;
    uint32_t v = 0;
    for (uint32_t range = 1; range < n; range <<= 8) {
        if (b->next == b->end)
            return n - 1;
        v = v << 8 | *b->next++;
    }
    return v % n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct model_stats stats;
    struct bytes bytes = {data, data + size};
    stats.events = 0;
    struct model *m = model_new(
        &(struct model_source){.below = below, .context = &bytes, .name = "fuzz_sched", .endings = true}, &stats);
    while (bytes.next != bytes.end && model_step(m))
        ;
    model_free(m);
    return 0;
}
