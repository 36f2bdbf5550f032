/* The machine that a benchmark runs on. */
#ifndef MLA_TESTS_BENCH_MACHINE_H
#define MLA_TESTS_BENCH_MACHINE_H

#include <stddef.h>
#include <stdint.h>

uint64_t bench_now_ns(void);

/* Model name of the first CPU, "unknown" when the kernel does not tell. */
void bench_cpu_model(char *out, size_t bytes);

/* CPUs that this process may run on: their numbers in cpus[cap]; returns how many there are. */
size_t bench_cpus(int *cpus, size_t cap);

/* Pins the calling thread. 0, or -errno. */
int bench_pin(int cpu);

#endif
