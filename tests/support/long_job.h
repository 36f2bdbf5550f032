/* A decode that keeps a GPU busy for some hundred milliseconds, and whose result is known without computing it: of each
 * sequence it sees each key of a small pool equally often, so O is that of seeing each once, and LSE larger by the
 * logarithm. It is long by its many sequences, not by long ones. */
#ifndef MLA_TESTS_LONG_JOB_H
#define MLA_TESTS_LONG_JOB_H

#include "tests/support/worker.h"

#define LONG_JOB_PAGES 8u

struct long_job {
    struct worker_job once; /* a few sequences, each key once; checked against float64 */
    struct worker_job job;  /* sequence i has the queries of sequence i modulo once's, and each key repeats times; its
                               shape and ref are empty: not for worker_job_check() */
    uint32_t n_seqs;        /* of job */
    uint32_t repeats;
};

/* pages: LONG_JOB_PAGES of them, what the cache begins with. Measures how long sequences take, then asks for about ms.
 */
void long_job_new(struct mla_client *client, struct long_job *l, mla_cache_id cache, const uint8_t *pages, unsigned ms);
/* Of l->job, after it was waited for. */
void long_job_check(struct long_job *l);
void long_job_free(struct mla_client *client, struct long_job *l);

#endif
