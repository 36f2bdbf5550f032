/* Steps, jobs and pages, at any moment of each other; steps and jobs by weight. On the fake driver. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/prng.h"
#include "tests/unit/test_be_cuda_step.h"

#define KINDS 2
#define MANY  24u /* sequences, whose records are more than a launch takes with it */

struct runner {
    struct stepper of[KINDS]; /* plans that differ: of few records, and of many */
    struct stepper *s;        /* the last one that began */
    bool runs;
    bool aborted;
    uint32_t next; /* layers whose words have been given */
};

static void runner_begin(struct runner *r, struct prng *prng)
{
    r->s = &r->of[prng_below(prng, KINDS)];
    r->next = 0;
    r->runs = true;
    r->aborted = false;
    step_again(r->s);
}

/* Layers that have run are right, others have written nothing, but for parts of the first of them. */
static void runner_end(struct runner *r)
{
    rig_wait(r->s->rig, &r->s->ticket);
    r->runs = false;
    ck_assert_uint_le(r->s->step.layers_done, r->next);
    if (r->s->ticket.error.code == MLA_OK)
        ck_assert_uint_eq(r->s->step.layers_done, LAYERS);
    else
        ck_assert_int_eq(r->s->ticket.error.code, r->aborted ? MLA_READY_ABORTED : MLA_CANCELLED);
    for (uint32_t i = 0; i < LAYERS; i++) {
        const struct mem *o = &r->s->layers[i]->jobs[0]->o_mem;
        dc_pull(r->s->layers[i]);
        if (i < r->s->step.layers_done)
            dc_check_all(r->s->layers[i]);
        else if (i > r->s->step.layers_done || r->s->step.n_parts == 1)
            ck_assert(o->host[0] == DC_POISON && memcmp(o->host, o->host + 1, o->bytes - 1) == 0);
        if (i >= r->s->step.layers_done)
            ck_assert_uint_eq(__atomic_load_n(step_word(r->s, i, true), __ATOMIC_ACQUIRE), 0);
    }
}

static void runner_cancel(struct runner *r)
{
    struct ticket end = {
        .request = {.op = BE_STEP_END, .step_end = {.step = &r->s->ticket.request, .code = MLA_CANCELLED}}};
    rig_submit(r->s->rig, &end);
    rig_wait(r->s->rig, &end);
    runner_end(r);
}

static void runner_act(struct runner *r, struct prng *prng)
{
    if (!r->runs) {
        runner_begin(r, prng);
    } else if (r->next == LAYERS) {
        runner_end(r);
    } else if (prng_below(prng, 8) == 0) {
        runner_cancel(r);
    } else if (prng_below(prng, 8) == 0) {
        r->aborted = true;
        __atomic_store_n(step_word(r->s, r->next, false), 1 + (UINT64_C(1) << 62), __ATOMIC_RELEASE);
        runner_end(r);
    } else if (r->next == 0 || __atomic_load_n(step_word(r->s, r->next - 1, true), __ATOMIC_ACQUIRE) == 1) {
        __atomic_store_n(step_word(r->s, r->next++, false), 1, __ATOMIC_RELEASE);
    }
}

/* Status words for sequences of a job that will not run. */
static void abort_one(struct rig *rig, const struct mem *words)
{
    struct ticket t = {
        .request = {.op = BE_ABORT, .abort = {.user_status = words->address, .n_seqs = 3, .code = MLA_TIMED_OUT}}};
    rig_submit(rig, &t);
    rig_wait(rig, &t);
}

/* A copy of what is another one each time. */
static void mirror_one(struct rig *rig, struct prng *prng)
{
    uint64_t address, bytes = 1 + prng_below(prng, 5000), to = be_device_alloc(&rig->be, bytes);
    unsigned char *from = be_host_alloc(&rig->be, bytes, &address);
    memset(from, (int)prng_below(prng, 256), bytes);
    struct ticket t = {.request = {.op = BE_MIRROR, .mirror = {.from = from, .to = to, .bytes = bytes}}};
    rig_submit(rig, &t);
    rig_wait(rig, &t);
    ck_assert_int_eq(t.error.code, MLA_OK);
    ck_assert_mem_eq((void *)(uintptr_t)to, from, bytes);
    be_device_free(&rig->be, to, bytes);
    be_host_free(&rig->be, from);
}

/* Layers in parts, of a tile each. */
static void make_parts(struct be_step *step)
{
    step->part_max_ns = 1;
    step->n_parts = plan_parts(&step->plan, step->part_max_ns, &step->part_load_ns);
    ck_assert_uint_gt(step->n_parts, 1);
}

static void runner_make(struct runner *r, struct rig *rig, uint64_t seed, bool in_parts)
{
    static struct dc_seq many[MANY];
    for (uint32_t i = 0; i < MANY; i++)
        many[i] = (struct dc_seq){.q_len = 2, .kv_len = 1 + i * 5 % 70};
    const struct dc_shape of_many = {.heads = 16, .n_seqs = MANY, .seqs = many};
    step_make(&r->of[0], rig, seed);
    step_make_of(&r->of[1], rig, seed + LAYERS, &of_many);
    r->of[1].step.shape = 2;
    for (uint32_t k = 0; k < KINDS; k++) {
        for (uint32_t i = 0; i < LAYERS; i++)
            r->of[k].layers[i]->jobs[0]->keep_reference = true;
        if (in_parts)
            make_parts(&r->of[k].step);
    }
}

static void runner_drop(struct runner *r)
{
    if (r->runs)
        runner_cancel(r);
    for (uint32_t k = 0; k < KINDS; k++)
        step_drop(&r->of[k]);
}

/* Steps, one or two at a time, jobs, aborts and pages in any order, at any moment of each other; launches as graphs as
 * soon as may be, or never; records that go each way, few of one step and many of the next. */
START_TEST(storm)
{
    static const char *const blobs[] = {"", "", "inline", "copied"};
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", _i == 0 ? "0" : "1", 1), 0);
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", blobs[_i], 1), 0);
    struct rig rig = step_rig();
    struct mem words;
    mem_take(&rig, &words, rig.shared, 4096, MEM_WRITE);
    struct runner runners[2] = {0};
    struct prng prng = {_i + 100};
    struct dc *job = step_case(&rig, 50);
    job->jobs[0]->keep_reference = true;
    for (uint64_t k = 0; k < 2; k++)
        runner_make(&runners[k], &rig, 10 + 10 * k, _i % 2 != 0);
    step_warm_up(&rig);
    static const char *const slow[] = {"", "copy=delay 3", "kernel=delay 1",
                                       "copy=delay 1;kernel=delay 1;write=delay 1"};
    ck_assert(cuda_fake_rules(slow[_i / 2 % 4]));
    for (int i = 0; i < 120; i++) {
        uint32_t what = prng_below(&prng, 10);
        if (what == 0) {
            dc_run(job);
            dc_check_all(job);
        } else if (what == 1 && prng_below(&prng, 2)) {
            abort_one(&rig, &words);
        } else if (what == 1 && prng_below(&prng, 2)) {
            mirror_one(&rig, &prng);
        } else if (what == 1) {
            struct be_region page = cuda_sync_region();
            ck_assert_int_eq(cuda_ask(&rig, BE_MAP, &page).code, MLA_OK);
            ck_assert_int_eq(cuda_ask(&rig, BE_UNMAP, &page).code, MLA_OK);
            close(page.fd);
        } else {
            runner_act(&runners[what == 2], &prng);
        }
        if (what == 2 && runners[1].runs && prng_below(&prng, 2))
            runner_cancel(&runners[1]);
        if (prng_below(&prng, 2))
            rig_poll(&rig, (int)prng_below(&prng, 4));
    }
    for (int k = 0; k < 2; k++)
        runner_drop(&runners[k]);
    ck_assert(_i == 0 || step_calls(MLA_FAKE_cuGraphLaunch) != 0);
    dc_free(job);
    mem_drop(&rig, &words);
    rig_close(&rig);
}
END_TEST

/* ---- turns ---- */

/* The CUDA backend, whose launches are predicted to take as long as the fake driver is made to take for them. */
static struct rig slow_rig(void)
{
    struct plan_device device;
    struct plan_costs costs;
    struct be_config config = {.workspace_bytes = 16u << 20,
                               .host_bytes = 16u << 20,
                               .variant = "generic-sm_90a", /* all launches are of the same kernels */
                               .costs = &costs};
    struct rig rig;
    int index = 0;
    ck_assert_int_eq(plan_device_preset("h200", &device, &costs), 0);
    costs.launch_ns = 3 * MLA_NS_PER_MS;
    ck_assert_int_eq(setenv("MLA_TEST_BACKEND", "cuda", 1), 0);
    while (strcmp(be_all[index]->name, "cuda") != 0)
        index++;
    ck_assert(rig_open_config(&rig, index, &config));
    ck_assert(cuda_fake_rules("kernel=delay 1"));
    return rig;
}

/* The step goes on where its words allow it. */
static void step_on(struct stepper *s, uint32_t *next, uint32_t *layers)
{
    if (*next < LAYERS && (*next == 0 || __atomic_load_n(step_word(s, *next - 1, true), __ATOMIC_ACQUIRE) == 1))
        __atomic_store_n(step_word(s, (*next)++, false), 1, __ATOMIC_RELEASE);
    if (s->ticket.ended_at == 0)
        return;
    ck_assert_int_eq(s->ticket.error.code, MLA_OK);
    *layers += LAYERS;
    *next = 0;
    step_again(s);
}

/* Two batches at a time, and a worker. Of equal weight they take turns; a batch that weighs eight times as much comes
 * about eight times as often as a layer; a worker that does still has one layer at a time. */
START_TEST(turns_by_weight)
{
    static const uint32_t step_weight[] = {1, 1, 8}, batch_weight[] = {1, 8, 1};
    struct rig rig = slow_rig();
    struct be_flow flow = {0};
    struct stepper s;
    struct dc *c[2];
    uint32_t next = 0, layers = 0, batches = 0;
    step_make(&s, &rig, 10);
    s.step.flow = &flow;
    s.step.weight = step_weight[_i];
    s.step.part_load_ns = 1000;
    for (int i = 0; i < 2; i++) {
        c[i] = step_case(&rig, 50 + (uint64_t)i);
        c[i]->batch.weight = batch_weight[_i];
        dc_launch(c[i]);
    }
    step_again(&s);
    for (uint64_t until = mla_now_ns() + 700 * MLA_NS_PER_MS; mla_now_ns() < until;) {
        rig_poll(&rig, 1);
        step_on(&s, &next, &layers);
        for (int i = 0; i < 2; i++) {
            if (c[i]->ticket.ended_at == 0)
                continue;
            batches++;
            rig_submit(&rig, &c[i]->ticket);
        }
    }
    layers += next;
    double times = (double)batches / layers;
    ck_assert_msg(_i == 1 ? times > 4 && times < 12 : times > 0.8 && times < 2.6, "%u batches for %u layers", batches,
                  layers);
    ck_assert(cuda_fake_rules(""));
    for (; next < LAYERS; next++)
        step_layer(&s, next);
    rig_wait(&rig, &s.ticket);
    for (int i = 0; i < 2; i++) {
        dc_wait(c[i]);
        dc_check_all(c[i]);
        dc_free(c[i]);
    }
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(be_cuda_storm)
{
    TCase *tc = mla_tcase(suite, "storm");
    tcase_add_loop_test(tc, storm, 0, 4);
    tcase_add_loop_test(tc, turns_by_weight, 0, 3);
}
