/* Captured steps and eager batches on one device, in virtual time: whose turn it is. A step worker's next layer is
 * ready when its own kernels have run behind the layer before; of the eager clients one batch waits while one runs, as
 * the scheduler has it. The device runs what it is given in order. */
#include <stdlib.h>
#include <string.h>

#include "daemon/backend/steps.h"
#include "tests/support/check_main.h"

#define LAYERS  4u
#define US      UINT64_C(1000)
#define TICK_NS UINT64_C(5000)
#define OWN_NS  (20 * US) /* a worker's own kernels */
#define LEAD_NS (75 * US) /* of the scheduler */
#define MOST    12u       /* clients of a kind */
#define QUEUE   16u

struct worker {
    char name;
    bool there;
    struct be_flow flow;
    struct be_request request;
    struct be_step step;
    struct be_layer layers[LAYERS];
    struct mla_abi_seq seq;
    struct plan_seq plan_seq;
    struct plan_job job;
    uint64_t words[2 * LAYERS], status[LAYERS];
    uint32_t next;     /* the layer whose word is to come */
    uint64_t ready_at; /* 0: it has come */
    uint64_t waited_most_ns, had_ns;
};

struct eager {
    char name;
    bool there;
    uint32_t weight;
    uint64_t load_ns;
    uint64_t tag, had_ns; /* tag: the scheduler's */
};

static struct be_facts facts;
static struct be_steps s;
static struct worker workers[MOST];
static struct eager eagers[MOST];
static uint64_t now, layer_ns;
static struct {
    struct be_request *step;
    struct eager *eager;
    uint64_t end;
} queue[QUEUE];
static uint32_t n_queued;
static struct eager *waiting;
static uint64_t last_eager_end; /* as the scheduler expects it */
static char order[4096];
static size_t n_order;

/* ---- the clients ---- */

static void begin_step(struct worker *w)
{
    w->request = (struct be_request){.op = BE_STEP, .user = w, .step = &w->step};
    w->next = 0;
    w->ready_at = now + OWN_NS;
    be_steps_begin(&s, &w->request);
}

static void on_done(void *context, struct be_request *request, enum mla_status code)
{
    (void)context;
    struct worker *w = request->user;
    ck_assert_int_eq(code, MLA_OK);
    if (w->there)
        begin_step(w);
}

static void nobody(void *context, struct be_request *request, enum mla_status code)
{
    (void)context;
    (void)request;
    (void)code;
}

/* Of a launch of one layer. */
static uint64_t predicted(struct worker *w)
{
    static struct be_steps alone;
    be_steps_init(&alone, &facts, NULL, NULL, nobody, NULL);
    w->request = (struct be_request){.op = BE_STEP, .step = &w->step};
    be_steps_begin(&alone, &w->request);
    w->words[0] = 1;
    be_steps_poll(&alone, 1);
    const struct be_request *request = be_steps_launch(&alone, 1, NULL);
    ck_assert_ptr_nonnull(request);
    uint64_t ns = request->batch->plan->predicted_ns;
    be_steps_free(&alone);
    memset(&w->flow, 0, sizeof(w->flow));
    return ns;
}

/* Layers of layer_ns. */
static struct worker *worker(uint32_t i, uint32_t weight)
{
    struct worker *w = &workers[i];
    *w = (struct worker){.name = (char)('a' + i), .there = true};
    for (uint32_t k = 0; k < LAYERS; k++) {
        w->layers[k] = (struct be_layer){
            .ready = &w->words[2 * k], .done = &w->words[2 * k + 1], .ready_value = 1, .done_value = 1};
        w->layers[k].job = (struct mla_abi_job){.heads = 16, .n_seqs = 1, .pages_per_entry = 1};
        w->layers[k].job.status = (uint64_t)(uintptr_t)&w->status[k];
    }
    w->seq = (struct mla_abi_seq){.q_len = 4, .kv_len_max = 1u << 20};
    w->plan_seq = (struct plan_seq){.q_len = 4, .kv_len = 1u << 20};
    w->job = (struct plan_job){.n_seqs = 1, .mask = MLA_ABI_MASK_CAUSAL};
    w->step = (struct be_step){.layers = w->layers,
                               .n_layers = LAYERS,
                               .seqs = &w->seq,
                               .shape = 1,
                               .compat = i, /* each launch is of one worker */
                               .flow = &w->flow,
                               .weight = weight};
    w->step.plan = (struct plan_request){.device = facts.device,
                                         .costs = facts.costs,
                                         .policy = PLAN_AUTO,
                                         .tile_rows = facts.tile_rows,
                                         .heads = 16,
                                         .jobs = &w->job,
                                         .seqs = &w->plan_seq,
                                         .n_jobs = 1,
                                         .n_seqs = 1};
    layer_ns = w->step.part_load_ns = predicted(w);
    begin_step(w);
    return w;
}

static struct eager *eager(uint32_t i, uint32_t weight, uint64_t load_ns)
{
    struct eager *e = &eagers[i];
    *e = (struct eager){.name = (char)('A' + i), .there = true, .weight = weight, .load_ns = load_ns};
    return e;
}

static void start(void)
{
    memset(&facts, 0, sizeof(facts));
    memset(workers, 0, sizeof(workers));
    memset(eagers, 0, sizeof(eagers));
    memset(order, 0, sizeof(order));
    n_order = n_queued = 0;
    waiting = NULL;
    now = last_eager_end = 0;
    ck_assert_int_eq(plan_device_preset("h200", &facts.device, &facts.costs), 0);
    facts.tile_rows = MLA_ABI_TILE_ROWS;
    facts.workspace_bytes = 64u << 20;
    be_steps_init(&s, &facts, NULL, NULL, on_done, NULL);
}

/* ---- the device ---- */

static uint64_t free_at(void)
{
    return n_queued > 0 ? queue[n_queued - 1].end : now;
}

static void put(char name, struct be_request *step, struct eager *e, uint64_t ns)
{
    ck_assert_uint_lt(n_queued, QUEUE);
    queue[n_queued].end = free_at() + ns;
    queue[n_queued].step = step;
    queue[n_queued++].eager = e;
    if (n_order < sizeof(order) - 1)
        order[n_order++] = name;
}

static void end_layer(struct be_request *request, uint64_t end)
{
    struct be_batch *batch = request->batch;
    batch->ended_ns = end;
    batch->started_ns = end - layer_ns;
    *batch->done[0].word = 1;
    for (uint32_t i = 0; i < MOST; i++) {
        struct worker *w = &workers[i];
        if (batch->done[0].word != &w->words[2 * w->next + 1])
            continue;
        w->had_ns += layer_ns;
        if (++w->next < LAYERS)
            w->ready_at = end + OWN_NS;
        break;
    }
    be_steps_launch_ended(&s, request);
}

static void end_some(void)
{
    while (n_queued > 0 && queue[0].end <= now) {
        struct be_request *step = queue[0].step;
        struct eager *e = queue[0].eager;
        uint64_t end = queue[0].end;
        memmove(queue, queue + 1, --n_queued * sizeof(queue[0]));
        if (step) {
            end_layer(step, end);
        } else {
            e->had_ns += e->load_ns;
        }
    }
}

static bool eager_under_way(void)
{
    for (uint32_t i = 0; i < n_queued; i++)
        if (queue[i].eager)
            return true;
    return false;
}

/* The scheduler's next, by weight among the eager clients, shortly before the end of the one that runs. */
static void arrive(void)
{
    if (waiting || (eager_under_way() && now + LEAD_NS < last_eager_end))
        return;
    struct eager *best = NULL;
    for (uint32_t i = 0; i < MOST; i++)
        if (eagers[i].there && (!best || eagers[i].tag < best->tag))
            best = &eagers[i];
    waiting = best;
    if (best)
        best->tag += best->load_ns / best->weight;
}

static void words(void)
{
    for (uint32_t i = 0; i < MOST; i++) {
        struct worker *w = &workers[i];
        if (w->ready_at != 0 && w->ready_at <= now) {
            w->words[2 * w->next] = 1;
            w->ready_at = 0;
        }
    }
}

static uint32_t weight_of_all(void)
{
    uint32_t weight = 0;
    for (uint32_t i = 0; i < MOST; i++)
        weight += eagers[i].there ? eagers[i].weight : 0;
    return weight;
}

/* As a GPU thread does it. */
static void serve(void)
{
    be_steps_poll(&s, now);
    struct be_steps_others others = {.waiting = waiting != NULL, .under_way = eager_under_way(), .free_ns = free_at()};
    struct be_request *request = be_steps_launch(&s, now, &others);
    if (request) {
        uint32_t index;
        struct worker *w = be_steps_batch_of(&s, request, &index)->set.members[0]->own.request->user;
        uint64_t waited = free_at() - w->step.own.ready_ns;
        w->waited_most_ns = waited > w->waited_most_ns ? waited : w->waited_most_ns;
        put(w->name, request, NULL, layer_ns);
    } else if (waiting && !be_steps_go_first(&s, now, &others)) {
        struct plan plan = {.predicted_ns = waiting->load_ns};
        struct be_batch batch = {.plan = &plan, .weight = weight_of_all()};
        be_steps_others_begin(&s, &batch);
        last_eager_end = free_at() + waiting->load_ns;
        put(waiting->name, NULL, waiting, waiting->load_ns);
        waiting = NULL;
    }
}

static void pass(uint64_t ns)
{
    for (uint64_t until = now + ns; now < until; now += TICK_NS) {
        end_some();
        words();
        arrive();
        serve();
        serve();
    }
}

static void begins_with(const char *want)
{
    ck_assert_msg(strncmp(order, want, strlen(want)) == 0, "%.60s instead of %s", order, want);
}

/* From here on. */
static void forget_order(void)
{
    memset(order, 0, sizeof(order));
    n_order = 0;
}

static double share(uint64_t had_ns, uint64_t of_ns)
{
    return (double)had_ns / (double)of_ns;
}

static void end(void)
{
    for (uint32_t i = 0; i < MOST; i++)
        workers[i].there = eagers[i].there = false;
    be_steps_free(&s);
}

/* ---- stories ---- */

/* Nobody else is there: layer after layer, each as soon as its word has come. */
START_TEST(a_worker_alone)
{
    start();
    struct worker *a = worker(0, 1);
    pass(50 * layer_ns);
    begins_with("aaaaaaaaaaaaaaaa");
    ck_assert_uint_le(a->waited_most_ns, TICK_NS);
    end();
}
END_TEST

/* Equal weights, equal launches: in turn. */
START_TEST(equals_take_turns)
{
    start();
    struct worker *a = worker(0, 1);
    struct eager *A = eager(0, 1, layer_ns);
    pass(400 * layer_ns);
    begins_with("AaAaAaAaAaAaAa");
    ck_assert_double_eq_tol(share(a->had_ns, A->had_ns), 1, 0.02);
    ck_assert_uint_le(a->waited_most_ns, layer_ns);
    end();
}
END_TEST

/* A batch of an eager client that weighs three times as much comes three times as often as a layer of the same size,
 * which waits for two of them: it has had its share. The device has no pause. */
START_TEST(a_heavy_eager_client)
{
    start();
    struct worker *a = worker(0, 1);
    struct eager *A = eager(0, 3, layer_ns);
    pass(400 * layer_ns);
    begins_with("AaAAAaAAAaAAAaAAAa");
    ck_assert_double_eq_tol(share(A->had_ns, a->had_ns), 3, 0.05);
    ck_assert_double_ge(share(A->had_ns + a->had_ns, now), 0.98);
    end();
}
END_TEST

/* A worker that weighs more has one layer at a time, and the device does not stand still until the next one's word
 * comes. But it waits for nothing more than the batch that runs. */
START_TEST(a_heavy_worker)
{
    start();
    struct worker *a = worker(0, 3);
    struct eager *A = eager(0, 1, layer_ns);
    pass(400 * layer_ns);
    begins_with("AaAaAaAaAa");
    ck_assert_uint_le(a->waited_most_ns, layer_ns);
    ck_assert_double_eq_tol(share(a->had_ns, A->had_ns), 1, 0.02);
    end();
}
END_TEST

/* Batches twenty times as long as a layer: the worker never has its share, so its layers never wait for more than the
 * one that runs. */
START_TEST(small_layers_pass_long_batches)
{
    start();
    struct worker *a = worker(0, 1);
    struct eager *A = eager(0, 1, 20 * layer_ns), *B = eager(1, 1, 20 * layer_ns);
    pass(2000 * layer_ns);
    begins_with("AaBaAaBaAaBa");
    ck_assert_uint_le(a->waited_most_ns, 20 * layer_ns);
    ck_assert_double_eq_tol(share(A->had_ns, B->had_ns), 1, 0.05);
    end();
}
END_TEST

/* Long layers beside batches of a tenth of their time: ten of these pass for each layer. */
START_TEST(long_layers_let_small_batches_pass)
{
    start();
    struct worker *a = worker(0, 1);
    struct eager *A = eager(0, 1, layer_ns / 10);
    pass(400 * layer_ns);
    begins_with("AAAaAAAAAAAAA");
    ck_assert_double_eq_tol(share(A->had_ns, a->had_ns), 1, 0.06);
    end();
}
END_TEST

/* Three workers and two eager clients that weigh one, two, one, two and four: all of them have something to do at any
 * time, or nearly. */
START_TEST(many_of_both_by_weight)
{
    static const uint32_t weights[] = {1, 2, 1, 2, 4};
    start();
    for (uint32_t i = 0; i < 3; i++)
        worker(i, weights[i]);
    for (uint32_t i = 0; i < 2; i++)
        eager(i, weights[3 + i], layer_ns / 2);
    pass(4000 * layer_ns);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_double_eq_tol(share(workers[i].had_ns, now), weights[i] / 10.0, 0.02);
    for (uint32_t i = 0; i < 2; i++)
        ck_assert_double_eq_tol(share(eagers[i].had_ns, now), weights[3 + i] / 10.0, 0.03);
    end();
}
END_TEST

/* Twelve workers that weigh a hundred times as much, always some of them ready: the eager client has its part in 1,201
 * all the same; and the other way round. */
START_TEST(nobody_starves)
{
    start();
    for (uint32_t i = 0; i < MOST; i++)
        worker(i, _i == 0 ? 100 : 1);
    struct eager *A = eager(0, _i == 0 ? 1 : 100, layer_ns);
    pass(6000 * layer_ns);
    if (_i == 0)
        ck_assert_double_eq_tol(share(A->had_ns, now), 1 / 1201.0, 1 / 1201.0);
    ck_assert_uint_ge(A->had_ns, 4 * layer_ns);
    for (uint32_t i = 0; i < MOST; i++)
        ck_assert_uint_ge(workers[i].had_ns, (_i == 0 ? 450 : 40) * layer_ns);
    end();
}
END_TEST

/* Who comes has no claim to what was had while it was away, and who was there has no debt from then. */
START_TEST(who_comes_back)
{
    start();
    worker(0, 1);
    pass(200 * layer_ns);
    forget_order();
    struct eager *A = eager(0, 1, layer_ns);
    pass(20 * layer_ns);
    ck_assert_ptr_nonnull(strstr(order, "AaAaAaAaAaAaAa"));
    ck_assert_ptr_null(strstr(order, "AA"));
    A->there = false;
    pass(200 * layer_ns);
    forget_order();
    A->there = true;
    pass(20 * layer_ns);
    ck_assert_ptr_nonnull(strstr(order, "AaAaAaAaAaAaAa"));
    ck_assert_ptr_null(strstr(order, "AA"));
    end();
}
END_TEST

/* Workers among themselves: the lighter one is ready, too, and lets the other go first until it is its turn. */
START_TEST(workers_by_weight)
{
    start();
    for (uint32_t i = 0; i < 6; i++)
        worker(i, i < 3 ? 1 : 3);
    pass(3000 * layer_ns);
    for (uint32_t i = 0; i < 6; i++)
        ck_assert_double_eq_tol(share(workers[i].had_ns, now), i < 3 ? 1 / 12.0 : 3 / 12.0, 0.02);
    end();
}
END_TEST

MLA_SUITE(steps_turns)
{
    TCase *tc = mla_tcase(suite, "turns");
    tcase_add_test(tc, a_worker_alone);
    tcase_add_test(tc, equals_take_turns);
    tcase_add_test(tc, a_heavy_eager_client);
    tcase_add_test(tc, a_heavy_worker);
    tcase_add_test(tc, small_layers_pass_long_batches);
    tcase_add_test(tc, long_layers_let_small_batches_pass);
    tcase_add_test(tc, many_of_both_by_weight);
    tcase_add_loop_test(tc, nobody_starves, 0, 2);
    tcase_add_test(tc, who_comes_back);
    tcase_add_test(tc, workers_by_weight);
}
