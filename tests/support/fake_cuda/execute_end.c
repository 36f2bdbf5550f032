/* The kernel behind a launch that tells its end: words, and one more behind them. */
#include "tests/support/fake_cuda/fake.h"

void fake_end_uses(struct fake_op *found, const struct mla_sm90_end *end)
{
    for (uint32_t i = 0; i < end->n_words; i++)
        fake_op_use(found, end->words[i].address, sizeof(uint64_t), true);
    fake_op_use(found, end->last.address, sizeof(uint64_t), true);
}

static void store(const struct mla_sm90_word *word)
{
    __atomic_store_n((uint64_t *)(uintptr_t)word->address, word->value, __ATOMIC_RELEASE);
}

/* As the stream's own words: whoever sees one may give its memory up, so the operation names none of them by then. */
void fake_end(struct fake_op *op)
{
    const struct mla_sm90_end *end = &op->kernel.end;
    fake_lock();
    op->n_uses = 0;
    for (uint32_t i = 0; i < end->n_words; i++)
        store(&end->words[i]);
    store(&end->last);
    fake_unlock();
}
