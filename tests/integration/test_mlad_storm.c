/* Eight hostile peers at once against a real daemon, and a good worker beside them. MLA_STORM_SECONDS and
 * MLA_STORM_SEED make it longer and other; the long form is MLA_STORM_SECONDS=600 MLA_STORM_SEED=$RANDOM
 * build/asan-ubsan/tests/integration/test_mlad_storm */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/integration/storm.h"
#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/raw_client.h"
#include "tests/support/worker.h"

#define ROUNDS        4 /* the first one fills what is kept */
#define ACTS_PER_LOOK 200
#define RSS_MORE      (UINT64_C(8) << 20)

static struct daemon d;
static struct storm storm;
static struct raw watch;

struct shared {
    atomic_bool stop;
    atomic_uint decodes;
};
static struct shared *shared;

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoull(text, NULL, 0);
}

/* Decodes and checks every byte of what comes back, until it is told to stop. */
static int good_worker(void *socket)
{
    struct mla_client *client = worker_open(socket, "good");
    struct worker_pool pool;
    struct worker_job job;
    worker_pool_new(client, &pool, 8, 3);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 16, .q_len = {2}, .kv_len = {200}, .seed = 8});
    while (!atomic_load(&shared->stop)) {
        worker_job_run(&job);
        worker_job_check(&job);
        atomic_fetch_add(&shared->decodes, 1);
        test_sleep_us(5000);
    }
    worker_job_free(client, &job);
    worker_pool_free(client, &pool);
    return mla_close(client) == MLA_OK ? 0 : 1;
}

static void health_answers(void)
{
    struct mla_message m;
    uint64_t begin = test_now_us();
    mla_message_init(&m, MLA_MSG_HEALTH);
    const struct mla_health_reply *reply = &raw_call(&watch, &m)->health_reply;
    ck_assert_int_eq(reply->status.code, MLA_OK);
    ck_assert_int_eq(reply->state, MLA_HEALTH_READY);
    ck_assert_uint_lt(test_now_us() - begin, UINT64_C(2000000) * TEST_SLOW);
}

static void round_of(uint64_t us)
{
    uint64_t end = test_now_us() + us;
    while (test_now_us() < end) {
        for (int i = 0; i < ACTS_PER_LOOK; i++)
            storm_act(&storm);
        health_answers();
    }
    storm_hang_up(&storm);
    WAIT_FOR(raw_metric(&watch, "mlad_clients", "") == 2, 10000 * TEST_SLOW);
}

struct left {
    double regions, caches, attachments, table_sets, jobs;
    unsigned fds, maps;
    uint64_t mapped_bytes, rss_bytes;
};

static struct left look(void)
{
    struct left l = {.regions = raw_metric(&watch, "mlad_regions", ""),
                     .caches = raw_metric(&watch, "mlad_caches", ""),
                     .attachments = raw_metric(&watch, "mlad_attachments", ""),
                     .table_sets = raw_metric(&watch, "mlad_table_sets", ""),
                     .jobs = raw_metric(&watch, "mlad_jobs", "state=\"waiting\""),
                     .fds = daemon_fds(&d),
                     .rss_bytes = daemon_rss_bytes(&d)};
    l.mapped_bytes = daemon_mapped_bytes(&d, "memfd:", &l.maps);
    return l;
}

START_TEST(hostile_peers_and_a_good_one)
{
    uint64_t seconds = number("MLA_STORM_SECONDS", 2), seed = number("MLA_STORM_SEED", 1);
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    daemon_start(&d, "daemon.log_level=error", "limits.max_queued_bytes=16M", "limits.frame_timeout_ms=2000", NULL);
    raw_open(&watch, d.socket);
    pid_t good = child_start(good_worker, d.socket);
    WAIT_FOR(atomic_load(&shared->decodes) > 0, 10000 * TEST_SLOW);
    storm_open(&storm, d.socket, seed);
    round_of(seconds * 1000000 / ROUNDS);
    struct left before = look();
    for (int i = 1; i < ROUNDS; i++)
        round_of(seconds * 1000000 / ROUNDS);
    struct left after = look();

    ck_assert_double_eq(after.regions, before.regions);
    ck_assert_double_eq(after.caches, before.caches);
    ck_assert_double_eq(after.attachments, 0);
    ck_assert_double_eq(after.table_sets, before.table_sets);
    ck_assert_double_eq(after.jobs, 0);
    ck_assert_uint_eq(after.fds, before.fds);
    ck_assert_uint_eq(after.maps, before.maps);
    ck_assert_uint_eq(after.mapped_bytes, before.mapped_bytes);
#if TEST_SLOW == 1
    ck_assert_uint_le(after.rss_bytes, before.rss_bytes + RSS_MORE);
#endif
    /* It was a storm: some of all that was sent got through. */
    ck_assert_uint_gt(storm.answers, storm.frames / 4);
    ck_assert_uint_gt(storm.answers - storm.refused, storm.answers / 20);
    printf("%llu frames, %llu bytes, %llu answers, %llu of them refusals, %llu connections ended; %u decodes beside; "
           "memory %llu then %llu KiB\n",
           (unsigned long long)storm.frames, (unsigned long long)storm.bytes, (unsigned long long)storm.answers,
           (unsigned long long)storm.refused, (unsigned long long)storm.ended, atomic_load(&shared->decodes),
           (unsigned long long)before.rss_bytes >> 10, (unsigned long long)after.rss_bytes >> 10);
    fflush(stdout);
    static const char *const of[] = {"mlad_jobs_total", "mlad_steps_total"};
    for (unsigned i = 0; i < 2; i++)
        printf("%s: %.0f OK, %.0f PARTIAL, %.0f CANCELLED, %.0f TIMED_OUT, %.0f NOT_FOUND, %.0f BUSY\n", of[i],
               raw_metric(&watch, of[i], "status=\"OK\""), raw_metric(&watch, of[i], "status=\"PARTIAL\""),
               raw_metric(&watch, of[i], "status=\"CANCELLED\""), raw_metric(&watch, of[i], "status=\"TIMED_OUT\""),
               raw_metric(&watch, of[i], "status=\"NOT_FOUND\""), raw_metric(&watch, of[i], "status=\"BUSY\""));
    atomic_store(&shared->stop, true);
    ck_assert_int_eq(child_wait(good), 0);
    storm_close(&storm);
    raw_close(&watch);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* ---- what refusals tell ---- */

#define SECRET "zq-secret"

/* Requests about an object of this id, whatever it is. */
static void about(struct mla_message *m, unsigned which, uint64_t id)
{
    static const uint16_t types[] = {MLA_MSG_UNREGISTER_REGION, MLA_MSG_SUSPEND,       MLA_MSG_RESUME,
                                     MLA_MSG_DEFINE_CACHE,      MLA_MSG_PUBLISH_CACHE, MLA_MSG_DETACH_CACHE,
                                     MLA_MSG_DROP_CACHE,        MLA_MSG_DECODE,        MLA_MSG_TEMPLATE_OPEN};
    static struct mla_decode_request layer;
    mla_message_init(m, types[which]);
    switch (types[which]) {
    case MLA_MSG_UNREGISTER_REGION:
        m->unregister_region.region = id;
        break;
    case MLA_MSG_SUSPEND:
        m->suspend.region = id;
        break;
    case MLA_MSG_RESUME:
        m->resume.region = id;
        break;
    case MLA_MSG_DEFINE_CACHE:
        m->define_cache.layout = MLA_CACHE_E4M3_576;
        m->define_cache.region = id;
        m->define_cache.num_pages = 1;
        break;
    case MLA_MSG_PUBLISH_CACHE:
        m->publish_cache.cache = id;
        m->publish_cache.name = "mine";
        break;
    case MLA_MSG_DETACH_CACHE:
        m->detach_cache.cache = id;
        break;
    case MLA_MSG_DROP_CACHE:
        m->drop_cache.cache = id;
        break;
    default: {
        struct mla_message decode;
        mla_message_init(&decode, MLA_MSG_DECODE);
        struct mla_decode_request *q = &decode.decode;
        q->cache = id;
        q->table_set = 1;
        q->heads = 1;
        q->q = q->o = (struct mla_tensor){
            .present = true, .region = id, .token_stride = 4096, .head_stride = 4096, .compact = true};
        q->out_type = MLA_DTYPE_F32;
        q->softmax_scale = 1;
        q->ready = q->done = (struct mla_ref){.present = true, .region = id};
        q->done.offset = 64;
        layer = *q;
        if (m->type == MLA_MSG_DECODE) {
            m->decode = *q;
        } else {
            m->template_open.id = 1;
            m->template_open.layers = &layer;
            m->template_open.n_layers = 1;
        }
    }
    }
}
#define N_ABOUT 9u

static struct mla_error ask(struct raw *r, const struct mla_message *m, int fd)
{
    const struct mla_message *reply = m->type == MLA_MSG_RESUME ? raw_call_fds(r, m, &fd, 1) : raw_call(r, m);
    ck_assert_int_ne(reply->reply.status.code, MLA_OK);
    ck_assert_msg(strstr(reply->reply.status.text, SECRET) == NULL, "%s: %s", mla_wire_type_name(m->type),
                  reply->reply.status.text);
    return reply->reply.status;
}

/* Of another client's objects a client learns not even that they exist: whatever it asks, it is told the same as about
 * ids that nobody has. */
START_TEST(refusals_tell_nothing_of_others)
{
    struct raw owner, other;
    struct mla_message m;
    daemon_start(&d, NULL);
    raw_connect(&owner, d.socket);
    mla_message_init(&m, MLA_MSG_HELLO);
    m.hello.client_name = SECRET;
    raw_expect(&owner, &m, MLA_OK, NULL);
    int fd = raw_memfd(1u << 20, NULL);
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    m.register_region.kind = MLA_REGION_MEMFD;
    m.register_region.access = MLA_ACCESS_READ_WRITE;
    m.register_region.size = 1u << 20;
    m.register_region.label = SECRET;
    uint64_t region = raw_call_fds(&owner, &m, &fd, 1)->register_region_reply.region;
    uint64_t cache = raw_cache(&owner, region, 2), hidden = raw_cache(&owner, region, 3);
    uint64_t *words, sync = raw_sync(&owner, &words);
    mla_message_init(&m, MLA_MSG_PUBLISH_CACHE);
    m.publish_cache.cache = cache;
    m.publish_cache.name = SECRET;
    raw_expect(&owner, &m, MLA_OK, NULL);

    raw_open(&other, d.socket);
    raw_tables(&other, 1, 1, 64);
    const uint64_t theirs[] = {region, cache, hidden, sync};
    for (unsigned which = 0; which < N_ABOUT; which++) {
        about(&m, which, UINT64_C(0x123456789abcdef));
        struct mla_error nobodys = ask(&other, &m, fd);
        for (unsigned i = 0; i < sizeof(theirs) / sizeof(theirs[0]); i++) {
            about(&m, which, theirs[i]);
            struct mla_error e = ask(&other, &m, fd);
            ck_assert_int_eq(e.code, nobodys.code);
            ck_assert_str_eq(e.text, nobodys.text);
            ck_assert_uint_eq(e.limit, nobodys.limit);
        }
    }
    /* Names that are taken or not there; a name that one asked for oneself is no news. */
    mla_message_init(&m, MLA_MSG_ATTACH_CACHE);
    m.attach_cache.name = "nothing";
    ask(&other, &m, fd);
    m.attach_cache.has_owner_uid = true;
    m.attach_cache.owner_uid = (uint32_t)getuid() + 1;
    ask(&other, &m, fd);
    mla_message_init(&m, MLA_MSG_EVICT);
    m.evict.client_id = 77;
    ask(&other, &m, fd);
    raw_close(&other);
    raw_close(&owner);
    close(fd);
    munmap(words, 4096);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

MLA_SUITE(mlad_storm)
{
    double seconds = (double)number("MLA_STORM_SECONDS", 2);
    TCase *tc = mla_tcase_timeout(suite, "storm", 60 + 2 * seconds);
    tcase_add_test(tc, hostile_peers_and_a_good_one);
    tcase_add_test(tc, refusals_tell_nothing_of_others);
}
