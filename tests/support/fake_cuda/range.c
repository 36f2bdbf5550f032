/* The ranges that streams may use, as a list: tests have tens of them. */
#include <stdlib.h>

#include "tests/support/fake_cuda/fake.h"

static struct fake_range *ranges;
static uint64_t last_id;

struct fake_range *fake_range_add(enum fake_range_kind kind, uint64_t base, uint64_t bytes, struct fake_block *block)
{
    struct fake_range *range = calloc(1, sizeof *range);
    if (!range)
        fake_abort("no memory");
    range->kind = kind;
    range->base = base;
    range->bytes = bytes;
    range->block = block;
    range->context = fake_current();
    range->id = ++last_id;
    range->readable = range->writable = kind != FAKE_MAPPING;
    range->next = ranges;
    ranges = range;
    return range;
}

struct fake_range *fake_range_first(void)
{
    return ranges;
}

struct fake_range *fake_range_find(uint64_t address)
{
    for (struct fake_range *r = ranges; r; r = r->next)
        if (address >= r->base && address - r->base < r->bytes)
            return r;
    return NULL;
}

void fake_range_remove(struct fake_range *range)
{
    for (struct fake_range **at = &ranges; *at; at = &(*at)->next)
        if (*at == range) {
            *at = range->next;
            free(range);
            return;
        }
}

bool fake_range_covers(uint64_t address, uint64_t bytes, bool write)
{
    do {
        const struct fake_range *r = fake_range_find(address);
        if (!r || !(write ? r->writable : r->readable))
            return false;
        uint64_t left = r->base + r->bytes - address;
        if (bytes <= left)
            return true;
        bytes -= left;
        address += left;
    } while (bytes > 0);
    return true;
}

static bool meets(const struct fake_use *use, uint64_t address, uint64_t bytes)
{
    uint64_t last = use->bytes > 0 ? use->bytes - 1 : 0;
    return use->address <= address + (bytes - 1) && address <= use->address + last;
}

void fake_must_be_idle(const char *call, uint64_t address, uint64_t bytes)
{
    static const char *const kinds[] = {
        "kernel", "copy", "set", "write of a word", "wait for a word", "event", "wait for an event"};
    if (fake_lost() != CUDA_SUCCESS || bytes == 0)
        return;
    for (CUstream s = fake_stream_first(); s; s = s->next)
        for (const struct fake_op *op = s->head; op; op = op->next)
            for (size_t u = 0; u < op->n_uses; u++)
                if (meets(&op->uses[u], address, bytes))
                    fake_abort("%s of [%#llx, +%llu) while a %s of stream %llu that uses %#llx has not ended", call,
                               (unsigned long long)address, (unsigned long long)bytes,
                               kinds[op->kind - MLA_FAKE_kernel], (unsigned long long)s->id,
                               (unsigned long long)op->uses[u].address);
}
