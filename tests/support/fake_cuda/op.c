/* What streams execute. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_cuda/fake.h"

struct fake_op *fake_op_new(enum mla_fake_call kind)
{
    struct fake_op *op = calloc(1, sizeof *op);
    if (!op)
        fake_abort("no memory");
    op->kind = kind;
    return op;
}

static bool names_event(const struct fake_op *op)
{
    return op->kind == MLA_FAKE_event || op->kind == MLA_FAKE_wait_event;
}

struct fake_op *fake_op_clone(const struct fake_op *op)
{
    struct fake_op *clone = fake_op_new(op->kind);
    *clone = *op;
    clone->uses = NULL;
    clone->n_uses = 0;
    clone->staged = NULL;
    if (op->staged && op->kind == MLA_FAKE_kernel)
        fake_bring_take(clone, op->staged);
    clone->next = NULL;
    if (names_event(op))
        fake_event_reference(clone->event.event);
    return clone;
}

void fake_op_free(struct fake_op *op)
{
    if (names_event(op))
        fake_event_release(op->event.event);
    free(op->staged);
    free(op->uses);
    free(op);
}

void fake_op_use(struct fake_op *op, uint64_t address, uint64_t bytes, bool write)
{
    if (address == 0)
        return;
    if ((op->n_uses & (op->n_uses - 1)) == 0) { /* full at 0, 1, 2, 4, ...: sequences have a use each */
        struct fake_use *grown = realloc(op->uses, (op->n_uses > 0 ? 2 * op->n_uses : 1) * sizeof *grown);
        if (!grown)
            fake_abort("no memory");
        op->uses = grown;
    }
    op->uses[op->n_uses++] = (struct fake_use){address, bytes, write};
}

void fake_op_uses(struct fake_op *op)
{
    switch ((int)op->kind) {
    case MLA_FAKE_kernel:
        fake_kernel_uses(op, false);
        break;
    case MLA_FAKE_copy:
        fake_op_use(op, op->copy.dst, op->copy.bytes, true);
        if (!op->staged)
            fake_op_use(op, op->copy.src, op->copy.bytes, false);
        break;
    case MLA_FAKE_set:
        fake_op_use(op, op->set.dst, op->set.bytes, true);
        break;
    case MLA_FAKE_write:
    case MLA_FAKE_wait:
        fake_op_use(op, op->word.address, sizeof(uint64_t), op->kind == MLA_FAKE_write);
        break;
    default:
        break;
    }
}

CUresult fake_op_execute(CUstream stream, struct fake_op *op)
{
    if (fake_stream_stopping(stream))
        return CUDA_SUCCESS; /* nobody sees that it is dropped: what follows it is too */
    CUresult result = fake_inject(op->kind);
    if (result != CUDA_SUCCESS || fake_stream_stopping(stream))
        return result;
    switch ((int)op->kind) {
    case MLA_FAKE_kernel:
        return fake_execute_kernel(stream, op);
    case MLA_FAKE_copy:
        memmove((void *)(uintptr_t)op->copy.dst, op->staged ? op->staged : (const void *)(uintptr_t)op->copy.src,
                op->copy.bytes);
        return CUDA_SUCCESS;
    case MLA_FAKE_set:
        memset((void *)(uintptr_t)op->set.dst, op->set.value, op->set.bytes);
        return CUDA_SUCCESS;
    case MLA_FAKE_write:
        return fake_execute_write(op);
    case MLA_FAKE_wait:
        return fake_execute_wait(stream, op);
    case MLA_FAKE_wait_event:
        return fake_execute_wait_event(stream, op);
    default:
        fake_lock();
        fake_event_complete(op->event.event, op->event.generation);
        fake_unlock();
        return CUDA_SUCCESS;
    }
}
