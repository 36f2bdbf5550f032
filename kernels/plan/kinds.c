#include "kernels/plan/kinds.h"

#include "kernels/plan/internal.h"

#define SHARE_AT_MOST 0.95 /* of the time of those before; near a tie those read pages less often */

/* Of whole tiles and of what is left. */
static uint32_t units_of(const struct plan_kind *kind, uint32_t rows)
{
    uint32_t tile = kind->tile_rows, unit = kind->device.rows_per_unit;
    return rows / tile * plan_div_up(tile, unit) + plan_div_up(rows % tile, unit);
}

/* Adds to the time of each kind what a job's part takes. Most sequences of a job have as many rows, so that their units
 * need not be counted anew: this is done for every request. */
static void add_job(const struct plan_kind *kinds, size_t n, const struct plan_request *request,
                    const struct plan_job *job, double *ns)
{
    uint64_t before = 0;
    double pages[PLAN_KINDS_MAX] = {0}, units[PLAN_KINDS_MAX] = {0};
    uint32_t counted = 0; /* rows that units are of */
    for (uint32_t s = job->first_seq; s < request->n_seqs && s - job->first_seq < job->n_seqs; s++) {
        const struct plan_seq *seq = &request->seqs[s];
        uint32_t rows = seq->q_len * request->heads, first, end;
        plan_part_of_sequence(job, before, rows, &first, &end);
        before += rows;
        if (end - first != counted) {
            counted = end - first;
            for (size_t i = 0; i < n; i++)
                units[i] = units_of(&kinds[i], counted);
        }
        for (size_t i = 0; i < n; i++)
            pages[i] += units[i] * plan_div_up(seq->kv_len, MLA_ABI_PAGE_TOKENS);
    }
    for (size_t i = 0; i < n; i++)
        ns[i] += pages[i] * kinds[i].costs.page_ns / kinds[i].device.resident_units;
}

/* Of kinds by the time that each would take. */
static size_t fastest(const double *ns, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (ns[i] < SHARE_AT_MOST * ns[best])
            best = i;
    return best;
}

/* What a batch-invariant job takes, whatever part of it is asked for. */
static size_t choose_alone(const struct plan_kind *kinds, size_t n, const struct plan_request *request,
                           struct plan_job job)
{
    double ns[PLAN_KINDS_MAX] = {0};
    job.skip_rows = 0;
    job.n_rows = 0;
    add_job(kinds, n, request, &job, ns);
    return fastest(ns, n);
}

size_t plan_choose(const struct plan_kind *kinds, size_t n, const struct plan_request *request)
{
    double ns[PLAN_KINDS_MAX] = {0};
    size_t invariant = n; /* the kind of the batch-invariant jobs so far */
    for (uint32_t j = 0; j < request->n_jobs; j++) {
        const struct plan_job *job = &request->jobs[j];
        add_job(kinds, n, request, job, ns);
        if (!job->batch_invariant)
            continue;
        size_t alone = choose_alone(kinds, n, request, *job);
        if (invariant != n && invariant != alone)
            return 0;
        invariant = alone;
    }
    return invariant != n ? invariant : fastest(ns, n);
}
