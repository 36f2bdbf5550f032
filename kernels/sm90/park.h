/* What the park kernel takes, which stands in front of the prepare kernel of a launch whose Q is still being made. Host
 * and device; plain C11.
 *
 * It waits for a word and decides, alone: the launch runs, or it is let go, because that was ordered or nothing came in
 * time. One that is let go still runs through, but its records in device memory have become those of jobs without keys
 * whose rows all go to one place, so that the memory of the jobs is neither read, but for Q, nor written. The verdict
 * is told before anything else of the launch begins. */
#ifndef MLA_KERNELS_SM90_PARK_H
#define MLA_KERNELS_SM90_PARK_H

#include <stdint.h>

struct mla_sm90_park {
    uint64_t jobs;     /* struct mla_abi_job [n_jobs] of the launch, in memory that may be written; as the next two */
    uint64_t abi_seqs; /* struct mla_abi_seq [n_seqs] */
    uint64_t seqs;     /* struct mla_sm90_seq [n_seqs] */
    uint64_t order;    /* of a word that the host writes: MLA_SM90_PARK_WORD(number, RUN or LEAVE) */
    uint64_t verdict;  /* of a word that the kernel writes: (number, RUN or LEAVE), once */
    uint64_t ready;    /* of the word that is waited for; 0: the order alone */
    uint64_t ready_value;
    uint64_t number; /* of this launch: no other on these words has it */
    uint64_t out;    /* device memory of MLA_SM90_PARK_OUT_BYTES, for rows of launches that are let go */
    uint64_t most_ns;
    uint32_t n_jobs;
    uint32_t n_seqs;
};

#define MLA_SM90_PARK_RUN                1u
#define MLA_SM90_PARK_LEAVE              2u
#define MLA_SM90_PARK_WORD(number, what) ((uint64_t)(number) << 2 | (what))
#define MLA_SM90_PARK_OUT_BYTES          2048u

/* A word that is so far beyond its value, or more, is an abort of whoever writes it: not what is waited for. */
#define MLA_SM90_PARK_ABORT_DISTANCE (UINT64_C(1) << 61)

#endif
