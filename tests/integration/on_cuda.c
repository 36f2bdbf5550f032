/* Linked to a test of the daemon, this runs it with the CUDA backend: daemons get that, and workers of the test's own
 * process device memory. The driver is opened at the first memory, behind the fork of the daemon. */
#include "tests/support/daemon_fixture.h"
#include "tests/support/worker_cuda.h"

static void first_create(uint64_t bytes, struct mla_memory *memory, void **device)
{
    worker_cuda_start();
    worker_ops->create(bytes, memory, device);
}

static const struct worker_ops until_then = {.create = first_create};

__attribute__((constructor)) static void on_cuda(void)
{
    daemon_backend = "cuda";
    worker_ops = &until_then;
}
