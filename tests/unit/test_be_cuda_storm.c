/* Steps that wait on the stream, jobs and pages, at any moment of each other. On the fake driver. */
#include <string.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/prng.h"
#include "tests/unit/test_be_cuda_step.h"

struct runner {
    struct stepper s;
    bool runs;
    bool aborted;
    uint32_t next; /* layers whose words have been given */
};

static void runner_begin(struct runner *r)
{
    r->next = 0;
    r->runs = true;
    r->aborted = false;
    step_again(&r->s);
}

/* Layers that have run are right, and those whose words have not come have written nothing. One whose word came just
 * before the step's end may have run for nobody: its done word stays as it was. */
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
        else if (i >= r->next)
            ck_assert(o->host[0] == DC_POISON && memcmp(o->host, o->host + 1, o->bytes - 1) == 0);
        if (i >= r->s.step.layers_done)
            ck_assert_uint_eq(__atomic_load_n(step_word(&r->s, i, true), __ATOMIC_ACQUIRE), 0);
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
        __atomic_store_n(step_word(&r->s, r->next, false), 1 + (UINT64_C(1) << 62), __ATOMIC_RELEASE);
        runner_end(r);
    } else if (r->next == 0 || __atomic_load_n(step_word(&r->s, r->next - 1, true), __ATOMIC_ACQUIRE) == 1) {
        __atomic_store_n(step_word(&r->s, r->next++, false), 1, __ATOMIC_RELEASE);
    }
}

/* Steps, one or two at a time, jobs and pages in any order, at any moment of each other. */
START_TEST(storm)
{
    struct rig rig = step_rig();
    struct runner runners[2] = {0};
    struct prng prng = {_i + 100};
    struct dc *job = step_case(&rig, 50);
    job->jobs[0]->keep_reference = true;
    step_make(&runners[0].s, &rig, 10);
    step_make(&runners[1].s, &rig, 20);
    for (uint32_t k = 0; k < 2 * LAYERS; k++)
        runners[k / LAYERS].s.layers[k % LAYERS]->jobs[0]->keep_reference = true;
    step_warm_up(&rig);
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
    for (int k = 0; k < 2; k++) {
        if (runners[k].runs)
            runner_cancel(&runners[k]);
        step_drop(&runners[k].s);
    }
    dc_free(job);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(be_cuda_storm)
{
    TCase *tc = mla_tcase(suite, "storm");
    tcase_add_loop_test(tc, storm, 0, 2);
}
