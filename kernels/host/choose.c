/* Which kernels a launch is for: those of a section, or its few_rows. */
#include "kernels/host/internal.h"

#define SHARE_AT_MOST 0.95 /* of the first ones' time; near a tie those read every page half as often */

static double pages_of(const struct plan_seq *seq)
{
    uint32_t pages = seq->kv_len / MLA_ABI_PAGE_TOKENS + (seq->kv_len % MLA_ABI_PAGE_TOKENS != 0);
    return (double)pages;
}

/* Pages times units of a job's part. */
static double unit_pages_of_job(const struct plan_request *request, const struct plan_job *job, uint32_t rows_per_unit)
{
    uint64_t before = 0;
    double sum = 0;
    for (uint32_t s = job->first_seq; s < request->n_seqs && s - job->first_seq < job->n_seqs; s++) {
        const struct plan_seq *seq = &request->seqs[s];
        uint32_t rows = seq->q_len * request->heads, first, end;
        plan_part_of_sequence(job, before, rows, &first, &end);
        before += rows;
        uint32_t units = first < end ? (end - first - 1) / rows_per_unit + 1 : 0;
        sum += (double)units * pages_of(seq);
    }
    return sum;
}

static double ns_of_job(const struct mla_kernels_facts *facts, const struct plan_request *request,
                        const struct plan_job *job)
{
    return unit_pages_of_job(request, job, facts->device.rows_per_unit) * facts->costs.page_ns /
           facts->device.resident_units;
}

bool kernels_prefer_few_rows(const struct mla_kernels_facts *first, const struct mla_kernels_facts *few,
                             const struct plan_request *request)
{
    double first_ns = 0, few_ns = 0;
    bool invariant = false;
    for (uint32_t j = 0; j < request->n_jobs; j++) {
        struct plan_job job = request->jobs[j];
        if (job.batch_invariant) {
            invariant = true;
            job.skip_rows = 0;
            job.n_rows = 0;
        }
        double a = ns_of_job(first, request, &job), b = ns_of_job(few, request, &job);
        if (job.batch_invariant && b >= SHARE_AT_MOST * a)
            return false;
        first_ns += a;
        few_ns += b;
    }
    return invariant || few_ns < SHARE_AT_MOST * first_ns;
}

struct mla_kernels *mla_kernels_few_rows(struct mla_kernels *kernels)
{
    return kernels->few_rows;
}

struct mla_kernels *mla_kernels_for(struct mla_kernels *kernels, const struct plan_request *request)
{
    struct mla_kernels *few = kernels->few_rows;
    return few && kernels_prefer_few_rows(&kernels->facts, &few->facts, request) ? few : kernels;
}

struct mla_kernels *mla_kernels_of_plan(struct mla_kernels *kernels, const struct plan *plan)
{
    struct mla_kernels *few = kernels->few_rows;
    return few && plan->rows_per_unit == few->facts.device.rows_per_unit ? few : kernels;
}
