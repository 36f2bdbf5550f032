/* Work spread over the CPUs that this process may use. */
#ifndef MLA_TESTS_BENCH_GPU_THREADS_H
#define MLA_TESTS_BENCH_GPU_THREADS_H

#include <stddef.h>

#define THREADS_MAX 64

/* Threads that threads_each() runs: 1..THREADS_MAX. */
size_t threads_count(void);

/* fn(arg, i, thread) for i in 0..n-1, each once, on threads 0..threads_count()-1; returns when all have. */
void threads_each(size_t n, void (*fn)(void *arg, size_t i, size_t thread), void *arg);

#endif
