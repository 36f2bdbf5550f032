/* Clients that outlive their daemon: real daemons killed, drained and cut under load, clients as they come by default.
 */
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/worker.h"

#define JOBS 6

static struct daemon d;

static struct mla_client *open_default(const char *name)
{
    struct mla_options o;
    struct mla_client *c = NULL;
    mla_options_init(&o);
    o.socket_path = d.socket;
    o.name = name;
    ck_assert_int_eq(mla_open(&o, &c, NULL), MLA_OK);
    return c;
}

static struct worker_shape shape_of(unsigned i)
{
    return (struct worker_shape){.heads = 16, .q_len = {1 + i % 3}, .kv_len = {100 + 70 * i}, .seed = i};
}

/* D5: no request is lost or answered twice, and what comes back is right. */
START_TEST(d5_clients_go_on_with_the_next_daemon)
{
    struct worker_pool pool;
    struct worker_job jobs[JOBS];
    daemon_start(&d, NULL);
    struct mla_client *c = open_default("d5");
    worker_pool_new(c, &pool, 16, 3);
    for (unsigned i = 0; i < JOBS; i++) {
        struct worker_shape shape = shape_of(i);
        worker_job_new(c, &jobs[i], pool.cache, pool.memory.addr, pool.num_pages, &shape);
    }
    uint64_t nonce = mla_server(c)->boot_nonce;
    for (unsigned round = 0; round < 5; round++) {
        mla_request_id ids[JOBS];
        for (unsigned i = 0; i < JOBS; i++) {
            worker_job_poison(&jobs[i]);
            worker_ok(c, mla_decode_submit(c, &jobs[i].args, NULL, NULL, &ids[i]));
        }
        if (round % 2 == 0)
            mla_dispatch(c, 1000 * round);
        daemon_kill(&d);
        daemon_start_again(&d, NULL);
        for (unsigned i = 0; i < JOBS; i++) {
            worker_job_wait(&jobs[i], ids[i], MLA_OK);
            worker_job_check(&jobs[i]);
            worker_expect(c, mla_wait(c, ids[i], 0, NULL), MLA_NOT_FOUND);
        }
    }
    worker_ok(c, mla_wait_connected(c, WORKER_TIMEOUT_US));
    ck_assert_uint_ne(mla_server(c)->boot_nonce, nonce);
    /* Nothing is left twice: this daemon has what the client has. */
    struct mla_client_list *list = NULL;
    worker_ok(c, mla_read_clients(c, WORKER_TIMEOUT_US, &list));
    ck_assert_uint_eq(list->n_clients, 1);
    ck_assert_uint_eq(list->clients[0]->regions, JOBS + 1);
    ck_assert_uint_eq(list->clients[0]->caches, 1);
    ck_assert_uint_eq(list->clients[0]->table_sets, JOBS);
    mla_free(list);
    for (unsigned i = 0; i < JOBS; i++)
        worker_job_free(c, &jobs[i]);
    worker_pool_free(c, &pool);
    mla_close(c);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* Every connection of this process to the daemon. */
static void cut(void)
{
    for (int fd = 3; fd < 64; fd++) {
        struct sockaddr_un peer;
        socklen_t n = sizeof(peer);
        memset(&peer, 0, sizeof(peer));
        if (getpeername(fd, (struct sockaddr *)&peer, &n) == 0 && strcmp(peer.sun_path, d.socket) == 0)
            shutdown(fd, SHUT_RDWR);
    }
}

/* The daemon lives, and a batch of the old connection runs: nothing is sent again before that has ended. */
START_TEST(a_cut_connection_is_let_go_of_first)
{
    struct worker_pool pool;
    struct worker_job job;
    daemon_start(&d, "scheduler.max_launch_us=0", NULL);
    struct mla_client *c = open_default("cut"), *other = worker_open(d.socket, "other");
    worker_pool_new(c, &pool, 64, 3);
    struct worker_shape shape = worker_long_shape(c, &pool, 300);
    worker_job_new(c, &job, pool.cache, pool.memory.addr, pool.num_pages, &shape);
    uint64_t first = mla_server(c)->client_id;
    mla_request_id id = worker_job_submit(&job);
    uint64_t running = 0;
    for (unsigned i = 0; i < 10000 && running == 0; i++) {
        struct mla_daemon_info *info;
        worker_ok(other, mla_read_daemon(other, WORKER_TIMEOUT_US, &info));
        running = info->jobs_running;
        mla_free(info);
    }
    cut();
    worker_expect(other, mla_dispatch(other, WORKER_TIMEOUT_US), MLA_DISCONNECTED); /* it was cut, too */
    mla_close(other);
    other = worker_open(d.socket, "other");
    bool seen = false; /* the second job while the first is there */
    for (unsigned i = 0; i < 2000; i++) {
        struct mla_client_list *list = NULL;
        bool old = false;
        uint64_t in_flight = 0;
        mla_dispatch(c, 0);
        worker_ok(other, mla_read_clients(other, WORKER_TIMEOUT_US, &list));
        for (size_t k = 0; k < list->n_clients; k++) {
            old = old || list->clients[k]->client_id == first;
            in_flight += list->clients[k]->client_id == first ? 0 : list->clients[k]->jobs_in_flight;
        }
        mla_free(list);
        seen = seen || (old && in_flight > 0);
        if (!old && in_flight > 0)
            break;
        test_sleep_us(1000);
    }
    ck_assert(!seen);
    worker_job_wait(&job, id, MLA_OK);
    worker_job_check(&job);
    ck_assert_uint_ne(mla_server(c)->client_id, first);
    worker_job_free(c, &job);
    worker_pool_free(c, &pool);
    mla_close(other);
    mla_close(c);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

static unsigned events[8];

static void on_event(struct mla_client *c, const struct mla_event *e, void *user)
{
    (void)c;
    (void)user;
    events[e->kind]++;
}

/* An owner and an attacher in one process: whichever of the two is back first. */
START_TEST(attachers_come_back_with_their_owner)
{
    struct worker_pool pool;
    struct worker_job job;
    struct mla_cache_info info;
    struct mla_options o;
    struct mla_client *attacher = NULL;
    daemon_start(&d, NULL);
    struct mla_client *owner = open_default("owner");
    mla_options_init(&o);
    o.socket_path = d.socket;
    o.on_event = on_event;
    ck_assert_int_eq(mla_open(&o, &attacher, NULL), MLA_OK);
    worker_pool_new(owner, &pool, 16, 3);
    worker_ok(owner, mla_cache_publish(owner, pool.cache, "kv", NULL, 0, WORKER_TIMEOUT_US));
    worker_ok(attacher, mla_cache_attach(attacher, MLA_UID_SELF, "kv", 0, WORKER_TIMEOUT_US, &info));
    struct worker_shape shape = shape_of(2);
    worker_job_new(attacher, &job, info.cache, pool.memory.addr, pool.num_pages, &shape);
    for (unsigned round = 0; round < 4; round++) {
        mla_request_id id;
        daemon_kill(&d);
        daemon_start_again(&d, NULL);
        worker_job_poison(&job);
        worker_ok(attacher, mla_decode_submit(attacher, &job.args, NULL, NULL, &id));
        if (round % 2)
            worker_ok(owner, mla_wait_connected(owner, WORKER_TIMEOUT_US));
        else
            worker_expect(attacher, mla_wait(attacher, id, 50000, NULL), MLA_PENDING);
        mla_decode_result_init(&job.result);
        while (mla_wait_connected(owner, 0) != MLA_OK || mla_wait(attacher, id, 1000, &job.result) == MLA_PENDING)
            mla_dispatch(owner, 1000);
        ck_assert_int_eq(job.result.status, MLA_OK);
        worker_job_check(&job);
    }
    ck_assert_uint_eq(events[MLA_EVENT_CACHE_GONE], 0);
    worker_job_free(attacher, &job);
    mla_close(attacher);
    worker_pool_free(owner, &pool);
    mla_close(owner);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* A drain that the operator asks for: what is in flight is answered, what comes meanwhile by the next daemon. */
START_TEST(a_drained_daemon_is_followed)
{
    struct worker_pool pool;
    struct worker_job job, longer;
    daemon_start(&d, NULL);
    struct mla_client *c = open_default("drained");
    worker_pool_new(c, &pool, 16, 3);
    struct worker_shape shape = shape_of(1);
    worker_job_new(c, &job, pool.cache, pool.memory.addr, pool.num_pages, &shape);
    worker_job_run(&job);
    /* It drains as long as this one runs: what comes meanwhile is not for it. */
    shape = worker_long_shape(c, &pool, 300);
    worker_job_new(c, &longer, pool.cache, pool.memory.addr, pool.num_pages, &shape);
    mla_request_id id, longer_id = worker_job_submit(&longer);
    kill(d.pid, SIGTERM);
    while (daemon_log_count(&d, "event=draining") == 0)
        test_sleep_us(1000);
    worker_job_poison(&job);
    worker_ok(c, mla_decode_submit(c, &job.args, NULL, NULL, &id));
    worker_job_wait(&longer, longer_id, MLA_OK);
    worker_job_check(&longer);
    worker_expect(c, mla_wait(c, id, 20000, NULL), MLA_PENDING);
    ck_assert(daemon_ended(&d, 20000));
    ck_assert_int_eq(d.exit_code, 0);
    worker_expect(c, mla_wait(c, id, 20000, NULL), MLA_PENDING);
    daemon_start_again(&d, NULL);
    worker_job_wait(&job, id, MLA_OK);
    worker_job_check(&job);
    worker_job_free(c, &longer);
    worker_job_free(c, &job);
    worker_pool_free(c, &pool);
    mla_close(c);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

MLA_SUITE(mlad_recover)
{
    TCase *tc = mla_tcase_timeout(suite, "clients", 60);
    tcase_add_test(tc, d5_clients_go_on_with_the_next_daemon);
    tcase_add_test(tc, a_cut_connection_is_let_go_of_first);
    tcase_add_test(tc, attachers_come_back_with_their_owner);
    tcase_add_test(tc, a_drained_daemon_is_followed);
}
