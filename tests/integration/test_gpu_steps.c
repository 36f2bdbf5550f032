/* Captured steps on a GPU: a worker's decode step of 24 layers is one CUDA graph, replayed with lengths and tables that
 * change on the device; and what becomes of its stream when something goes wrong. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/gpu_daemon.h"
#include "tests/support/step_graph.h"

/* Without MPS every hand-off is a context switch. */
#define REPLAYS        (gpu_is_fake() ? 24u : 1000u)
#define REPLAYS_OF_TWO (gpu_is_fake() ? 24u : 150u)
#define KERNEL_NS      2000 /* of the worker's own, per layer */

static struct daemon d;

/* In a worker's process. */
static struct mla_client *client;
static struct step_worker w;
static struct step_graph g;

static void begin(const char *name, uint64_t seed)
{
    struct worker_cuda *cuda = worker_cuda_start();
    client = worker_open(d.socket, name);
    ck_assert(mla_server(client)->features & MLA_FEATURE_STEP);
    step_worker_new(client, &w, STEP_LAYERS, seed);
    step_graph_new(&g, cuda, &w, KERNEL_NS);
}

static int end(void)
{
    step_graph_free(&g);
    step_worker_free(client, &w);
    mla_close(client);
    return 0;
}

static mla_request_id submit(const struct mla_step_args *args)
{
    mla_request_id request;
    worker_ok(client, mla_step_submit(w.tmpl, args, NULL, NULL, &request));
    worker_expect(client, mla_dispatch(client, 0), MLA_PENDING);
    return request;
}

/* STEP and graph in either order. */
static void replay(uint32_t i)
{
    uint32_t variant = i % STEP_VARIANTS;
    step_worker_fill(&w, variant);
    if (i % 2 == 0)
        step_graph_launch(&g);
    mla_request_id request = submit(NULL);
    if (i % 2 == 1)
        step_graph_launch(&g);
    step_graph_sync(&g);
    step_worker_check(&w, variant);
    step_worker_wait(&w, request, MLA_OK);
    ck_assert_uint_eq(w.result.layers_done, STEP_LAYERS);
}

struct work {
    uint32_t number, replays;
};

static int replays(struct peer *parent, void *arg)
{
    const struct work *work = arg;
    begin("replays", 10 + work->number);
    peer_tell(parent, 'r');
    peer_hear(parent, 'g');
    for (uint32_t i = 0; i < work->replays; i++)
        replay(i + work->number);
    return end();
}

START_TEST(one_graph_replayed)
{
    struct work work = {.replays = REPLAYS};
    struct peer peer;
    gpu_daemon_start(&d, "");
    struct mla_client *reader = worker_open(d.socket, "reader");
    peer_start(&peer, replays, &work);
    peer_hear(&peer, 'r');
    peer_tell(&peer, 'g');
    peer_end(&peer);
    ck_assert_double_eq(worker_metric(reader, "mlad_steps_total", "status=\"OK\""), REPLAYS);
    ck_assert_double_eq(worker_metric(reader, "mlad_step_layers_total", ""), REPLAYS * STEP_LAYERS);
    WAIT_FOR(worker_metric(reader, "mlad_mapped_bytes", "") == 0, 1000 * TEST_SLOW);
    ck_assert_str_eq(gpu_daemon_memory(&d), "");
    mla_close(reader);
    gpu_daemon_stop(&d, 0);
}
END_TEST

START_TEST(two_workers_at_once)
{
    struct work work[2] = {{0, REPLAYS_OF_TWO}, {1, REPLAYS_OF_TWO}};
    struct peer peers[2];
    gpu_daemon_start(&d, "");
    struct mla_client *reader = worker_open(d.socket, "reader");
    for (unsigned i = 0; i < 2; i++)
        peer_start(&peers[i], replays, &work[i]);
    for (unsigned i = 0; i < 2; i++)
        peer_hear(&peers[i], 'r');
    for (unsigned i = 0; i < 2; i++)
        peer_tell(&peers[i], 'g');
    for (unsigned i = 0; i < 2; i++)
        peer_end(&peers[i]);
    ck_assert_double_eq(worker_metric(reader, "mlad_steps_total", "status=\"OK\""), 2 * REPLAYS_OF_TWO);
    mla_close(reader);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* ---- meeting ---- */

#define MEETING 4u

/* Connections of one process. The words are host memory, so they need no stream. */
static struct step_worker four[MEETING];
static mla_request_id requests[MEETING];

static void begin_four(uint32_t n_layers)
{
    worker_cuda_start();
    client = worker_open(d.socket, "meeting");
    for (unsigned i = 0; i < MEETING; i++)
        step_worker_new(i == 0 ? client : worker_open(d.socket, "meeting"), &four[i], n_layers, 30 + i);
}

static void submit_four(uint32_t first_variant)
{
    for (unsigned i = 0; i < MEETING; i++) {
        struct mla_client *c = four[i].client;
        step_worker_fill(&four[i], (first_variant + i) % STEP_VARIANTS);
        worker_ops->push(&four[i].memory, four[i].device, 0, four[i].bytes);
        worker_ok(c, mla_step_submit(four[i].tmpl, NULL, NULL, NULL, &requests[i]));
        worker_expect(c, mla_dispatch(c, 0), MLA_PENDING);
    }
}

static void check_four(uint32_t first_variant)
{
    for (unsigned i = 0; i < MEETING; i++) {
        step_worker_wait(&four[i], requests[i], MLA_OK);
        worker_ops->pull(&four[i].memory, four[i].device, four[i].o_at, four[i].bytes - four[i].o_at);
        step_worker_check(&four[i], (first_variant + i) % STEP_VARIANTS);
    }
}

static int end_four(void)
{
    for (unsigned i = 0; i < MEETING; i++) {
        struct mla_client *c = four[i].client;
        step_worker_free(c, &four[i]);
        mla_close(c);
    }
    return 0;
}

/* Four steps whose first layers are ready one after the other while the device does not get on. Two launches are under
 * way, the rest gathers and shares the third. */
static int four_meet(struct peer *parent, void *arg)
{
    (void)parent;
    (void)arg;
    begin_four(2);
    submit_four(0);
    char rule[160];
    snprintf(rule, sizeof(rule), "kernel=hold %s", gpu_gate());
    gpu_daemon_rules(rule);
    for (unsigned i = 0; i < MEETING; i++) {
        mla_word_store(step_ready(&four[i], 0), 1);
        WAIT_FOR(mla_word_load(step_ready(&four[i], 0)) == 0, 5000 * TEST_SLOW); /* seen */
        test_sleep_us(20000);
    }
    gpu_gate_open();
    for (unsigned i = 0; i < MEETING; i++)
        WAIT_FOR(mla_word_load(step_done(&four[i], 0)) == 1, 20000 * TEST_SLOW);
    for (unsigned i = 0; i < MEETING; i++)
        ck_assert(step_worker_stream(&four[i], 1, 2));
    check_four(0);
    for (unsigned i = 0; i < MEETING; i++)
        ck_assert_uint_eq(four[i].result.layers_shared, i >= 2);
    return end_four();
}

START_TEST(layers_that_meet_share_a_launch)
{
    struct peer peer;
    if (!gpu_is_fake())
        return; /* nothing holds a real device up: layers_written_together_share_launches() */
    gpu_daemon_start(&d, "");
    peer_start(&peer, four_meet, NULL);
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

#define ROUND_LAYERS 8u
#define STEPS_MOST   200u

/* A layer's ready words are written together, each time by another one first: the others' are there before the daemon
 * has launched that layer, or at its next look, unless this process is stopped in between. Of so many rounds that is
 * not always so: until each has shared a launch. */
static int four_write_together(struct peer *parent, void *arg)
{
    uint32_t *n_steps = arg, shared[MEETING] = {0}, left = MEETING, step = 0;
    (void)parent;
    begin_four(ROUND_LAYERS);
    for (; left > 0; step++) {
        ck_assert_msg(step < STEPS_MOST, "%u of %u never shared a launch", left, MEETING);
        submit_four(step);
        for (uint32_t layer = 0; layer < ROUND_LAYERS; layer++) {
            for (uint32_t i = 0; i < MEETING; i++)
                mla_word_store(step_ready(&four[(layer + i) % MEETING], layer), 1);
            for (uint32_t i = 0; i < MEETING; i++)
                WAIT_FOR(mla_word_load(step_done(&four[i], layer)) == 1, 20000 * TEST_SLOW);
        }
        check_four(step);
        left = 0;
        for (uint32_t i = 0; i < MEETING; i++) {
            ck_assert_uint_le(four[i].result.layers_shared, ROUND_LAYERS);
            shared[i] += four[i].result.layers_shared;
            left += shared[i] == 0;
        }
    }
    *n_steps = step;
    return end_four();
}

START_TEST(layers_written_together_share_launches)
{
    struct peer peer;
    uint32_t *n_steps = mmap(NULL, sizeof(*n_steps), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(n_steps != MAP_FAILED);
    gpu_daemon_start(&d, "");
    struct mla_client *reader = worker_open(d.socket, "reader");
    peer_start(&peer, four_write_together, n_steps);
    peer_end(&peer);
    double layers = worker_metric(reader, "mlad_step_layers_total", "");
    ck_assert_double_eq(layers, *n_steps * MEETING * ROUND_LAYERS);
    ck_assert_double_lt(worker_metric(reader, "mlad_step_launches_total", ""), layers);
    mla_close(reader);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* ---- the end of a step before its time ---- */

static void expect_aborted(void)
{
    for (uint32_t i = 0; i < STEP_LAYERS; i++)
        ck_assert_msg(mla_word_load(step_done(&w, i)) == 1 + MLA_ABORT_OFFSET, "layer %u is not aborted", i);
}

static uint64_t status_of(uint32_t layer, uint32_t sequence)
{
    uint64_t word;
    memcpy(&word, (uint8_t *)w.memory.addr + w.status_at + layer * STEP_STATUS_BYTES + 8 * sequence, sizeof(word));
    return word;
}

/* The stream has gone through; a new template on the same words, and all is as before. */
static void open_anew(void)
{
    worker_expect(client, mla_step(w.tmpl, NULL, 0, NULL), MLA_NOT_FOUND);
    worker_ok(client, mla_template_close(w.tmpl, WORKER_TIMEOUT_US));
    step_worker_open(&w);
    replay(1);
}

static int goes_wrong(struct peer *parent, void *arg)
{
    struct mla_step_args args;
    (void)parent;
    (void)arg;
    begin("wrong", 40);
    uint32_t half = step_graph_gated(&g);

    /* A length above its bound: of one sequence, in all layers. */
    int32_t *kv_len = (int32_t *)(void *)((uint8_t *)w.memory.addr + STEP_KV_LEN_AT);
    step_worker_fill(&w, 0);
    kv_len[1] = STEP_KV_MAX + 1;
    mla_request_id request = submit(NULL);
    step_graph_launch(&g);
    step_graph_sync(&g);
    step_worker_wait(&w, request, MLA_PARTIAL);
    ck_assert_uint_eq(w.result.n_faults, STEP_LAYERS);
    ck_assert_uint_eq(w.result.faults[7].layer, 7);
    ck_assert_uint_eq(w.result.faults[7].sequence, 1);
    ck_assert_int_eq(w.result.faults[7].status, MLA_KV_LEN_OUT_OF_RANGE);
    ck_assert_uint_eq(status_of(7, 0), 0);
    ck_assert_uint_eq(status_of(7, 1) >> 32, MLA_KV_LEN_OUT_OF_RANGE);
    replay(0);

    /* The stream stops half way: the step's deadline passes. */
    mla_step_args_init(&args);
    args.deadline_us = 100000 * TEST_SLOW;
    step_graph_gate(&g, false);
    request = submit(&args);
    step_graph_launch(&g);
    step_graph_launch(&g); /* one more behind it, which goes through as well */
    step_graph_await_gate(&g);
    step_worker_wait(&w, request, MLA_TIMED_OUT);
    ck_assert_uint_eq(w.result.layers_done, half);
    expect_aborted();
    step_graph_gate(&g, true);
    step_graph_sync(&g);
    open_anew();

    /* Cancelled there. */
    step_graph_gate(&g, false);
    request = submit(NULL);
    step_graph_launch(&g);
    step_graph_await_gate(&g);
    worker_ok(client, mla_cancel(client, request));
    step_worker_wait(&w, request, MLA_CANCELLED);
    ck_assert_uint_eq(w.result.layers_done, half);
    step_graph_gate(&g, true);
    step_graph_sync(&g);
    ck_assert_uint_eq(status_of(half, 0), (uint64_t)MLA_CANCELLED << 32);
    open_anew();

    /* A region that has gone: refused, and the graph that was launched goes through. */
    worker_ok(client, mla_region_unregister(client, w.region, WORKER_TIMEOUT_US));
    step_graph_launch(&g);
    request = submit(NULL);
    step_worker_wait(&w, request, MLA_NOT_FOUND);
    expect_aborted();
    step_graph_sync(&g);
    worker_ok(client, worker_ops->share(client, &w.memory, w.device, MLA_ACCESS_READ_WRITE, "again", &w.region));
    return end();
}

START_TEST(faults)
{
    struct peer peer;
    gpu_daemon_start(&d, "");
    peer_start(&peer, goes_wrong, NULL);
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* Stands half way through a step, and says so. */
static int stops_half_way(struct peer *parent, void *arg)
{
    (void)arg;
    begin("half", 50);
    replay(0);
    step_graph_gate(&g, false);
    mla_request_id request = submit(NULL);
    step_graph_launch(&g);
    step_graph_launch(&g); /* and one more behind it */
    step_graph_await_gate(&g);
    peer_tell(parent, 'h');
    peer_hear(parent, 'k'); /* or killed here */
    uint64_t killed = test_now_us();
    step_graph_gate(&g, true);
    step_graph_sync(&g); /* nothing of the library is called: its watcher does it */
    uint64_t took = test_now_us() - killed;
    ck_assert_msg(took < 100000 * TEST_SLOW, "the stream is released after %llu us", (unsigned long long)took);
    step_worker_wait(&w, request, MLA_DISCONNECTED);
    ck_assert_uint_eq(w.result.layers_done, 0); /* nobody has said */
    for (uint32_t i = 0; i < STEP_LAYERS; i++)  /* that before the gate was done, and nobody has taken it back */
        ck_assert(mla_word_aborted(mla_word_load(step_done(&w, i)), 1) == (i + 1 != step_graph_gated(&g)));
    step_graph_free(&g);
    mla_close(client);
    step_worker_free(NULL, &w);
    return 0;
}

START_TEST(daemon_killed_half_way)
{
    struct peer peer;
    gpu_daemon_start(&d, "");
    peer_start(&peer, stops_half_way, NULL);
    peer_hear(&peer, 'h');
    daemon_kill(&d);
    peer_tell(&peer, 'k');
    peer_end(&peer);
    gpu_daemon_stop(&d, 137);
}
END_TEST

START_TEST(worker_killed_half_way)
{
    struct work work = {.replays = 6};
    struct peer peer, other;
    gpu_daemon_start(&d, "");
    struct mla_client *reader = worker_open(d.socket, "reader");
    peer_start(&peer, stops_half_way, NULL);
    peer_hear(&peer, 'h');
    peer_kill(&peer);
    WAIT_FOR(gpu_clients(reader) == 1 && worker_metric(reader, "mlad_mapped_bytes", "") == 0, 1000 * TEST_SLOW);
    ck_assert_double_eq(worker_metric(reader, "mlad_steps_total", "status=\"DISCONNECTED\""), 1);
    ck_assert_str_eq(gpu_daemon_memory(&d), "");
    peer_start(&other, replays, &work); /* the next one is none the worse */
    peer_hear(&other, 'r');
    peer_tell(&other, 'g');
    peer_end(&other);
    mla_close(reader);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* The stream stands in front of a layer whose kernels may be on the daemon's already. */
static int is_drained(struct peer *parent, void *arg)
{
    (void)arg;
    begin("drained", 55);
    replay(0);
    step_graph_gate(&g, false);
    mla_request_id request = submit(NULL);
    step_graph_launch(&g);
    step_graph_await_gate(&g);
    peer_tell(parent, 'h');
    step_worker_wait(&w, request, MLA_DRAINING);
    ck_assert_uint_eq(w.result.layers_done, step_graph_gated(&g));
    for (uint32_t i = step_graph_gated(&g); i < STEP_LAYERS; i++)
        ck_assert_msg(mla_word_aborted(mla_word_load(step_done(&w, i)), 1), "layer %u is not aborted", i);
    step_graph_gate(&g, true);
    step_graph_sync(&g);
    step_graph_free(&g);
    mla_close(client);
    step_worker_free(NULL, &w);
    return 0;
}

START_TEST(daemon_drained_half_way)
{
    struct peer peer;
    gpu_daemon_start(&d, "");
    struct mla_client *admin = worker_open(d.socket, "admin");
    peer_start(&peer, is_drained, NULL);
    peer_hear(&peer, 'h');
    const uint64_t deadline_us = 300000;
    worker_ok(admin, mla_drain(admin, &deadline_us, WORKER_TIMEOUT_US, NULL));
    peer_end(&peer);
    mla_close(admin);
    ck_assert_msg(daemon_ended(&d, 5000 * TEST_SLOW), "the daemon goes on");
    ck_assert_int_eq(d.exit_code, 0);
    gpu_daemon_stop(&d, 0);
}
END_TEST

static int loses_the_device(struct peer *parent, void *arg)
{
    (void)arg;
    begin("loses", 60);
    replay(0);
    step_graph_gate(&g, false);
    mla_request_id request = submit(NULL);
    step_graph_launch(&g);
    step_graph_await_gate(&g);
    peer_tell(parent, 'h');
    peer_hear(parent, 'g');
    step_graph_gate(&g, true);
    step_graph_sync(&g);
    step_worker_wait(&w, request, MLA_DEVICE_LOST);
    expect_aborted();
    step_graph_free(&g);
    mla_close(client);
    step_worker_free(NULL, &w);
    return 0;
}

START_TEST(device_lost_half_way)
{
    struct peer peer;
    if (!gpu_is_fake())
        return;
    gpu_daemon_start(&d, "");
    peer_start(&peer, loses_the_device, NULL);
    peer_hear(&peer, 'h');
    gpu_daemon_rules("kernel=lose ILLEGAL_ADDRESS");
    peer_tell(&peer, 'g');
    peer_end(&peer);
    ck_assert_msg(daemon_ended(&d, 20000 * TEST_SLOW), "the daemon goes on");
    ck_assert_int_eq(d.exit_code, 3);
    gpu_daemon_stop(&d, 3);
}
END_TEST

MLA_SUITE(gpu_steps)
{
    TCase *tc = mla_tcase_timeout(suite, "steps", 60);
    tcase_add_test(tc, one_graph_replayed);
    tcase_add_test(tc, two_workers_at_once);
    tcase_add_test(tc, layers_that_meet_share_a_launch);
    tcase_add_test(tc, layers_written_together_share_launches);
    tcase_add_test(tc, faults);
    tcase_add_test(tc, daemon_killed_half_way);
    tcase_add_test(tc, worker_killed_half_way);
    tcase_add_test(tc, daemon_drained_half_way);
    tcase_add_test(tc, device_lost_half_way);
}
