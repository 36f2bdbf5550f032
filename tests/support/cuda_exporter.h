/* A process that owns device memory on behalf of a test: what a worker is to the daemon. Handles and descriptors that
 * it exports are opened by the backend under test, which is what they are for; a process cannot open its own.
 *
 * The process is forked once per test process, before that calls CUDA, and has a context of its own; it ends with its
 * parent. The test sees the memory by a copy in a memfd: push writes it to the device, pull reads it back.
 * Failures abort the test.
 */
#ifndef MLA_TESTS_CUDA_EXPORTER_H
#define MLA_TESTS_CUDA_EXPORTER_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/backend/backend.h"

#define EXPORTER_PARTS_MAX 3u

struct exported {
    uint32_t id;
    enum mla_region_kind kind;
    uint8_t handle[64]; /* CUDA_IPC */
    uint64_t block_size;
    uint64_t offset;                          /* of the memory in its block, or in its first part */
    struct be_part parts[EXPORTER_PARTS_MAX]; /* CUDA_VMM; the caller's descriptors */
    size_t n_parts;
};

/* Nothing when it runs already. */
void exporter_start(void);

/* Device memory of that size, which ends where its allocation ends. n_parts: CUDA_VMM, at most that many allocations.
 * copy: a memfd of the same size, stays the caller's. */
void exporter_take(enum mla_region_kind kind, size_t bytes, size_t n_parts, int copy, struct exported *out);

/* Between copy and device memory; only what the copy holds data for is pushed. */
void exporter_push(const struct exported *memory, size_t offset, size_t bytes);
void exporter_pull(const struct exported *memory, size_t offset, size_t bytes);

void exporter_drop(const struct exported *memory);

#endif
