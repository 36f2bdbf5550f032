/* Faults of the device: one that the daemon's own work meets, and illegal accesses of a worker, which touch nobody else
 * when processes are isolated and everybody under one MPS server. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/app/app.h"
#include "tests/support/check_main.h"
#include "tests/support/gpu_daemon.h"
#include "tests/support/worker_cuda.h"

#define NOWHERE UINT64_C(0x10) /* no allocation lies there */

static struct daemon d;

/* ---- workers ---- */

struct decoder {
    struct mla_client *client;
    struct worker_pool pool;
    struct worker_job job;
};

static struct worker_cuda *decoder_open(struct decoder *w, const char *name)
{
    struct worker_cuda *cuda = worker_cuda_start();
    w->client = worker_open(d.socket, name);
    worker_pool_new(w->client, &w->pool, 8, 3);
    worker_job_new(w->client, &w->job, w->pool.cache, w->pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 32, .q_len = {4}, .kv_len = {400}, .head_step = 7, .seed = 8});
    worker_job_run(&w->job);
    worker_job_check(&w->job);
    return cuda;
}

/* Decodes until told to end, and every answer is right. */
static int unharmed(struct peer *parent, void *arg)
{
    struct decoder w;
    (void)arg;
    decoder_open(&w, "unharmed");
    peer_tell(parent, 'r');
    peer_hear(parent, 'g');
    for (unsigned i = 0; i < 30; i++) {
        worker_job_run(&w.job);
        worker_job_check(&w.job);
        test_sleep_us(10000);
    }
    worker_job_free(w.client, &w.job);
    worker_pool_free(w.client, &w.pool);
    mla_close(w.client);
    return 0;
}

/* Decodes until the device is lost: that comes as DEVICE_LOST, whether asked for with a job in flight or after it. */
static int until_lost(struct peer *parent, void *arg)
{
    struct decoder w;
    bool context_dies = *(const bool *)arg;
    struct worker_cuda *cuda = decoder_open(&w, "until lost");
    enum mla_status status;
    peer_tell(parent, 'r');
    peer_hear(parent, 'g');
    uint64_t limit = test_now_us() + UINT64_C(30000000) * TEST_SLOW;
    do {
        mla_decode_result_init(&w.job.result);
        status = mla_decode(w.client, &w.job.args, WORKER_TIMEOUT_US, &w.job.result);
        ck_assert_msg(test_now_us() < limit, "the device is not lost");
    } while (status == MLA_OK);
    ck_assert_msg(status == MLA_DEVICE_LOST, "%s: %s", mla_errname(status), mla_last_error(w.client)->text);
    ck_assert_int_eq(mla_decode(w.client, &w.job.args, WORKER_TIMEOUT_US, NULL), MLA_DISCONNECTED);
    if (context_dies)
        ck_assert_int_ne(cuda->cu.cuStreamSynchronize(cuda->stream), CUDA_SUCCESS);
    mla_close(w.client);
    return 0;
}

/* Has its memory registered, reads where nothing is, and sees its context die. */
static int culprit(struct peer *parent, void *arg)
{
    struct decoder w;
    (void)arg;
    struct worker_cuda *cuda = decoder_open(&w, "culprit");
    worker_cuda_spin(cuda, cuda->stream, 1000);
    CU_OK(cuda, cuStreamSynchronize(cuda->stream));
    peer_tell(parent, 'r');
    peer_hear(parent, 'g');
    worker_cuda_read(cuda, cuda->stream, NOWHERE);
    CUresult result = cuda->cu.cuStreamSynchronize(cuda->stream);
    ck_assert_msg(result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_LAUNCH_FAILED, "the context lives: %s",
                  cuda_driver_error(&cuda->cu, result));
    ck_assert_int_ne(cuda->cu.cuStreamSynchronize(cuda->stream), CUDA_SUCCESS);
    mla_close(w.client);
    return 0;
}

static void decoding_works(void)
{
    struct peer peer;
    peer_start(&peer, unharmed, NULL);
    peer_hear(&peer, 'r');
    peer_tell(&peer, 'g');
    peer_end(&peer);
}

/* ---- a worker's illegal access ---- */

START_TEST(isolated_nobody_notices)
{
    struct peer good, bad;
    gpu_daemon_start(&d, "");
    struct mla_client *reader = worker_open(d.socket, "reader");
    ck_assert_str_eq(mla_server(reader)->isolation, "isolated");
    peer_start(&good, unharmed, NULL);
    peer_start(&bad, culprit, NULL);
    peer_hear(&good, 'r');
    peer_hear(&bad, 'r');
    peer_tell(&good, 'g');
    peer_tell(&bad, 'g');
    peer_end(&bad);
    peer_end(&good);
    WAIT_FOR(gpu_clients(reader) == 1, 1000 * TEST_SLOW);
    ck_assert_double_eq(worker_metric(reader, "mlad_mapped_bytes", ""), 0);
    ck_assert_str_eq(gpu_daemon_memory(&d), "");
    decoding_works();
    mla_close(reader);
    gpu_daemon_stop(&d, 0);
}
END_TEST

static int context_opens(void *arg)
{
    struct cuda_driver cu;
    CUcontext context;
    CUdevice device;
    char why[256];
    (void)arg;
    return cuda_driver_open(NULL, &cu, why, sizeof(why)) == 0 && cu.cuDeviceGet(&device, 0) == CUDA_SUCCESS &&
                   cu.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS
               ? 0
               : 1;
}

/* Every process of the server gets its error; when all have left and come again, decoding works. */
START_TEST(shared_everybody_is_told)
{
    bool context_dies = true;
    struct peer good, bad;
    gpu_daemon_start(&d, "");
    struct mla_client *reader = worker_open(d.socket, "reader");
    ck_assert_str_eq(mla_server(reader)->isolation, "shared");
    mla_close(reader);
    peer_start(&good, until_lost, &context_dies);
    peer_start(&bad, culprit, NULL);
    peer_hear(&good, 'r');
    peer_hear(&bad, 'r');
    peer_tell(&good, 'g');
    peer_tell(&bad, 'g');
    ck_assert_msg(daemon_ended(&d, 20000 * TEST_SLOW), "the daemon goes on");
    ck_assert_int_eq(d.exit_code, APP_EXIT_DEVICE_LOST);
    peer_end(&bad);
    peer_end(&good);
    /* The server takes new processes some time after the last of the old ones has left. */
    WAIT_FOR(child_wait(child_start(context_opens, NULL)) == 0, 30000);
    gpu_daemon_start_again(&d);
    decoding_works();
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* ---- D16, on the fake driver ---- */

static int one_in_flight(struct peer *parent, void *arg)
{
    struct decoder w;
    (void)arg;
    decoder_open(&w, "in flight");
    peer_tell(parent, 'r');
    peer_hear(parent, 'g');
    mla_request_id request = worker_job_submit(&w.job);
    peer_tell(parent, 's');
    worker_job_wait(&w.job, request, MLA_DEVICE_LOST);
    worker_expect(w.client, mla_decode(w.client, &w.job.args, WORKER_TIMEOUT_US, NULL), MLA_DISCONNECTED);
    mla_close(w.client);
    return 0;
}

/* What the daemon's kernels, copies, or any call meets; with jobs of two workers in flight, one of them running. */
static const char *const losses[] = {"kernel=lose ILLEGAL_ADDRESS", "kernel=lose LAUNCH_FAILED",
                                     "kernel=lose ECC_UNCORRECTABLE", "write=lose ILLEGAL_ADDRESS",
                                     "cuLaunchKernelEx=lose LAUNCH_FAILED"};
#define LOSSES ((int)(sizeof(losses) / sizeof(losses[0])))

START_TEST(d16_the_device_is_lost)
{
    struct peer a, b;
    char rule[256];
    gpu_daemon_start(&d, "");
    struct mla_client *reader = worker_open(d.socket, "reader");
    peer_start(&a, one_in_flight, NULL);
    peer_start(&b, one_in_flight, NULL);
    peer_hear(&a, 'r');
    peer_hear(&b, 'r');
    snprintf(rule, sizeof(rule), "cuLaunchKernelEx@1=hold %s;%s", gpu_gate(), losses[_i]);
    gpu_daemon_rules(rule);
    peer_tell(&a, 'g');
    peer_hear(&a, 's');
    peer_tell(&b, 'g');
    peer_hear(&b, 's');
    struct mla_daemon_info *info = NULL;
    for (uint64_t in_flight = 0, limit = test_now_us() + 5000000; in_flight < 2; mla_free(info)) {
        ck_assert_uint_lt(test_now_us(), limit);
        worker_ok(reader, mla_read_daemon(reader, WORKER_TIMEOUT_US, &info));
        in_flight = info->jobs_running + info->jobs_queued;
    }
    gpu_gate_open();
    ck_assert_msg(daemon_ended(&d, 20000 * TEST_SLOW), "the daemon goes on");
    ck_assert_int_eq(d.exit_code, APP_EXIT_DEVICE_LOST);
    peer_end(&a);
    peer_end(&b);
    mla_close(reader);
    gpu_daemon_rules("");
    gpu_daemon_start_again(&d); /* as a service manager would */
    decoding_works();
    gpu_daemon_stop(&d, 0);
}
END_TEST

MLA_SUITE(gpu_faults)
{
    TCase *tc = mla_tcase_timeout(suite, "faults", 120);
    if (gpu_is_fake() || strcmp(gpu_isolation(), "isolated") == 0)
        tcase_add_test(tc, isolated_nobody_notices);
    else
        tcase_add_test(tc, shared_everybody_is_told);
    if (gpu_is_fake())
        tcase_add_loop_test(tc, d16_the_device_is_lost, 0, LOSSES);
}
