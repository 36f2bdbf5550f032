/* A backend under test, opened for one test function. The conformance suite runs every test once per entry of be_all;
 * what differs between backends beyond their table (how shared memory is made, how exact P is) is decided here.
 *
 *     START_TEST(k11_uniform_weights)
 *     {
 *         struct rig rig;
 *         if (!rig_open(&rig, _i))
 *             return;
 *         ...
 *         rig_close(&rig);
 *     }
 *     rig_add(tc, k11_uniform_weights);
 *
 * Failures abort the test through Check. MLA_TEST_BACKEND=name restricts a run to one backend.
 */
#ifndef MLA_TESTS_RIG_H
#define MLA_TESTS_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <check.h>

#include "daemon/backend/backend.h"

struct rig;

/* Shared memory of a test: the test's view of it, and where items find it. */
struct mem {
    uint8_t *host; /* the test's view; zeroed when taken */
    uint64_t address;
    size_t bytes;
    struct be_region region;
    const struct mem_ops *ops;
    void *impl; /* of ops */
};

enum mem_flag {
    MEM_WRITE = 1, /* items may write */
    MEM_SYNC = 2,  /* a page of words */
    MEM_GUARD = 4  /* nothing readable behind its end, on both sides; bytes must be whole system pages */
};

/* How registered memory of a backend is made. The view of the test may be the memory itself or a copy: push() after
 * writing, pull() before reading. */
struct mem_ops {
    const char *name;
    void (*take)(struct rig *rig, struct mem *mem, size_t bytes, unsigned flags);
    void (*push)(struct rig *rig, struct mem *mem, size_t offset, size_t bytes);
    void (*pull)(struct rig *rig, struct mem *mem, size_t offset, size_t bytes);
    void (*drop)(struct rig *rig, struct mem *mem);
    void (*forget)(struct mem *mem); /* drop() of memory whose region the test has unmapped itself */
};

extern const struct mem_ops mem_memfd; /* a sealed memfd, mapped here and by the backend */
extern const struct mem_ops mem_cuda;  /* device memory of another process; in builds with the CUDA backend */
extern const struct mem_ops mem_host;  /* be_host_alloc(): what the daemon's own records lie in */

void mem_take(struct rig *rig, struct mem *mem, const struct mem_ops *ops, size_t bytes, unsigned flags);
void mem_drop(struct rig *rig, struct mem *mem); /* nothing for one that was never taken (all zero) */
void mem_forget(struct mem *mem);
void mem_push(struct rig *rig, struct mem *mem); /* all of it, likewise */
void mem_pull(struct rig *rig, struct mem *mem);

struct rig {
    struct be be;
    const struct be_facts *facts;
    const struct mem_ops *shared; /* registered memory of this backend */
    double accuracy;              /* REF_ACCURACY_* */
    uint64_t n_events;            /* seen so far: gives their order */
    bool may_be_lost;             /* a loss of the device is what the test is about: see lost */
    struct mla_error lost;        /* code: DEVICE_LOST once it is; waits then end at once */
};

/* A request of a test, and what became of it. Must stay where it is until it has ended. */
struct ticket {
    struct be_request request;
    uint64_t submitted_at; /* n_events at BE_SUBMITTED; 0: not seen */
    uint64_t ready_at;     /* BE_READY */
    uint64_t ended_at;     /* BE_DONE or BE_BATCH_DONE */
    bool aborted;
    struct mla_error error;
};

int rig_backends(void);

#define rig_add(tc, test) tcase_add_loop_test(tc, test, 0, rig_backends())

/* False when this machine cannot run that backend, or MLA_TEST_BACKEND names another one; the one that it names must
 * run. */
bool rig_open(struct rig *rig, int index);
bool rig_open_config(struct rig *rig, int index, const struct be_config *config);
void rig_close(struct rig *rig);

void rig_submit(struct rig *rig, struct ticket *ticket);

/* Waits up to ms for events and books what came; number of events. */
size_t rig_poll(struct rig *rig, int ms);

/* Until the ticket has ended (a WATCH: until it is ready). Aborts the test after 60 s, or when the device is lost. */
void rig_wait(struct rig *rig, struct ticket *ticket);

/* Device and costs of a request whose jobs are described: be_fit(). */
void rig_fit(const struct rig *rig, struct plan_request *request);

/* MAP or UNMAP, waited for; the error's code. */
enum mla_status rig_map(struct rig *rig, struct be_region *region);
enum mla_status rig_unmap(struct rig *rig, struct be_region *region);

/* A memfd of this size, sealed against shrinking when asked; the caller's descriptor. */
int rig_memfd(uint64_t size, bool sealed);

/* True when this address range of this process meets no readable mapping. */
bool rig_unreadable(const void *address, size_t bytes);

#endif
