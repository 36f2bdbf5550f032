#include "tests/unit/test_be_cuda_step.h"

#include <stdlib.h>
#include <string.h>

static struct mla_fake_report before;

uint64_t step_calls(enum mla_fake_call call)
{
    struct mla_fake_report report;
    ck_assert(cuda_fake_report(&report));
    return report.calls[call] - before.calls[call];
}

struct rig step_rig(void)
{
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", "0", 0), 0); /* launches are counted */
    return cuda_rig();
}

static struct dc *case_of(struct rig *rig, const struct dc_shape *shape, uint64_t seed)
{
    struct dc *c = dc_new(rig);
    struct dc_shape own = *shape;
    own.seed = seed;
    dc_add(c, &own);
    c->request.splits = 2;
    dc_plan(c);
    c->batch.plan_id = 1;
    return c;
}

static const struct dc_seq plain_seqs[] = {{2, 300, 0}, {2, 170, 0}};
static const struct dc_shape plain = {.heads = 16, .n_seqs = 2, .seqs = plain_seqs};

struct dc *step_case(struct rig *rig, uint64_t seed)
{
    return case_of(rig, &plain, seed);
}

uint64_t *step_word(const struct stepper *s, uint32_t layer, bool done)
{
    return (uint64_t *)s->page.region.host + (2 * layer + done) * WORD;
}

static void push(struct dc_job *job)
{
    struct mem *all[] = {&job->pool,      &job->q_mem,      &job->o_mem,       &job->lse_mem,
                         &job->table_mem, &job->kv_len_mem, &job->visible_mem, &job->user_status_mem};
    memset(job->o_mem.host, DC_POISON, job->o_mem.bytes);
    if (job->lse_mem.host != NULL)
        memset(job->lse_mem.host, DC_POISON, job->lse_mem.bytes);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        mem_push(job->c->rig, all[i]);
}

void step_make(struct stepper *s, struct rig *rig, uint64_t seed)
{
    step_make_of(s, rig, seed, &plain);
}

void step_make_of(struct stepper *s, struct rig *rig, uint64_t seed, const struct dc_shape *shape)
{
    memset(s, 0, sizeof(*s));
    s->rig = rig;
    mem_take(rig, &s->page, &mem_memfd, 4096, MEM_SYNC);
    for (uint32_t i = 0; i < LAYERS; i++) {
        s->layers[i] = case_of(rig, shape, seed + i);
        push(s->layers[i]->jobs[0]);
        s->records[i] = (struct be_layer){.ready = step_word(s, i, false),
                                          .done = step_word(s, i, true),
                                          .ready_value = 1,
                                          .done_value = 1,
                                          .job = s->layers[i]->batch.jobs[0]};
    }
    s->step = (struct be_step){.layers = s->records,
                               .n_layers = LAYERS,
                               .seqs = s->layers[0]->batch.seqs,
                               .plan = s->layers[0]->request,
                               .shape = 1,
                               .compat = 1,
                               .n_parts = 1};
    s->ticket.request = (struct be_request){.op = BE_STEP, .step = &s->step};
}

void step_drop(struct stepper *s)
{
    for (uint32_t i = 0; i < LAYERS; i++)
        dc_free(s->layers[i]);
    mem_drop(s->rig, &s->page);
}

void step_clear(struct stepper *s)
{
    for (uint32_t i = 0; i < LAYERS; i++) {
        push(s->layers[i]->jobs[0]);
        __atomic_store_n(step_word(s, i, false), 0, __ATOMIC_RELAXED);
        __atomic_store_n(step_word(s, i, true), 0, __ATOMIC_RELAXED);
    }
}

void step_again(struct stepper *s)
{
    step_clear(s);
    s->ticket = (struct ticket){.request = {.op = BE_STEP, .step = &s->step}};
    rig_submit(s->rig, &s->ticket);
}

void step_layer(struct stepper *s, uint32_t i)
{
    __atomic_store_n(step_word(s, i, false), 1, __ATOMIC_RELEASE);
    WAIT_UNTIL(s->rig, __atomic_load_n(step_word(s, i, true), __ATOMIC_ACQUIRE) == 1);
}

void step_warm_up(struct rig *rig)
{
    struct dc *c[2] = {step_case(rig, 99), step_case(rig, 98)};
    ck_assert(cuda_fake_rules("kernel=delay 2"));
    for (int i = 0; i < 2; i++)
        dc_launch(c[i]);
    for (int i = 0; i < 2; i++) {
        dc_wait(c[i]);
        dc_check_all(c[i]);
        dc_free(c[i]);
    }
    ck_assert(cuda_fake_rules(""));
    ck_assert(cuda_fake_report(&before));
}

void step_ends_well(struct stepper *s)
{
    rig_wait(s->rig, &s->ticket);
    ck_assert_int_eq(s->ticket.error.code, MLA_OK);
    ck_assert_uint_eq(s->step.layers_done, LAYERS);
    for (uint32_t i = 0; i < LAYERS; i++) {
        dc_pull(s->layers[i]);
        dc_check_all(s->layers[i]);
    }
}
