/* Workers on a GPU that outlive their daemon: memory of every form is registered again, eager jobs are answered by the
 * next daemon, a stream that waits is released and can be used again. */
#include <signal.h>

#include "tests/support/check_main.h"
#include "tests/support/gpu_daemon.h"
#include "tests/support/worker_cuda.h"

#define JOBS   4
#define ROUNDS 2

static struct daemon d;

static struct mla_client *open_default(void)
{
    struct mla_options o;
    struct mla_client *c = NULL;
    mla_options_init(&o);
    o.socket_path = d.socket;
    o.name = "recover";
    ck_assert_int_eq(mla_open(&o, &c, NULL), MLA_OK);
    return c;
}

static void stream_job(struct mla_client *c, struct worker_cuda *cuda, struct worker_job *job,
                       struct mla_cuda_sync *words, uint64_t value)
{
    mla_request_id id;
    job->args.ready_value = job->args.done_value = value;
    worker_job_poison(job);
    worker_ok(c, mla_decode_submit(c, &job->args, NULL, NULL, &id));
    ck_assert_int_eq(mla_cuda_write_ready(words, 0, value, cuda->stream), MLA_OK);
    ck_assert_int_eq(mla_cuda_wait_done(words, 1, value, cuda->stream), MLA_OK);
    worker_job_wait(job, id, MLA_OK);
    CU_OK(cuda, cuStreamSynchronize(cuda->stream));
    worker_job_check(job);
}

/* 's': the jobs are sent. 'k': the daemon has been killed. 'd': all is done. */
static int worker(struct peer *parent, void *arg)
{
    struct worker_pool pool;
    struct worker_job jobs[JOBS], ordered;
    struct mla_cuda_sync *words;
    mla_request_id ids[JOBS], waits;
    struct worker_cuda *cuda = worker_cuda_start();
    worker_cuda_form(*(enum worker_form *)arg);
    struct mla_client *c = open_default();
    worker_pool_new(c, &pool, 64, 3);
    for (unsigned i = 0; i < JOBS; i++)
        worker_job_new(c, &jobs[i], pool.cache, pool.memory.addr, pool.num_pages,
                       &(struct worker_shape){.heads = 16, .q_len = {1 + i}, .kv_len = {300 + 100 * i}, .seed = i});
    worker_job_new(c, &ordered, pool.cache, pool.memory.addr, pool.num_pages,
                   &(struct worker_shape){.heads = 16, .q_len = {2}, .kv_len = {500}, .seed = 9, .sync = true});
    worker_ok(c, mla_cuda_sync_attach(c, ordered.page, &words));
    uint64_t value = 1;
    for (unsigned round = 0; round < ROUNDS; round++) {
        stream_job(c, cuda, &ordered, words, value++);
        for (unsigned i = 0; i < JOBS; i++) {
            worker_job_poison(&jobs[i]);
            worker_ok(c, mla_decode_submit(c, &jobs[i].args, NULL, NULL, &ids[i]));
        }
        /* One whose ready word does not come: its stream waits for the daemon's end. */
        ordered.args.ready_value = ordered.args.done_value = value;
        worker_ok(c, mla_decode_submit(c, &ordered.args, NULL, NULL, &waits));
        ck_assert_int_eq(mla_cuda_wait_done(words, 1, value, cuda->stream), MLA_OK);
        peer_tell(parent, 's');
        peer_hear(parent, 'k');
        CU_OK(cuda, cuStreamSynchronize(cuda->stream)); /* the watcher has released it */
        ck_assert(mla_word_aborted(mla_word_load(mla_sync_word(ordered.page, 1)), value));
        worker_expect(c, mla_wait(c, waits, WORKER_TIMEOUT_US, NULL), MLA_DISCONNECTED);
        for (unsigned i = 0; i < JOBS; i++) {
            worker_job_wait(&jobs[i], ids[i], MLA_OK);
            worker_job_check(&jobs[i]);
        }
        worker_ok(c, mla_wait_connected(c, WORKER_TIMEOUT_US));
        mla_word_store(mla_sync_word(ordered.page, 0), value);
        mla_word_store(mla_sync_word(ordered.page, 1), value++);
    }
    stream_job(c, cuda, &ordered, words, value);
    ck_assert_int_eq(mla_cuda_sync_detach(words), MLA_OK);
    for (unsigned i = 0; i < JOBS; i++)
        worker_job_free(c, &jobs[i]);
    worker_job_free(c, &ordered);
    worker_pool_free(c, &pool);
    mla_close(c);
    return 0;
}

START_TEST(workers_go_on_with_the_next_daemon)
{
    struct peer peer;
    enum worker_form form = (enum worker_form)_i;
    gpu_daemon_start(&d, "");
    peer_start(&peer, worker, &form);
    for (unsigned round = 0; round < ROUNDS; round++) {
        peer_hear(&peer, 's');
        daemon_kill(&d);
        peer_tell(&peer, 'k');
        gpu_daemon_start_again(&d);
    }
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

MLA_SUITE(gpu_recover)
{
    TCase *tc = mla_tcase_timeout(suite, "recover", 120);
    tcase_add_loop_test(tc, workers_go_on_with_the_next_daemon, 0, WORKER_FORMS);
}
