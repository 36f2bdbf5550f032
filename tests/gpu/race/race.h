/* Small kernels whose orders of stores and loads in shared memory racecheck is asked about; see race.c for what they
 * are. Shared by kernels and driver; plain C11. */
#ifndef MLA_TESTS_GPU_RACE_RACE_H
#define MLA_TESTS_GPU_RACE_RACE_H

#define RACE_FILE    "race.cubin" /* beside the kernels */
#define RACE_PREFIX  "race_"      /* of a kernel's name */
#define RACE_GROUP   128          /* threads of a group */
#define RACE_THREADS 256          /* two groups, one CTA */
#define RACE_ROUNDS  64

#endif
