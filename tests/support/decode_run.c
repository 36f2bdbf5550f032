#include "tests/support/decode_case.h"

#include <stdlib.h>
#include <string.h>

struct dc *dc_new(struct rig *rig)
{
    struct dc *c = calloc(1, sizeof(*c));
    ck_assert_ptr_nonnull(c);
    c->rig = rig;
    c->request.device = rig->facts->device;
    c->request.costs = rig->facts->costs;
    c->request.policy = PLAN_AUTO;
    c->request.tile_rows = rig->facts->tile_rows;
    c->request.workspace_bytes_max = rig->facts->workspace_bytes;
    return c;
}

static void free_job(struct rig *rig, struct dc_job *job)
{
    struct mem *all[] = {&job->pool,      &job->q_mem,      &job->rope_mem,    &job->o_mem,      &job->lse_mem,
                         &job->table_mem, &job->kv_len_mem, &job->visible_mem, &job->status_mem, &job->user_status_mem};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        mem_drop(rig, all[i]);
    free((void *)(uintptr_t)job->shape.seqs);
    free(job->q_len);
    free(job->kv_len_max);
    free(job->first_token);
    free(job->table_first);
    free(job->ref_o);
    free(job->ref_lse);
    free(job->ref_status);
    free(job);
}

void dc_replan(struct dc *c)
{
    struct mem *all[] = {&c->tiles, &c->items, &c->reduces, &c->job_records, &c->seq_records};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        mem_drop(c->rig, all[i]);
    free(c->plan_seqs);
    free(c->scratch);
    c->plan_seqs = NULL;
    c->scratch = NULL;
    c->planned = false;
}

void dc_free(struct dc *c)
{
    dc_replan(c);
    for (uint32_t i = 0; i < c->n_jobs; i++)
        free_job(c->rig, c->jobs[i]);
    free(c);
}

/* Address in the backend of something seen in the test's view. */
static uint64_t address_of(const struct mem *mem, const void *view)
{
    return view == NULL ? 0 : mem->address + (uint64_t)((const uint8_t *)view - mem->host);
}

static void make_job_record(const struct dc_job *job, struct mla_abi_job *r)
{
    const struct dc_shape *shape = &job->shape;
    memset(r, 0, sizeof(*r));
    r->q = job->q;
    r->q_rope = job->rope;
    r->o = job->o;
    r->lse = job->lse;
    r->kv = job->kv_address;
    r->page_stride = shape->page_stride;
    r->table = address_of(&job->table_mem, job->table);
    r->kv_len = address_of(&job->kv_len_mem, job->kv_len);
    r->visible = address_of(&job->visible_mem, job->visible);
    r->status = address_of(&job->status_mem, job->status);
    r->user_status = address_of(&job->user_status_mem, job->user_status);
    r->row_stride = shape->row_stride;
    r->num_pages = shape->num_pages;
    r->pages_per_entry = shape->pages_per_entry;
    r->heads = shape->heads;
    r->first_seq = job->first_seq;
    r->n_seqs = shape->n_seqs;
    r->mask = shape->mask;
    r->out_type = shape->out_type;
    r->score_scale = shape->softmax_scale * shape->q_scale * shape->kv_scale;
    r->kv_scale = shape->kv_scale;
    r->inv_out_scale = 1.0f / shape->out_scale;
}

static void make_records(struct dc *c)
{
    mem_take(c->rig, &c->job_records, &mem_host, (c->n_jobs + 1) * sizeof(struct mla_abi_job), 0);
    mem_take(c->rig, &c->seq_records, &mem_host, (c->n_seqs + 1) * sizeof(struct mla_abi_seq), 0);
    struct mla_abi_job *jobs = (struct mla_abi_job *)(void *)c->job_records.host;
    struct mla_abi_seq *seqs = (struct mla_abi_seq *)(void *)c->seq_records.host;
    for (uint32_t i = 0; i < c->n_jobs; i++) {
        const struct dc_job *job = c->jobs[i];
        make_job_record(job, &jobs[i]);
        for (uint32_t s = 0; s < job->shape.n_seqs; s++)
            seqs[job->first_seq + s] = (struct mla_abi_seq){.job = i,
                                                            .q_len = job->q_len[s],
                                                            .kv_len_max = job->kv_len_max[s],
                                                            .first_token = job->first_token[s],
                                                            .table_first = job->table_first[s]};
    }
    c->batch.jobs = jobs;
    c->batch.seqs = seqs;
    c->batch.n_jobs = c->n_jobs;
    c->batch.n_seqs = c->n_seqs;
}

void dc_plan(struct dc *c)
{
    struct plan_request *request = &c->request;
    char why[160] = "";
    ck_assert(!c->planned);
    c->plan_seqs = calloc(c->n_seqs + 1, sizeof(*c->plan_seqs));
    ck_assert_ptr_nonnull(c->plan_seqs);
    for (uint32_t i = 0; i < c->n_jobs; i++) {
        const struct dc_job *job = c->jobs[i];
        c->plan_jobs[i] = (struct plan_job){.first_seq = job->first_seq,
                                            .n_seqs = job->shape.n_seqs,
                                            .mask = job->shape.mask,
                                            .batch_invariant = job->shape.batch_invariant};
        for (uint32_t s = 0; s < job->shape.n_seqs; s++)
            c->plan_seqs[job->first_seq + s] = (struct plan_seq){.q_len = job->q_len[s], .kv_len = job->kv_len_max[s]};
        request->heads = job->shape.heads;
    }
    request->jobs = c->plan_jobs;
    request->seqs = c->plan_seqs;
    request->n_jobs = c->n_jobs;
    request->n_seqs = c->n_seqs;

    const struct plan_device *device = &request->device;
    if (memcmp(device, &c->rig->facts->device, sizeof(*device)) == 0 ||
        memcmp(device, &c->fitted, sizeof(*device)) == 0) {
        rig_fit(c->rig, request);
        c->fitted = *device;
    }

    struct plan *plan = &c->plan;
    ck_assert_int_eq(plan_bound(request, &plan->capacity), 0);
    mem_take(c->rig, &c->tiles, &mem_host, (plan->capacity.tiles + 1) * sizeof(*plan->tiles), 0);
    mem_take(c->rig, &c->items, &mem_host, (plan->capacity.items + 1) * sizeof(*plan->items), 0);
    mem_take(c->rig, &c->reduces, &mem_host, (plan->capacity.reduces + 1) * sizeof(*plan->reduces), 0);
    plan->tiles = (struct mla_abi_tile *)(void *)c->tiles.host;
    plan->items = (struct mla_abi_item *)(void *)c->items.host;
    plan->reduces = (struct mla_abi_reduce *)(void *)c->reduces.host;
    c->scratch = malloc(plan->capacity.scratch_bytes + 8);
    ck_assert_ptr_nonnull(c->scratch);
    plan->scratch = c->scratch;
    ck_assert_int_eq(plan_build(request, plan), 0);
    ck_assert_msg(plan_check(request, plan, why, sizeof(why)) == 0, "the plan is not valid: %s", why);
    ck_assert_uint_le(plan->workspace_bytes, c->rig->facts->workspace_bytes);
    make_records(c);
    c->planned = true;
}

static void poison(struct mem *mem)
{
    if (mem->host != NULL)
        memset(mem->host, DC_POISON, mem->bytes);
}

void dc_ready(struct dc *c)
{
    for (uint32_t i = 0; i < c->n_jobs; i++) {
        struct dc_job *job = c->jobs[i];
        poison(&job->o_mem);
        poison(&job->lse_mem);
        poison(&job->user_status_mem);
        memset(job->status, 0, job->shape.n_seqs * sizeof(*job->status));
        struct mem *all[] = {&job->pool,       &job->q_mem,       &job->rope_mem,  &job->o_mem,          &job->lse_mem,
                             &job->kv_len_mem, &job->visible_mem, &job->table_mem, &job->user_status_mem};
        for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++)
            mem_push(c->rig, all[k]);
    }
}

void dc_submit(struct dc *c)
{
    c->batch.plan = &c->plan;
    c->batch.done = c->done;
    c->batch.n_done = c->n_done;
    c->batch.started_ns = 0;
    c->batch.ended_ns = 0;
    memset(&c->ticket, 0, sizeof(c->ticket));
    c->ticket.request.op = BE_LAUNCH;
    c->ticket.request.batch = &c->batch;
    rig_submit(c->rig, &c->ticket);
}

void dc_launch(struct dc *c)
{
    dc_ready(c);
    dc_submit(c);
}

void dc_pull(struct dc *c)
{
    for (uint32_t i = 0; i < c->n_jobs; i++) {
        mem_pull(c->rig, &c->jobs[i]->o_mem);
        mem_pull(c->rig, &c->jobs[i]->lse_mem);
        mem_pull(c->rig, &c->jobs[i]->user_status_mem);
    }
}

void dc_wait(struct dc *c)
{
    rig_wait(c->rig, &c->ticket);
    ck_assert_uint_ne(c->batch.started_ns, 0);
    ck_assert_uint_ge(c->batch.ended_ns, c->batch.started_ns);
    dc_pull(c);
}

void dc_run(struct dc *c)
{
    if (!c->planned)
        dc_plan(c);
    dc_launch(c);
    dc_wait(c);
}
