/* The steps of a device thread without a device: words, deadlines, who shares a launch, what is expected next. */
#include <stdlib.h>
#include <string.h>

#include "daemon/backend/steps.h"
#include "tests/support/check_main.h"

#define LAYERS 3u
#define SEQS   2u
#define ABORT  (UINT64_C(1) << 62)

struct worker {
    struct be_request request;
    struct be_step step;
    struct be_layer layers[LAYERS];
    struct mla_abi_seq seqs[SEQS];
    struct plan_seq plan_seqs[SEQS];
    struct plan_job job;
    uint64_t words[2 * LAYERS], status[LAYERS * SEQS];
    bool ended;
    enum mla_status code;
};

static struct be_facts facts;
static struct be_steps s;
static struct worker a, b, c;

static void on_done(void *context, struct be_request *request, enum mla_status code)
{
    struct worker *w = request->user;
    ck_assert_ptr_eq(context, &facts);
    ck_assert(!w->ended);
    w->ended = true;
    w->code = code;
}

static void make(struct worker *w, uint64_t shape, uint32_t kv_len)
{
    memset(w, 0, sizeof(*w));
    for (uint32_t i = 0; i < LAYERS; i++) {
        w->layers[i] = (struct be_layer){
            .ready = &w->words[2 * i], .done = &w->words[2 * i + 1], .ready_value = 1, .done_value = 1};
        w->layers[i].job = (struct mla_abi_job){.heads = 16, .n_seqs = SEQS, .pages_per_entry = 1, .kv = 1000 + i};
        w->layers[i].job.status = (uint64_t)(uintptr_t)&w->status[i * SEQS];
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        w->seqs[i] = (struct mla_abi_seq){.q_len = 1, .kv_len_max = kv_len, .first_token = i, .table_first = i * 64};
        w->plan_seqs[i] = (struct plan_seq){.q_len = 1, .kv_len = kv_len};
    }
    w->job = (struct plan_job){.n_seqs = SEQS, .mask = MLA_ABI_MASK_CAUSAL};
    w->step = (struct be_step){.layers = w->layers, .n_layers = LAYERS, .seqs = w->seqs, .shape = shape, .compat = 7};
    w->step.plan = (struct plan_request){.device = facts.device,
                                         .costs = facts.costs,
                                         .policy = PLAN_AUTO,
                                         .tile_rows = facts.tile_rows,
                                         .heads = 16,
                                         .jobs = &w->job,
                                         .seqs = w->plan_seqs,
                                         .n_jobs = 1,
                                         .n_seqs = SEQS};
    w->request = (struct be_request){.op = BE_STEP, .user = w, .step = &w->step};
}

static void start(void)
{
    memset(&facts, 0, sizeof(facts));
    ck_assert_int_eq(plan_device_preset("h200", &facts.device, &facts.costs), 0);
    facts.tile_rows = MLA_ABI_TILE_ROWS;
    facts.workspace_bytes = 64u << 20;
    be_steps_init(&s, &facts, NULL, NULL, on_done, &facts);
    make(&a, 1, 1000);
    make(&b, 2, 3000);
    make(&c, 3, 64);
}

static void end(void)
{
    ck_assert_uint_eq(s.n, 0);
    ck_assert_uint_eq(s.n_ready, 0);
    ck_assert_uint_eq(s.n_launches, 0);
    ck_assert_uint_eq(s.n_expected, 0);
    for (uint32_t i = 0; i < BE_STEPS_BATCHES; i++)
        ck_assert_int_eq(s.batches[i].state, BE_STEPS_FREE);
    for (uint32_t i = 0; i < BE_STEPS_PLANS; i++)
        ck_assert_uint_eq(s.plans[i].uses, 0);
    be_steps_free(&s);
}

static void ready(struct worker *w, uint32_t layer)
{
    w->words[2 * layer] = 1;
}

/* The launch is over: its done words are written. */
static void ended(struct be_request *request, uint64_t from, uint64_t to)
{
    const struct be_batch *batch = request->batch;
    for (uint32_t i = 0; i < batch->n_done; i++)
        *batch->done[i].word = batch->done[i].value;
    request->batch->started_ns = from;
    request->batch->ended_ns = to;
    be_steps_launch_ended(&s, request);
}

static void one_layer(struct worker *w, uint32_t layer, uint64_t now)
{
    ready(w, layer);
    ck_assert(be_steps_poll(&s, now));
    ck_assert_uint_eq(w->words[2 * layer], 0); /* taken back */
    struct be_request *request = be_steps_launch(&s, now + 10, NULL);
    ck_assert_ptr_nonnull(request);
    ck_assert(be_steps_own(&s, request));
    ck_assert_uint_eq(request->batch->n_jobs, 1);
    ck_assert_uint_eq(request->batch->jobs[0].kv, 1000 + layer);
    ck_assert_uint_eq(request->batch->n_seqs, SEQS);
    ended(request, now + 20, now + 50);
}

START_TEST(layer_after_layer)
{
    start();
    be_steps_begin(&s, &a.request);
    ck_assert(!be_steps_poll(&s, 50));
    ck_assert_ptr_null(be_steps_launch(&s, 50, NULL));
    one_layer(&a, 0, 100);
    ck_assert_uint_eq(a.words[1], 1);
    ck_assert(!be_steps_poll(&s, 160));
    ck_assert_uint_eq(a.words[1], 1); /* until the stream is known to be past it */
    one_layer(&a, 1, 200);
    ck_assert_uint_eq(a.words[1], 0);
    ck_assert(!a.ended);
    one_layer(&a, 2, 300);
    ck_assert(a.ended);
    ck_assert_int_eq(a.code, MLA_OK);
    ck_assert_uint_eq(a.words[3], 0);
    ck_assert_uint_eq(a.words[5], 1); /* of the last: until the next step's first ready word */
    ck_assert_uint_eq(a.step.layers_done, 3);
    ck_assert_uint_eq(a.step.layers_shared, 0);
    ck_assert_uint_eq(a.step.first_ready_ns, 100);
    ck_assert_uint_eq(a.step.queue_ns, 30);
    ck_assert_uint_eq(a.step.run_ns, 90);
    a.ended = false;
    be_steps_begin(&s, &a.request);
    one_layer(&a, 0, 400);
    ck_assert_uint_eq(a.words[5], 0);
    one_layer(&a, 1, 500);
    one_layer(&a, 2, 600);
    ck_assert(a.ended);
    end();
}
END_TEST

/* The next ready word may be seen before the end of the launch that its layer waited for. */
START_TEST(the_next_word_before_the_end)
{
    struct be_request *first, *second, *third;
    start();
    be_steps_begin(&s, &a.request);
    ready(&a, 0);
    be_steps_poll(&s, 1);
    first = be_steps_launch(&s, 2, NULL);
    a.words[1] = 1;
    ready(&a, 1);
    be_steps_poll(&s, s.expected_end_ns);
    second = be_steps_launch(&s, s.expected_end_ns, NULL);
    ck_assert_ptr_nonnull(second);
    ck_assert_ptr_ne(first, second);
    ready(&a, 2);
    be_steps_poll(&s, s.expected_end_ns);
    ck_assert_ptr_null(be_steps_launch(&s, s.expected_end_ns, NULL)); /* two are under way */
    ended(first, 2, 3);
    third = be_steps_launch(&s, s.expected_end_ns, NULL);
    ck_assert_ptr_nonnull(third);
    ended(second, 3, 4);
    ck_assert(!a.ended);
    ended(third, 4, 5);
    ck_assert(a.ended);
    ck_assert_int_eq(a.code, MLA_OK);
    end();
}
END_TEST

static void go_on_alone(struct worker *w, uint32_t first)
{
    for (uint32_t i = first; i < LAYERS; i++)
        one_layer(w, i, s.expected_end_ns + 1000);
    ck_assert(w->ended);
    ck_assert_int_eq(w->code, MLA_OK);
}

START_TEST(those_that_meet)
{
    start();
    be_steps_begin(&s, &a.request);
    be_steps_begin(&s, &b.request);
    make(&c, 3, 1u << 20);
    be_steps_begin(&s, &c.request);
    c.step.compat = 8; /* of another kind, and long */
    ready(&c, 0);
    be_steps_poll(&s, 5);
    ready(&a, 0);
    ready(&b, 0);
    be_steps_poll(&s, 10);
    struct be_request *one = be_steps_launch(&s, 10, NULL);
    ck_assert_uint_eq(one->batch->n_jobs, 1); /* who has waited longest, and nobody goes with it */
    ck_assert_ptr_eq(one->batch->done[0].word, &c.words[1]);
    ck_assert_ptr_null(be_steps_launch(&s, 10, NULL)); /* not yet: others may come */
    struct be_request *two = be_steps_launch(&s, s.expected_end_ns - BE_STEPS_LEAD_NS, NULL);
    ck_assert_ptr_nonnull(two);
    const struct be_batch *batch = two->batch;
    ck_assert_uint_eq(batch->n_jobs, 2);
    ck_assert_uint_eq(batch->n_seqs, 2 * SEQS);
    ck_assert_uint_eq(batch->jobs[1].first_seq, SEQS);
    for (uint32_t i = 0; i < 2 * SEQS; i++) {
        ck_assert_uint_eq(batch->seqs[i].job, i / SEQS);
        ck_assert_uint_eq(batch->seqs[i].kv_len_max, i < SEQS ? 1000 : 3000);
    }
    ck_assert_uint_eq(batch->plan->useful_rows, 2 * SEQS * 16);
    ended(one, 10, 20);
    ended(two, 20, 30);
    ck_assert_uint_eq(a.step.layers_shared, 1);
    ck_assert_uint_eq(b.step.layers_shared, 1);
    ck_assert_uint_eq(c.step.layers_shared, 0);
    go_on_alone(&a, 1);
    go_on_alone(&b, 1);
    go_on_alone(&c, 1);
    /* The launch that was shared counts once. */
    struct be_step_work sum = {0};
    const struct worker *all[] = {&a, &b, &c};
    for (size_t i = 0; i < 3; i++) {
        const struct be_step_work *work = &all[i]->step.work;
        sum.launches += work->launches;
        sum.run_ns += work->run_ns;
        sum.useful_rows += work->useful_rows;
        ck_assert_uint_ge(work->predicted_ns, work->launches * facts.costs.launch_ns);
        ck_assert_uint_ge(work->row_slots, work->useful_rows);
        ck_assert_uint_ge(work->items, work->tiles);
        ck_assert_uint_ge(work->unit_slots, work->item_units);
        ck_assert_uint_ge(work->pages, work->launches);
    }
    ck_assert_uint_eq(sum.launches, 3 * LAYERS - 1);
    ck_assert_uint_eq(sum.run_ns, 10 + 10 + 6 * 30);
    ck_assert_uint_eq(sum.useful_rows, 3 * LAYERS * SEQS * 16);
    ck_assert_uint_eq(a.step.run_ns + b.step.run_ns + c.step.run_ns, sum.run_ns + 10);
    end();
}
END_TEST

/* The same shapes are planned once, whoever brings them; what is expected is handed out as it was prepared. */
START_TEST(plans_are_kept_and_launches_prepared)
{
    start();
    be_steps_begin(&s, &a.request);
    struct be_steps_batch *ahead = be_steps_prepare(&s);
    ck_assert_ptr_nonnull(ahead);
    ck_assert_ptr_null(be_steps_prepare(&s));
    ready(&a, 0);
    be_steps_poll(&s, 1);
    ck_assert_ptr_eq(be_steps_launch(&s, 1, NULL), &ahead->request);
    ck_assert(ahead->prepared);
    struct be_steps_batch *next = be_steps_prepare(&s); /* while it runs */
    ck_assert_ptr_nonnull(next);
    ck_assert_ptr_ne(next, ahead);
    ck_assert_ptr_eq(next->plan, ahead->plan);
    ck_assert_uint_eq(next->jobs[0].kv, 1001);
    const struct be_steps_plan *plan = next->plan;
    ended(&ahead->request, 1, 2);

    /* Another one comes along: together they are not what was prepared. */
    be_steps_begin(&s, &b.request);
    ready(&a, 1);
    ready(&b, 0);
    be_steps_poll(&s, 3);
    struct be_request *both = be_steps_launch(&s, 3, NULL);
    ck_assert_ptr_ne(both, &next->request);
    ck_assert_uint_eq(both->batch->n_jobs, 2);
    ended(both, 3, 4);
    for (struct be_steps_batch *p; (p = be_steps_prepare(&s)) != NULL;)
        if (p->set.n == 2)
            ck_assert_uint_eq(p->jobs[0].kv, 1002);
    ready(&a, 2);
    ready(&b, 1);
    be_steps_poll(&s, 5);
    both = be_steps_launch(&s, 5, NULL);
    uint32_t index;
    ck_assert(be_steps_batch_of(&s, both, &index)->prepared);
    ck_assert_uint_eq(both->batch->n_jobs, 2);
    ended(both, 5, 6);
    ck_assert(a.ended);
    go_on_alone(&b, 2);

    /* The same shape again. */
    make(&c, 1, 1000);
    be_steps_begin(&s, &c.request);
    next = be_steps_prepare(&s);
    ck_assert_ptr_eq(next->plan, plan);
    go_on_alone(&c, 0);
    end();
}
END_TEST

START_TEST(deadlines_ends_and_abort_values)
{
    start();
    /* Before its first layer; a step without a word costs the others nothing. */
    a.step.deadline_ns = 100;
    be_steps_begin(&s, &a.request);
    be_steps_begin(&s, &b.request);
    one_layer(&b, 0, 50);
    be_steps_poll(&s, 99);
    ck_assert(!a.ended);
    be_steps_poll(&s, 100);
    ck_assert(a.ended);
    ck_assert_int_eq(a.code, MLA_TIMED_OUT);
    ck_assert_uint_eq(a.words[1], 0);

    /* While a layer runs: that ends first. */
    struct be_request stop = {.op = BE_STEP_END};
    stop.step_end.step = &b.request;
    stop.step_end.code = MLA_CANCELLED;
    ready(&b, 1);
    be_steps_poll(&s, 200);
    struct be_request *launch = be_steps_launch(&s, 200, NULL);
    be_steps_end(&s, &stop);
    ready(&b, 2);
    be_steps_poll(&s, 201);
    ck_assert_ptr_null(be_steps_launch(&s, UINT64_C(1) << 60, NULL));
    ck_assert(!b.ended);
    ended(launch, 200, 210);
    ck_assert(b.ended);
    ck_assert_int_eq(b.code, MLA_CANCELLED);
    ck_assert_uint_eq(b.step.layers_done, 2);
    be_steps_end(&s, &stop); /* of one that has ended: nothing */

    /* Behind the last launch nothing stops it. */
    c.step.deadline_ns = 5000;
    be_steps_begin(&s, &c.request);
    one_layer(&c, 0, 1000);
    one_layer(&c, 1, 2000);
    ready(&c, 2);
    be_steps_poll(&s, 4000);
    launch = be_steps_launch(&s, 4000, NULL);
    stop.step_end.step = &c.request;
    be_steps_end(&s, &stop);
    be_steps_poll(&s, 6000);
    ck_assert(!c.ended);
    ended(launch, 4000, 6000);
    ck_assert_int_eq(c.code, MLA_LATE);
    ck_assert_uint_eq(c.step.layers_done, 3);

    /* At a time of its own. */
    make(&a, 1, 1000);
    be_steps_begin(&s, &a.request);
    stop.step_end.step = &a.request;
    stop.step_end.code = MLA_DRAINING;
    stop.step_end.at_ns = 9000;
    be_steps_end(&s, &stop);
    one_layer(&a, 0, 8000);
    be_steps_poll(&s, 9000);
    ck_assert_int_eq(a.code, MLA_DRAINING);

    make(&b, 2, 1000);
    be_steps_begin(&s, &b.request);
    b.words[0] = 1 + ABORT;
    be_steps_poll(&s, 10000);
    ck_assert_int_eq(b.code, MLA_READY_ABORTED);
    end();
}
END_TEST

/* A layer in parts: the last one writes the done word; parts of others come between, and share launches. */
START_TEST(heavy_layers)
{
    uint64_t load_ns, rows = 0;
    start();
    a.step.part_max_ns = 1;
    a.step.n_parts = plan_parts(&a.step.plan, 1, &load_ns);
    ck_assert_uint_eq(a.step.n_parts, SEQS); /* a tile each */
    be_steps_begin(&s, &a.request);
    be_steps_begin(&s, &b.request);
    ready(&a, 0);
    be_steps_poll(&s, 1);
    be_steps_prepare(&s);
    struct be_request *first = be_steps_launch(&s, 1, NULL);
    ck_assert_uint_eq(first->batch->n_done, 0);
    ck_assert_uint_eq(first->batch->n_seqs, SEQS);
    rows += first->batch->plan->useful_rows;
    ready(&b, 0);
    be_steps_poll(&s, 2);
    ended(first, 1, 2);
    ck_assert_uint_eq(a.step.layers_done, 0);
    ck_assert_uint_eq(a.words[1], 0);
    struct be_request *second = be_steps_launch(&s, 3, NULL); /* with the other one's layer */
    ck_assert_uint_eq(second->batch->n_jobs, 2);
    ck_assert_uint_eq(second->batch->n_done, 2);
    rows += second->batch->plan->useful_rows - SEQS * 16;
    ended(second, 3, 4);
    ck_assert_uint_eq(rows, SEQS * 16);
    ck_assert_uint_eq(a.step.layers_done, 1);
    ck_assert_uint_eq(a.words[1], 1);
    ck_assert_uint_eq(a.step.layers_shared, 1);
    go_on_alone(&b, 1);

    /* Stopped between the parts of its last layer: that has not run. */
    for (uint32_t i = 0; i < 2; i++)
        for (ready(&a, 1), be_steps_poll(&s, 5); a.step.layers_done == 1;)
            ended(be_steps_launch(&s, 6, NULL), 6, 7);
    a.step.deadline_ns = 100;
    ready(&a, 2);
    be_steps_poll(&s, 99);
    ended(be_steps_launch(&s, 99, NULL), 99, 100);
    be_steps_poll(&s, 101);
    ck_assert(a.ended);
    ck_assert_int_eq(a.code, MLA_TIMED_OUT);
    ck_assert_uint_eq(a.step.layers_done, 2);

    /* Together no more than a launch may take. */
    make(&a, 1, 1000);
    make(&b, 2, 3000);
    a.step.part_load_ns = b.step.part_load_ns = 600;
    a.step.launch_max_ns = b.step.launch_max_ns = 1000;
    be_steps_begin(&s, &a.request);
    be_steps_begin(&s, &b.request);
    ready(&b, 0);
    be_steps_poll(&s, 200);
    ready(&a, 0);
    be_steps_poll(&s, 201);
    first = be_steps_launch(&s, 202, NULL);
    ck_assert_uint_eq(first->batch->n_jobs, 1);
    ck_assert_ptr_eq(first->batch->done[0].word, &b.words[1]);
    ended(first, 202, 203);
    ended(be_steps_launch(&s, 204, NULL), 204, 205);
    go_on_alone(&a, 1);
    go_on_alone(&b, 1);
    end();
}
END_TEST

static uint32_t fitted; /* jobs of the request, last */

/* Two jobs or more take other kernels than one. */
static void fit(const struct backend *backend, struct plan_request *request)
{
    (void)backend;
    fitted = request->n_jobs;
    request->device.rows_per_unit = fitted > 1 ? 64 : 128;
    request->device.resident_units = fitted > 1 ? 132 : 66;
}

/* Layers that share a launch are planned for the kernels that the backend takes them with, and each alone. */
START_TEST(kernels_of_those_that_share)
{
    start();
    s.fit = fit;
    be_steps_begin(&s, &a.request);
    be_steps_begin(&s, &b.request);
    ready(&a, 0);
    ready(&b, 0);
    be_steps_poll(&s, 1);
    struct be_request *launch = be_steps_launch(&s, 1, NULL);
    ck_assert_uint_eq(fitted, 2);
    ck_assert_uint_eq(launch->batch->n_jobs, 2);
    ck_assert_uint_eq(launch->batch->plan->rows_per_unit, 64);
    ended(launch, 2, 3);
    ready(&a, 1);
    be_steps_poll(&s, 4);
    launch = be_steps_launch(&s, 4, NULL);
    ck_assert_uint_eq(fitted, 1);
    ck_assert_uint_eq(launch->batch->plan->rows_per_unit, 128);
    ended(launch, 5, 6);
    go_on_alone(&a, 2);
    go_on_alone(&b, 1);
    end();
}
END_TEST

/* No plan: the step ends and says why. */
START_TEST(a_step_that_cannot_be_planned)
{
    start();
    a.step.plan.device.resident_units = 0;
    be_steps_begin(&s, &a.request);
    ck_assert_ptr_null(be_steps_prepare(&s));
    ready(&a, 0);
    be_steps_poll(&s, 1);
    ck_assert_ptr_null(be_steps_launch(&s, 1, NULL));
    ck_assert(a.ended);
    ck_assert_int_eq(a.code, MLA_INTERNAL);
    end();
}
END_TEST

/* More than a launch takes, more shapes than plans are kept for. */
START_TEST(many)
{
    enum { N = BE_STEPS_JOIN_MAX + 6 };
    struct worker *all = calloc(N, sizeof(*all));
    uint32_t shared = 0;
    start();
    ck_assert_ptr_nonnull(all);
    for (uint32_t i = 0; i < N; i++) {
        make(&all[i], 100 + i, 64 + 64 * i);
        be_steps_begin(&s, &all[i].request);
        ready(&all[i], 0);
    }
    be_steps_poll(&s, 1);
    while (s.n_ready != 0) {
        struct be_request *request = be_steps_launch(&s, s.expected_end_ns, NULL);
        ck_assert_ptr_nonnull(request);
        ck_assert_uint_le(request->batch->n_jobs, BE_STEPS_JOIN_MAX);
        shared += request->batch->n_jobs;
        be_steps_prepare(&s);
        ended(request, 1, 2);
    }
    ck_assert_uint_eq(shared, N);
    for (uint32_t i = 0; i < N; i++) {
        be_steps_prepare(&s);
        for (uint32_t k = 1; k < LAYERS; k++)
            one_layer(&all[i], k, s.expected_end_ns + 1000);
        ck_assert(all[i].ended);
    }
    end();
    free(all);
}
END_TEST

MLA_SUITE(be_steps)
{
    TCase *tc = mla_tcase_timeout(suite, "steps", 30);
    tcase_add_test(tc, layer_after_layer);
    tcase_add_test(tc, the_next_word_before_the_end);
    tcase_add_test(tc, those_that_meet);
    tcase_add_test(tc, plans_are_kept_and_launches_prepared);
    tcase_add_test(tc, deadlines_ends_and_abort_values);
    tcase_add_test(tc, heavy_layers);
    tcase_add_test(tc, kernels_of_those_that_share);
    tcase_add_test(tc, a_step_that_cannot_be_planned);
    tcase_add_test(tc, many);
}
