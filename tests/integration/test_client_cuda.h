/* A worker on a GPU beside a real daemon, for the tests of libmla-cuda: on the fake driver when $MLA_CUDA_DRIVER names
 * it, else on the machine's. The test process is the worker; the daemon is a process of its own.
 *
 * Decodes are made so that every byte matters little and every allocation much: sequence s reads one page, which is
 * filled with the value of its own; Q is zero, so that row s of O is that value. */
#ifndef MLA_TESTS_TEST_CLIENT_CUDA_H
#define MLA_TESTS_TEST_CLIENT_CUDA_H

#include <mla/cuda.h>
#include <stdbool.h>
#include <sys/types.h>

#include "kernels/host/cuda_driver.h"
#include "tests/support/check_main.h"

#define LONG_US    20000000
#define ROW_BYTES  576u
#define PAGE_BYTES (64u * ROW_BYTES)
#define HEADS      8u
#define SEQS_MAX   64u
#define O_ROW      (512u * 4u)

struct worker {
    char dir[64];
    char socket[96];
    pid_t daemon; /* 0: none */
    struct cuda_driver cu;
    CUcontext context;
    CUstream stream;
    struct mla_client *client;
    size_t granularity;
};

#define OK(call)           ck_assert_int_eq((call), CUDA_SUCCESS)
#define MLA(w, call, want) worker_status((w), (call), (want), #call)
/* call's status is want; shows the last error otherwise. */
void worker_status(const struct worker *w, enum mla_status got, enum mla_status want, const char *call);

/* Whether the tests run on the fake driver. */
bool worker_is_fake(void);
/* The daemon with the fake driver's configuration (ignored on a real one), the driver, a context, a stream, a client.
 */
void worker_start(struct worker *w, const char *daemon_fake);
void worker_stop(struct worker *w);
/* SIGKILL; returns when the process has been reaped. */
void worker_kill_daemon(struct worker *w);

/* Allocations one behind the other in one range of addresses. exportable: all with POSIX descriptors. */
struct vmm {
    CUdeviceptr address;
    size_t bytes;
    size_t n;
    size_t part_bytes;
};
void vmm_make(struct worker *w, struct vmm *v, size_t n, bool exportable);
void vmm_free(struct worker *w, struct vmm *v);

/* Fills page_bytes at each of n pages, the first at first and the others stride behind each other, with value(i). */
void fill_pages(struct worker *w, CUdeviceptr first, size_t stride, size_t n, double start);

/* What fill_pages put there: an e4m3 number. */
double value_of(size_t page, double start);

/* Q and O of the decodes: cuMemAlloc memory registered read-write. */
struct rows {
    CUdeviceptr memory;
    mla_region_id region;
    size_t bytes;
};
void rows_make(struct worker *w, struct rows *r);
void rows_free(struct worker *w, struct rows *r);

/* Table set id: n sequences of 64 keys, sequence s on page pages[s]. */
void put_tables(struct worker *w, mla_tables_id id, const uint32_t *pages, size_t n);
struct mla_decode_args decode_args(mla_cache_id cache, mla_tables_id tables, const struct rows *r);
/* O of n sequences holds value_of(s, start). */
void check_rows(struct worker *w, const struct rows *r, size_t n, double start);

/* Fake driver only: what the daemon has open, by name, is nothing of memory. */
void daemon_holds_no_memory(const struct worker *w);

#endif
