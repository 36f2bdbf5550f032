/* The machine that a benchmark runs on. */
#ifndef MLA_TESTS_BENCH_MACHINE_H
#define MLA_TESTS_BENCH_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "tests/bench/report.h"

/* The commit that was built, as git describes it; generated. */
extern const char bench_commit[];

uint64_t bench_now_ns(void);

/* What, where and when: the commit that was built, the CPU's model, the kernel, the time, the load before the run. */
void bench_note_machine(struct bench_report *report);

/* CPUs that this process may run on: their numbers in cpus[cap]; returns how many there are. */
size_t bench_cpus(int *cpus, size_t cap);

/* Pins the calling thread. 0, or -errno. */
int bench_pin(int cpu);

/* Path of a program of this build: beside this one (a portable folder), else where the build tree has it, named from
 * this program's folder. 0, or -1. */
int bench_find_program(const char *name, const char *in_build, char *out, size_t bytes);

#endif
