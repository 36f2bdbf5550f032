/* What a launch costs in calls of the driver, and the layer of a lone step that waits on the stream. On the fake
 * driver. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/util/clock.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"
#include "tests/unit/test_be_cuda.h"

#define LAYERS 3u
#define WORD   8u /* 64-bit words to the next cache line */

/* Events are taken meanwhile, as the loop would. */
#define WAIT_UNTIL(rig, condition)                                                                                     \
    do {                                                                                                               \
        uint64_t until_ = mla_now_ns() + 20 * MLA_NS_PER_S;                                                            \
        while (!(condition)) {                                                                                         \
            ck_assert_msg(mla_now_ns() < until_, "not in time: %s", #condition);                                       \
            rig_poll(rig, 1);                                                                                          \
        }                                                                                                              \
    } while (0)

static struct mla_fake_report before;

static uint64_t calls(const struct mla_fake_report *report, enum mla_fake_call call)
{
    return report->calls[call] - before.calls[call];
}

static uint64_t calls_now(enum mla_fake_call call)
{
    struct mla_fake_report report;
    ck_assert(cuda_fake_report(&report));
    return calls(&report, call);
}

/* All calls since before, but for those that ask the driver whether all is well. */
static uint64_t all_calls(const struct mla_fake_report *report)
{
    uint64_t sum = 0;
    for (int i = 0; i < MLA_FAKE_kernel; i++)
        if (i != MLA_FAKE_cuStreamQuery)
            sum += calls(report, (enum mla_fake_call)i);
    return sum;
}

static struct dc *new_case(struct rig *rig, uint64_t seed)
{
    struct dc *c = dc_new(rig);
    dc_add(c, &(struct dc_shape){.heads = 16, .n_seqs = 2, .seqs = SEQS({2, 300}, {2, 170}), .seed = seed});
    c->request.splits = 2;
    dc_plan(c);
    c->batch.plan_id = 1;
    return c;
}

/* ---- launches of jobs ---- */

/* A kernel each to prepare, decode and reduce, one word at the end: nothing else, but for two launches of sixteen,
 * which events time; and a copy of the records, where these are not to go with the first kernel. */
START_TEST(calls_of_a_launch)
{
    const unsigned copies = _i == 1;
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", copies ? "copied" : "", 1), 0);
    struct rig rig = cuda_rig();
    struct dc *c = new_case(&rig, 1);
    struct mla_fake_report after;
    for (int i = 0; i < 19; i++) {
        ck_assert(cuda_fake_report(&before));
        dc_run(c);
        ck_assert(cuda_fake_report(&after));
        bool timed = i % 16 < 2;
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuMemcpyHtoDAsync), copies);
        ck_assert_uint_eq(after.inline_bytes - before.inline_bytes, copies ? 0 : 4096);
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuLaunchKernelEx), 3);
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuStreamWriteValue64), 1);
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuEventRecord), timed ? 2 : 0);
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuEventElapsedTime), timed ? 1 : 0);
        if (i != 0) /* the first one encodes maps */
            ck_assert_uint_eq(all_calls(&after), copies + (timed ? 7 : 4));
        if (i % 6 == 0)
            dc_check_all(c);
    }
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* The fourth launch of the same records in a slot makes a graph of it: one call for the copy and the kernels. Another
 * plan there lets go of it, and what a driver does not take in a graph goes without. */
START_TEST(launches_as_graphs)
{
    const uint32_t slots = 8, makes = 3 * slots, is = 4 * slots;
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", "1", 1), 0);
    struct rig rig = cuda_rig();
    struct dc *c = new_case(&rig, 1), *other = dc_new(&rig);
    struct mla_fake_report after;
    dc_add(other, &(struct dc_shape){.heads = 8, .n_seqs = 1, .seqs = SEQS({1, 500}), .seed = 3});
    dc_plan(other);
    other->batch.plan_id = 2;
    if (_i == 1)
        ck_assert(cuda_fake_rules("cuGraphInstantiate=fail NOT_SUPPORTED"));
    for (uint32_t i = 0; i < 6 * slots; i++) {
        bool timed = i % 16 < 2, graph = _i == 0 && i >= is;
        ck_assert(cuda_fake_report(&before));
        dc_run(i == 5 * slots ? other : c);
        ck_assert(cuda_fake_report(&after));
        if (i % 6 == 0 || i >= makes)
            dc_check_all(i == 5 * slots ? other : c);
        if (i == 5 * slots)
            graph = false;
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuGraphInstantiate),
                          (_i == 0 && i >= makes && i < is) || (_i == 1 && i == makes));
        if (i >= is) {
            ck_assert_uint_eq(calls(&after, MLA_FAKE_cuGraphLaunch), graph);
            ck_assert_uint_eq(calls(&after, MLA_FAKE_cuLaunchKernelEx), graph ? 0 : 3);
            ck_assert_uint_eq(calls(&after, MLA_FAKE_cuMemcpyHtoDAsync), graph ? 0 : 1);
            if (graph)
                ck_assert_uint_eq(all_calls(&after), timed ? 5 : 2);
        }
    }
    dc_free(c);
    dc_free(other);
    rig_close(&rig);
}
END_TEST

/* Of two that are timed and follow each other the pause is told, of others not. Records of one plan are written by
 * halves from the second time on, those of another plan between them whole. */
START_TEST(gaps_and_plans)
{
    struct rig rig = cuda_rig();
    struct dc *c[2] = {new_case(&rig, 1), new_case(&rig, 2)};
    struct dc *other = dc_new(&rig);
    dc_add(other, &(struct dc_shape){.heads = 8, .n_seqs = 1, .seqs = SEQS({1, 500}), .seed = 3});
    dc_plan(other);
    other->batch.plan_id = 2;
    ck_assert(cuda_fake_rules("kernel=delay 2"));
    for (int round = 0; round < 9; round++) {
        struct dc *second = round % 4 == 3 ? other : c[1];
        dc_launch(c[0]);
        dc_launch(second);
        dc_wait(c[0]);
        dc_wait(second);
        if (round >= 3) {
            dc_check_all(c[0]);
            dc_check_all(second);
        }
        ck_assert_uint_eq(c[0]->batch.gap_ns, BE_GAP_UNKNOWN);
        if (round % 8 == 0)
            ck_assert_uint_lt(second->batch.gap_ns, MLA_NS_PER_S);
        else
            ck_assert_uint_eq(second->batch.gap_ns, BE_GAP_UNKNOWN);
        ck_assert_uint_le(second->batch.taken_ns, second->batch.submitted_ns);
        ck_assert_uint_le(second->batch.submitted_ns, second->batch.ended_ns);
    }
    ck_assert(cuda_fake_rules(""));
    dc_free(c[0]);
    dc_free(c[1]);
    dc_free(other);
    rig_close(&rig);
}
END_TEST

/* ---- steps ---- */

struct stepper {
    struct rig *rig;
    struct mem page;
    struct dc *layers[LAYERS];
    struct be_layer records[LAYERS];
    struct be_step step;
    struct ticket ticket;
};

static uint64_t *word(struct stepper *s, uint32_t layer, bool done)
{
    return (uint64_t *)s->page.region.host + (2 * layer + done) * WORD;
}

static void push(struct dc_job *job)
{
    struct mem *all[] = {&job->pool, &job->q_mem, &job->o_mem, &job->lse_mem, &job->table_mem};
    memset(job->o_mem.host, DC_POISON, job->o_mem.bytes);
    memset(job->lse_mem.host, DC_POISON, job->lse_mem.bytes);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        mem_push(job->c->rig, all[i]);
}

static void step_make(struct stepper *s, struct rig *rig, uint64_t seed)
{
    memset(s, 0, sizeof(*s));
    s->rig = rig;
    mem_take(rig, &s->page, &mem_memfd, 4096, MEM_SYNC);
    for (uint32_t i = 0; i < LAYERS; i++) {
        s->layers[i] = new_case(rig, seed + i);
        push(s->layers[i]->jobs[0]);
        s->records[i] = (struct be_layer){.ready = word(s, i, false),
                                          .done = word(s, i, true),
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

static void step_drop(struct stepper *s)
{
    for (uint32_t i = 0; i < LAYERS; i++)
        dc_free(s->layers[i]);
    mem_drop(s->rig, &s->page);
}

static void layer(struct stepper *s, uint32_t i)
{
    __atomic_store_n(word(s, i, false), 1, __ATOMIC_RELEASE);
    WAIT_UNTIL(s->rig, __atomic_load_n(word(s, i, true), __ATOMIC_ACQUIRE) == 1);
}

/* From here on kernels are known to be loaded, those of launches whose records are copied, too; before is set. */
static void warm_up(struct rig *rig)
{
    struct dc *c[2] = {new_case(rig, 99), new_case(rig, 98)};
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

static void wait_parked(struct rig *rig, uint64_t times)
{
    WAIT_UNTIL(rig,
               calls_now(MLA_FAKE_cuStreamWaitValue64) == times && calls_now(MLA_FAKE_cuLaunchKernelEx) >= 3 * times);
}

static void ends_well(struct stepper *s)
{
    rig_wait(s->rig, &s->ticket);
    ck_assert_int_eq(s->ticket.error.code, MLA_OK);
    ck_assert_uint_eq(s->step.layers_done, LAYERS);
    for (uint32_t i = 0; i < LAYERS; i++) {
        dc_pull(s->layers[i]);
        dc_check_all(s->layers[i]);
    }
}

/* All that the driver is told of a layer, it is told before its word comes, but for the words behind it. */
START_TEST(calls_of_a_layer)
{
    struct rig rig = cuda_rig();
    struct stepper s;
    struct mla_fake_report after;
    step_make(&s, &rig, 10);
    warm_up(&rig);
    rig_submit(&rig, &s.ticket);
    for (uint32_t i = 0; i < LAYERS; i++) {
        wait_parked(&rig, i + 1);
        layer(&s, i);
    }
    ends_well(&s);
    ck_assert(cuda_fake_report(&after));
    ck_assert_uint_eq(calls(&after, MLA_FAKE_cuMemcpyHtoDAsync), LAYERS);
    ck_assert_uint_eq(calls(&after, MLA_FAKE_cuStreamWaitEvent), LAYERS);
    ck_assert_uint_eq(calls(&after, MLA_FAKE_cuStreamWaitValue64), LAYERS);
    ck_assert_uint_eq(calls(&after, MLA_FAKE_cuLaunchKernelEx), 3 * LAYERS);
    ck_assert_uint_eq(calls(&after, MLA_FAKE_cuStreamWriteValue64), 2 * LAYERS);
    ck_assert_uint_eq(calls(&after, MLA_FAKE_cuEventRecord), LAYERS);
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

/* A layer whose word does not come holds up nobody: not a job, not a page that is mapped, not another step; and it runs
 * right afterwards. */
START_TEST(others_pass_a_layer)
{
    struct rig rig = cuda_rig();
    struct stepper a, b;
    struct dc *job = new_case(&rig, 50);
    step_make(&a, &rig, 10);
    step_make(&b, &rig, 20);
    warm_up(&rig);
    rig_submit(&rig, &a.ticket);
    wait_parked(&rig, 1);
    if (_i == 0) {
        dc_run(job);
        dc_check_all(job);
    } else if (_i == 1) {
        struct be_region page = cuda_sync_region();
        ck_assert_int_eq(cuda_ask(&rig, BE_MAP, &page).code, MLA_OK);
        ck_assert_int_eq(cuda_ask(&rig, BE_UNMAP, &page).code, MLA_OK);
        close(page.fd);
    }
    rig_submit(&rig, &b.ticket);
    for (uint32_t i = 0; i < LAYERS; i++)
        layer(&b, i);
    ends_well(&b);
    ck_assert_uint_eq(*word(&a, 0, true), 0);
    for (uint32_t i = 0; i < LAYERS; i++)
        layer(&a, i);
    ends_well(&a);
    dc_free(job);
    step_drop(&a);
    step_drop(&b);
    rig_close(&rig);
}
END_TEST

/* A step that ends early leaves its next layer's outputs and done word alone, and its memory can go at once: the fake
 * driver aborts where something unfinished names memory that is unmapped. */
START_TEST(a_step_ends_in_front_of_a_layer)
{
    struct rig rig = cuda_rig();
    struct stepper s;
    step_make(&s, &rig, 10);
    warm_up(&rig);
    if (_i == 1)
        s.step.deadline_ns = mla_now_ns() + 50 * MLA_NS_PER_MS;
    rig_submit(&rig, &s.ticket);
    wait_parked(&rig, 1);
    if (_i == 0) {
        struct ticket end = {
            .request = {.op = BE_STEP_END, .step_end = {.step = &s.ticket.request, .code = MLA_CANCELLED}}};
        rig_submit(&rig, &end);
        rig_wait(&rig, &end);
    } else if (_i == 2) {
        __atomic_store_n(word(&s, 0, false), 1 + (UINT64_C(1) << 62), __ATOMIC_RELEASE);
    }
    static const enum mla_status codes[] = {MLA_CANCELLED, MLA_TIMED_OUT, MLA_READY_ABORTED};
    rig_wait(&rig, &s.ticket);
    ck_assert_int_eq(s.ticket.error.code, codes[_i]);
    ck_assert_uint_eq(s.step.layers_done, 0);
    ck_assert_uint_eq(*word(&s, 0, true), 0);
    dc_pull(s.layers[0]);
    const struct mem *o = &s.layers[0]->jobs[0]->o_mem;
    for (size_t i = 0; i < o->bytes; i++)
        ck_assert_uint_eq(o->host[i], DC_POISON);
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

/* Tables with so much room between their rows that they are larger than the workspace: a layer that is let go reads
 * none of that, and runs right afterwards. */
START_TEST(tables_with_room)
{
    static const uint64_t room[] = {0, 64u << 20, UINT64_C(1) << 40};
    struct rig rig = cuda_rig();
    struct stepper s;
    struct dc *job = new_case(&rig, 50);
    step_make(&s, &rig, 10);
    const struct mla_abi_seq *seqs = s.layers[0]->batch.seqs;
    struct mla_abi_seq far[] = {seqs[0], seqs[1]};
    for (uint32_t i = 0; i < 2; i++)
        far[i].table_first += room[_i];
    for (uint32_t i = 0; i < LAYERS; i++)
        s.records[i].job.table -= room[_i] * sizeof(int32_t);
    s.step.seqs = far;
    warm_up(&rig);
    rig_submit(&rig, &s.ticket);
    wait_parked(&rig, 1);
    dc_run(job);
    dc_check_all(job);
    for (uint32_t i = 0; i < LAYERS; i++)
        layer(&s, i);
    ends_well(&s);
    dc_free(job);
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

/* ---- all of it at once ---- */

struct runner {
    struct stepper s;
    bool runs;
    bool aborted;
    uint32_t next; /* layers whose words have been given */
};

static void runner_begin(struct runner *r)
{
    for (uint32_t i = 0; i < LAYERS; i++) {
        push(r->s.layers[i]->jobs[0]);
        __atomic_store_n(word(&r->s, i, false), 0, __ATOMIC_RELAXED);
        __atomic_store_n(word(&r->s, i, true), 0, __ATOMIC_RELAXED);
    }
    r->s.ticket = (struct ticket){.request = {.op = BE_STEP, .step = &r->s.step}};
    r->next = 0;
    r->runs = true;
    r->aborted = false;
    rig_submit(r->s.rig, &r->s.ticket);
}

/* Layers that have run are right; the others have written nothing, now and later. */
static void runner_end(struct runner *r)
{
    rig_wait(r->s.rig, &r->s.ticket);
    r->runs = false;
    ck_assert_uint_le(r->s.step.layers_done, r->next);
    if (r->s.ticket.error.code == MLA_OK)
        ck_assert_uint_eq(r->s.step.layers_done, LAYERS);
    else
        ck_assert_int_eq(r->s.ticket.error.code, r->aborted ? MLA_READY_ABORTED : MLA_CANCELLED);
    for (uint32_t i = 0; i < LAYERS; i++) {
        const struct mem *o = &r->s.layers[i]->jobs[0]->o_mem;
        dc_pull(r->s.layers[i]);
        if (i < r->s.step.layers_done)
            dc_check_all(r->s.layers[i]);
        else
            ck_assert(o->host[0] == DC_POISON && memcmp(o->host, o->host + 1, o->bytes - 1) == 0);
    }
}

static void runner_cancel(struct runner *r)
{
    struct ticket end = {
        .request = {.op = BE_STEP_END, .step_end = {.step = &r->s.ticket.request, .code = MLA_CANCELLED}}};
    rig_submit(r->s.rig, &end);
    rig_wait(r->s.rig, &end);
    runner_end(r);
}

static void runner_act(struct runner *r, struct prng *prng)
{
    if (!r->runs) {
        runner_begin(r);
    } else if (r->next == LAYERS) {
        runner_end(r);
    } else if (prng_below(prng, 8) == 0) {
        runner_cancel(r);
    } else if (prng_below(prng, 8) == 0) {
        r->aborted = true;
        __atomic_store_n(word(&r->s, r->next, false), 1 + (UINT64_C(1) << 62), __ATOMIC_RELEASE);
        runner_end(r);
    } else if (r->next == 0 || __atomic_load_n(word(&r->s, r->next - 1, true), __ATOMIC_ACQUIRE) == 1) {
        __atomic_store_n(word(&r->s, r->next++, false), 1, __ATOMIC_RELEASE);
    }
}

/* Steps, one or two at a time, jobs and pages in any order, at any moment of each other. */
START_TEST(storm)
{
    struct rig rig = cuda_rig();
    struct runner runners[2] = {0};
    struct prng prng = {_i + 100};
    struct dc *job = new_case(&rig, 50);
    job->jobs[0]->keep_reference = true;
    step_make(&runners[0].s, &rig, 10);
    step_make(&runners[1].s, &rig, 20);
    for (uint32_t k = 0; k < 2 * LAYERS; k++)
        runners[k / LAYERS].s.layers[k % LAYERS]->jobs[0]->keep_reference = true;
    warm_up(&rig);
    for (int i = 0; i < 120; i++) {
        uint32_t what = prng_below(&prng, 10);
        if (what == 0) {
            dc_run(job);
            dc_check_all(job);
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
    ck_assert_uint_gt(calls_now(MLA_FAKE_cuStreamWaitValue64), 3);
    for (int k = 0; k < 2; k++) {
        if (runners[k].runs)
            runner_cancel(&runners[k]);
        step_drop(&runners[k].s);
    }
    dc_free(job);
    rig_close(&rig);
}
END_TEST

/* Where the driver is told to wait for each launch, or to have one queue for all streams, nothing waits on the stream.
 */
START_TEST(drivers_that_wait)
{
    static const char *const names[] = {"CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS"};
    ck_assert_int_eq(setenv(names[_i], "1", 1), 0);
    struct rig rig = cuda_rig();
    struct stepper s;
    step_make(&s, &rig, 10);
    warm_up(&rig);
    rig_submit(&rig, &s.ticket);
    for (uint32_t i = 0; i < LAYERS; i++) {
        usleep(3000);
        layer(&s, i);
    }
    ends_well(&s);
    ck_assert_uint_eq(calls_now(MLA_FAKE_cuStreamWaitValue64), 0);
    step_drop(&s);
    rig_close(&rig);
    ck_assert_int_eq(unsetenv(names[_i]), 0);
}
END_TEST

MLA_SUITE(be_cuda_calls)
{
    TCase *tc = mla_tcase(suite, "calls");
    tcase_add_loop_test(tc, calls_of_a_launch, 0, 2);
    tcase_add_loop_test(tc, launches_as_graphs, 0, 2);
    tcase_add_test(tc, gaps_and_plans);
    tcase_add_test(tc, calls_of_a_layer);
    tcase_add_loop_test(tc, others_pass_a_layer, 0, 3);
    tcase_add_loop_test(tc, a_step_ends_in_front_of_a_layer, 0, 3);
    tcase_add_loop_test(tc, tables_with_room, 0, 3);
    tcase_add_loop_test(tc, drivers_that_wait, 0, 2);
    tcase_add_loop_test(tc, storm, 0, 2);
}
