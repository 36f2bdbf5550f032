/* A fixed set of threads that all run one function at a time. Which piece of the work a thread takes is the function's
 * business (an atomic counter); the pool starts it everywhere and tells when the last thread has left it. */
#ifndef MLA_DAEMON_BACKEND_CPU_POOL_H
#define MLA_DAEMON_BACKEND_CPU_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* worker: 0 .. n_threads - 1. */
typedef void (*cpu_pool_fn)(void *context, uint32_t worker);

struct cpu_pool {
    pthread_t *threads;
    uint32_t n_threads;
    int done_fd; /* an eventfd, the owner's: 1 is added when a run has ended */
    pthread_mutex_t lock;
    pthread_cond_t start;
    uint64_t generation; /* under lock, as the next three */
    bool stop;
    cpu_pool_fn fn;
    void *context;
    _Atomic uint32_t running; /* threads that have not left fn yet */
};

/* 0, or -errno with nothing left behind. */
int cpu_pool_open(struct cpu_pool *pool, uint32_t n_threads, int done_fd);
void cpu_pool_close(struct cpu_pool *pool);

/* Starts fn on all threads; the previous run has ended. */
void cpu_pool_start(struct cpu_pool *pool, cpu_pool_fn fn, void *context);

/* Whether the run has ended; what the threads wrote is visible then. */
bool cpu_pool_ended(struct cpu_pool *pool);

#endif
