/* Peers that break the protocol, are slow, or are many: they alone feel it. */
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/prng.h"
#include "tests/support/raw_client.h"
#include "tests/support/worker.h"

static struct daemon d;
static struct mla_client *good;
static struct worker_pool pool;
static struct worker_job job;

/* A client that must not notice anything of the others. */
static void setup(void)
{
    good = worker_open(d.socket, "good");
    worker_pool_new(good, &pool, 8, 3);
    worker_job_new(good, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 16, .q_len = {2}, .kv_len = {200}, .seed = 8});
}

static void good_is_fine(void)
{
    worker_job_run(&job);
    worker_job_check(&job);
}

static void teardown(void)
{
    good_is_fine();
    worker_job_free(good, &job);
    worker_pool_free(good, &pool);
    mla_close(good);
    daemon_stop(&d, SIGTERM, 0);
}

static void header(uint8_t *out, uint16_t major, uint16_t type, uint32_t body_len, uint8_t n_fds)
{
    mla_wire_pack(
        &(struct mla_frame_header){
            .major = major, .n_fds = n_fds, .type = type, .body_len = body_len, .request_id = 77},
        out);
}

/* The connection must end with an ERROR notice of this code. */
static void ends_with(struct raw *r, enum mla_status code)
{
    ck_assert_msg(raw_receive(r), "the end came without a notice");
    ck_assert_uint_eq(r->header.type, MLA_NOTICE_ERROR);
    ck_assert_str_eq(mla_status_name(r->message.error_notice.status.code), mla_status_name(code));
    ck_assert(!raw_receive(r));
    raw_close(r);
}

/* ---- request ids ---- */

static void send_step(const struct raw *r, uint64_t template_id, uint64_t request_id)
{
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_STEP);
    m.step.template_id = template_id;
    raw_send(r, &m, request_id, NULL, 0);
}

/* A decode of the page at 0 that starts with word `word` of the sync page and ends with the next one. */
static struct mla_decode_request on_words(uint64_t region, uint64_t sync, uint64_t cache, uint64_t word)
{
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_DECODE);
    struct mla_decode_request one = m.decode;
    one.cache = cache;
    one.table_set = 1;
    one.heads = 1;
    one.q = (struct mla_tensor){.present = true, .region = region, .offset = 1 << 16, .compact = true};
    one.o = (struct mla_tensor){.present = true, .region = region, .offset = 1 << 17, .compact = true};
    one.out_type = MLA_DTYPE_BF16;
    one.mask = MLA_MASK_CAUSAL;
    one.softmax_scale = 1.0f;
    one.ready = (struct mla_ref){.present = true, .region = sync, .offset = word * MLA_WORD_BYTES};
    one.done = (struct mla_ref){.present = true, .region = sync, .offset = (word + 1) * MLA_WORD_BYTES};
    return one;
}

/* An id in flight is taken, whichever of steps and decodes has it: else CANCEL would reach one of them only. */
START_TEST(ids_of_steps_in_flight)
{
    daemon_start(&d, NULL);
    setup();
    struct raw r;
    uint64_t *words;
    raw_open(&r, d.socket);
    int fd = raw_memfd(1 << 20, NULL);
    uint64_t region = raw_region(&r, fd, 1 << 20, MLA_ACCESS_READ_WRITE), sync = raw_sync(&r, &words);
    uint64_t cache = raw_cache(&r, region, 1);
    raw_tables(&r, 1, 1, 64);
    for (uint64_t id = 1; id <= 2; id++) {
        struct mla_message m;
        struct mla_decode_request layer = on_words(region, sync, cache, 2 * id);
        mla_message_init(&m, MLA_MSG_TEMPLATE_OPEN);
        m.template_open.id = id;
        m.template_open.layers = &layer;
        m.template_open.n_layers = 1;
        raw_expect(&r, &m, MLA_OK, NULL);
    }
    struct mla_message m;
    send_step(&r, 1, 500);
    send_step(&r, 2, 500);
    ck_assert_int_eq(raw_wait(&r, 500)->step_reply.status.code, MLA_ALREADY_EXISTS);
    mla_message_init(&m, MLA_MSG_DECODE);
    m.decode = on_words(region, sync, cache, 8);
    raw_send(&r, &m, 500, NULL, 0);
    ck_assert_int_eq(raw_wait(&r, 500)->decode_reply.status.code, MLA_ALREADY_EXISTS);
    mla_message_init(&m, MLA_MSG_CANCEL);
    m.cancel.request_id = 500;
    raw_send(&r, &m, 501, NULL, 0);
    ck_assert_int_eq(raw_wait(&r, 500)->step_reply.status.code, MLA_CANCELLED);
    raw_expect(&r, &m, MLA_NOT_FOUND, "request_id");
    close(fd);
    raw_close(&r);
    good_is_fine();
    teardown();
}
END_TEST

/* ---- D8, D9: more of them in test_mlad_names, test_mlad_memory, test_mlad_decode ---- */

/* Ids that somebody has read in another's memory are worth nothing on a connection of one's own. */
START_TEST(d8_objects_of_another)
{
    daemon_start(&d, NULL);
    setup();
    struct raw r;
    struct mla_message m;
    raw_open(&r, d.socket);
    mla_message_init(&m, MLA_MSG_UNREGISTER_REGION);
    m.unregister_region.region = pool.region;
    raw_expect(&r, &m, MLA_NOT_FOUND, "region");
    mla_message_init(&m, MLA_MSG_SUSPEND);
    m.suspend.region = job.region;
    raw_expect(&r, &m, MLA_NOT_FOUND, "region");
    mla_message_init(&m, MLA_MSG_DEFINE_CACHE);
    m.define_cache.layout = MLA_CACHE_E4M3_576;
    m.define_cache.region = pool.region;
    m.define_cache.num_pages = 1;
    raw_expect(&r, &m, MLA_NOT_FOUND, "region");
    mla_message_init(&m, MLA_MSG_DROP_CACHE);
    m.drop_cache.cache = pool.cache;
    raw_expect(&r, &m, MLA_NOT_FOUND, "cache");
    mla_message_init(&m, MLA_MSG_PUBLISH_CACHE);
    m.publish_cache.cache = pool.cache;
    m.publish_cache.name = "mine";
    raw_expect(&r, &m, MLA_NOT_FOUND, "cache");
    raw_close(&r);
    teardown();
}
END_TEST

static void cache_is(uint64_t offset, uint64_t num_pages, enum mla_status expected)
{
    struct mla_cache_desc desc;
    mla_cache_id cache;
    mla_cache_desc_init(&desc);
    desc.region = pool.region;
    desc.offset = offset;
    desc.num_pages = num_pages;
    worker_expect(good, mla_cache_define(good, &desc, WORKER_TIMEOUT_US, &cache), expected);
}

static void output_is(uint64_t offset, int64_t token_stride, enum mla_status expected)
{
    struct mla_decode_args args = job.args;
    args.o.offset = offset;
    args.o.token_stride = token_stride;
    worker_expect(good, mla_decode(good, &args, WORKER_TIMEOUT_US, NULL), expected);
}

START_TEST(d9_past_the_region)
{
    daemon_start(&d, NULL);
    setup();
    cache_is(0, 9, MLA_OUT_OF_BOUNDS);
    cache_is(16, 8, MLA_OUT_OF_BOUNDS);
    cache_is(UINT64_MAX - 15, 1, MLA_OUT_OF_BOUNDS);
    cache_is(0, UINT32_MAX, MLA_OUT_OF_BOUNDS);
    cache_is(0, UINT64_MAX / 8, MLA_INVALID_ARGUMENT);
    cache_is(8, 1, MLA_MISALIGNED);
    output_is(UINT64_MAX - 15, job.args.o.token_stride, MLA_OUT_OF_BOUNDS);
    output_is(job.args.o.offset, INT64_MAX - 15, MLA_OUT_OF_BOUNDS);
    output_is(job.args.o.offset + 8, job.args.o.token_stride, MLA_MISALIGNED);
    teardown();
}
END_TEST

/* ---- D6 ---- */

START_TEST(d6_broken_streams)
{
    daemon_start(&d, NULL);
    setup();
    struct raw r;
    uint8_t h[MLA_WIRE_HEADER_BYTES], zeros[MLA_WIRE_HEADER_BYTES] = {0};

    raw_open(&r, d.socket); /* a frame of 4 GiB */
    header(h, MLA_PROTO_MAJOR, MLA_MSG_DECODE, UINT32_MAX, 0);
    raw_bytes(&r, h, sizeof(h), NULL, 0);
    ends_with(&r, MLA_TOO_LARGE);
    raw_open(&r, d.socket); /* a control request of one byte too many */
    header(h, MLA_PROTO_MAJOR, MLA_MSG_HEALTH, MLA_CAP_CONTROL_BYTES + 1, 0);
    raw_bytes(&r, h, sizeof(h), NULL, 0);
    ends_with(&r, MLA_TOO_LARGE);
    raw_open(&r, d.socket); /* no magic */
    raw_bytes(&r, zeros, sizeof(zeros), NULL, 0);
    ends_with(&r, MLA_PROTOCOL_ERROR);
    raw_open(&r, d.socket); /* a reply from a client */
    header(h, MLA_PROTO_MAJOR, MLA_MSG_HEALTH | MLA_REPLY, 0, 0);
    raw_bytes(&r, h, sizeof(h), NULL, 0);
    ends_with(&r, MLA_PROTOCOL_ERROR);
    raw_connect(&r, d.socket); /* something before HELLO */
    header(h, MLA_PROTO_MAJOR, MLA_MSG_HEALTH, 0, 0);
    raw_bytes(&r, h, sizeof(h), NULL, 0);
    ends_with(&r, MLA_HELLO_REQUIRED);
    raw_open(&r, d.socket); /* HELLO twice */
    header(h, MLA_PROTO_MAJOR, MLA_MSG_HELLO, 0, 0);
    raw_bytes(&r, h, sizeof(h), NULL, 0);
    ends_with(&r, MLA_HELLO_REQUIRED);
    raw_open(&r, d.socket); /* descriptors that no frame claims */
    header(h, MLA_PROTO_MAJOR, MLA_MSG_HEALTH, 0, 0);
    raw_bytes(&r, h, sizeof(h), (int[]){0, 1}, 2);
    while (raw_receive(&r) && r.header.type != MLA_NOTICE_ERROR)
        ;
    ck_assert_int_eq(r.message.error_notice.status.code, MLA_PROTOCOL_ERROR);
    raw_close(&r);
    raw_open(&r, d.socket); /* cut in the middle of a frame */
    header(h, MLA_PROTO_MAJOR, MLA_MSG_DECODE, 1000, 0);
    raw_bytes(&r, h, sizeof(h) - 3, NULL, 0);
    raw_close(&r);

    good_is_fine();
    ck_assert_double_ge(worker_metric(good, "mlad_protocol_errors_total", ""), 7);
    WAIT_FOR(worker_metric(good, "mlad_clients", "") == 1, 1000 * TEST_SLOW);
    teardown();
}
END_TEST

/* Refused, but the connection goes on. */
START_TEST(d6_bad_bodies)
{
    daemon_start(&d, NULL);
    setup();
    struct raw r;
    static uint8_t frame[MLA_WIRE_HEADER_BYTES + (1u << 20)];
    uint8_t *body = frame + MLA_WIRE_HEADER_BYTES;
    raw_open(&r, d.socket);
    double malformed = raw_metric(&r, "mlad_malformed_bodies_total", "");

    /* 1 MiB of empty sub-messages: field 5 (q) of length 0, over and over; field 2 (layers) of a template. */
    static const struct {
        uint16_t type;
        uint8_t tag;
    } bombs[] = {{MLA_MSG_DECODE, 0x2a}, {MLA_MSG_TEMPLATE_OPEN, 0x12}, {MLA_MSG_PUT_TABLE_SET, 0x12}};
    for (size_t k = 0; k < sizeof(bombs) / sizeof(bombs[0]); k++) {
        for (size_t i = 0; i < 1u << 20; i += 2) {
            body[i] = bombs[k].tag;
            body[i + 1] = 0;
        }
        uint64_t before = daemon_rss_bytes(&d);
        header(frame, MLA_PROTO_MAJOR, bombs[k].type, 1u << 20, 0);
        ck_assert(raw_bytes(&r, frame, sizeof(frame), NULL, 0));
        const struct mla_message *m = raw_wait(&r, 77);
        ck_assert_uint_eq(r.header.type, bombs[k].type | MLA_REPLY);
        ck_assert_msg(m->reply.status.code >= 1 && m->reply.status.code < 100, "%s",
                      mla_status_name(m->reply.status.code));
        ck_assert_uint_lt(daemon_rss_bytes(&d), before + (24u << 20) * TEST_SLOW);
    }
    /* A type of a later minor. */
    header(frame, MLA_PROTO_MAJOR, 0x0fff, 5, 0);
    raw_bytes(&r, frame, MLA_WIRE_HEADER_BYTES + 5, NULL, 0);
    ck_assert_int_eq(raw_wait(&r, 77)->reply.status.code, MLA_UNKNOWN_MESSAGE);
    /* Garbage for every type but HELLO. */
    static const uint16_t types[] = {
#define TYPE(name, number, body, cap) (number),
        MLA_REQUEST_LIST(TYPE)
#undef TYPE
    };
    struct prng p = {7};
    for (size_t t = 1; t < sizeof(types) / sizeof(types[0]); t++) {
        for (unsigned round = 0; round < 20; round++) {
            uint32_t n = 1 + prng_below(&p, 200);
            for (uint32_t i = 0; i < n; i++)
                body[i] = (uint8_t)prng_u64(&p);
            body[0] |= 0x07; /* a wire type that does not exist */
            header(frame, MLA_PROTO_MAJOR, types[t], n, 0);
            ck_assert(raw_bytes(&r, frame, MLA_WIRE_HEADER_BYTES + n, NULL, 0));
            const struct mla_message *m = raw_wait(&r, 77);
            ck_assert_msg(m->reply.status.code == MLA_MALFORMED, "%s: %s", mla_wire_type_name(types[t]),
                          mla_status_name(m->reply.status.code));
        }
    }
    ck_assert_double_ge(raw_metric(&r, "mlad_malformed_bodies_total", ""), malformed + 20 * 23);
    ck_assert_double_ge(raw_metric(&r, "mlad_replies_total", "status=\"MALFORMED\""), 20 * 23);
    raw_close(&r);
    teardown();
}
END_TEST

/* A recorded session with one bit flipped, many times: the daemon lives, its memory stays. */
START_TEST(d6_flipped_bits)
{
    daemon_start(&d, "daemon.log_level=error", NULL);
    setup();
    struct prng p = {11};
    uint64_t before = 0;
    for (unsigned round = 0; round < 300; round++) {
        struct raw r;
        struct mla_message m;
        uint8_t frames[1024];
        size_t n = 0, k;
        raw_open(&r, d.socket);
        static const uint16_t types[] = {MLA_MSG_HEALTH, MLA_MSG_STATUS, MLA_MSG_PUT_TABLE_SET, MLA_MSG_DECODE,
                                         MLA_MSG_DEFINE_CACHE};
        for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
            mla_message_init(&m, types[t]);
            m.type = types[t];
            if (types[t] == MLA_MSG_DECODE)
                m.decode.heads = 4;
            ck_assert_int_eq(mla_codec_encode(&m, frames + n + MLA_WIRE_HEADER_BYTES, 200, &k), 0);
            header(frames + n, MLA_PROTO_MAJOR, types[t], (uint32_t)k, 0);
            n += MLA_WIRE_HEADER_BYTES + k;
        }
        uint32_t bit = prng_below(&p, (uint32_t)n * 8);
        frames[bit / 8] ^= (uint8_t)(1u << bit % 8);
        raw_bytes(&r, frames, n, NULL, 0);
        shutdown(r.fd, SHUT_WR);
        while (raw_receive(&r))
            ;
        raw_close(&r);
        if (round == 50)
            before = daemon_rss_bytes(&d);
    }
#if TEST_SLOW == 1
    ck_assert_uint_le(daemon_rss_bytes(&d), before + (4u << 20));
#else
    ck_assert_uint_gt(before, 0);
#endif
    teardown();
}
END_TEST

/* ---- D7 ---- */

START_TEST(d7_one_byte_at_a_time)
{
    daemon_start(&d, "limits.frame_timeout_ms=300", "limits.hello_timeout_ms=300", NULL);
    setup();
    struct raw slow, silent;
    uint8_t h[MLA_WIRE_HEADER_BYTES];
    raw_connect(&silent, d.socket); /* never says HELLO */
    raw_open(&slow, d.socket);
    header(h, MLA_PROTO_MAJOR, MLA_MSG_DECODE, 100, 0);
    uint64_t start = test_now_us();
    for (unsigned i = 0; !raw_readable(&slow, 100); i++) {
        ck_assert_msg(i < 100 * TEST_SLOW, "the slow peer was not cut");
        raw_bytes(&slow, &h[i % sizeof(h)], 1, NULL, 0);
        good_is_fine();
    }
    ck_assert_uint_ge(test_now_us() - start, 300000);
    ends_with(&slow, MLA_SLOW_PEER);
    ends_with(&silent, MLA_SLOW_PEER);
    ck_assert_double_ge(worker_metric(good, "mlad_slow_peers_total", ""), 2);
    teardown();
}
END_TEST

START_TEST(d7_never_reads)
{
    daemon_start(&d, "limits.max_write_queue_bytes=64K", "limits.write_timeout_ms=500", NULL);
    setup();
    struct raw r;
    uint8_t h[MLA_WIRE_HEADER_BYTES];
    raw_open(&r, d.socket);
    uint64_t before = daemon_rss_bytes(&d);
    header(h, MLA_PROTO_MAJOR, MLA_MSG_METRICS, 0, 0); /* some 20 KiB of reply each */
    uint64_t end = test_now_us() + 20000000;
    unsigned sent = 0;
    while (worker_metric(good, "mlad_slow_peers_total", "") == 0) {
        ck_assert_msg(test_now_us() < end, "it was not cut");
        if (sent < 1000 && send(r.fd, h, sizeof(h), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(h))
            sent++;
        good_is_fine();
    }
    ck_assert_uint_lt(daemon_rss_bytes(&d), before + (8u << 20) * TEST_SLOW);
    raw_close(&r);
    WAIT_FOR(worker_metric(good, "mlad_clients", "") == 1, 2000 * TEST_SLOW);
    teardown();
}
END_TEST

/* ---- D13 ---- */

#define MANY 1000

START_TEST(d13_connections_until_descriptors_end)
{
    static struct raw many[MANY];
    struct rlimit own = {MANY + 100, MANY + 100}, limit;
    setrlimit(RLIMIT_NOFILE, &own);
    daemon_start(&d, "limits.max_clients=4096", "daemon.log_level=warning", NULL);
    setup();
    for (unsigned i = 0; i < MANY - 1; i++)
        raw_open(&many[i], d.socket);
    good_is_fine();
    ck_assert_double_eq(worker_metric(good, "mlad_clients", ""), MANY);
    ck_assert_double_eq(worker_metric(good, "mlad_accept_pauses_total", ""), 0);

    /* No descriptor is left: the next one waits in the backlog, the others go on. */
    limit.rlim_cur = limit.rlim_max = daemon_fds(&d);
    ck_assert_int_eq(prlimit(d.pid, RLIMIT_NOFILE, &limit, NULL), 0);
    struct raw late;
    struct mla_message hello;
    raw_connect(&late, d.socket);
    mla_message_init(&hello, MLA_MSG_HELLO);
    raw_send(&late, &hello, 5, NULL, 0);
    WAIT_FOR(worker_metric(good, "mlad_accept_pauses_total", "") > 0, 3000 * TEST_SLOW);
    good_is_fine();
    ck_assert(!raw_readable(&late, 100));
    /* Who is connected is served and can see what is wrong. */
    WAIT_FOR(worker_metric(good, "mlad_degraded", "reason=\"descriptors\"") == 1, 3000 * TEST_SLOW);
    ck_assert_double_eq(worker_metric(good, "mlad_health", "state=\"degraded\""), 1);
    ck_assert_double_eq(worker_metric(good, "mlad_ready", ""), 1);
    ck_assert_double_eq(worker_metric(good, "mlad_degraded_total", "reason=\"descriptors\""), 1);
    good_is_fine();
    /* One leaves, and it is let in. */
    raw_close(&many[0]);
    ck_assert_int_eq(raw_wait(&late, 5)->hello_reply.status.code, MLA_OK);
    good_is_fine();
    raw_close(&late);
    for (unsigned i = 1; i < MANY - 1; i++)
        raw_close(&many[i]);
    WAIT_FOR(worker_metric(good, "mlad_clients", "") == 1, 5000 * TEST_SLOW);
    teardown();
}
END_TEST

/* A soft limit that login shells and service managers give out is no bound on clients; a hard one is, and is named. */
START_TEST(the_soft_limit_of_descriptors_is_raised)
{
    struct rlimit own = {256, 1200}, its;
    setrlimit(RLIMIT_NOFILE, &own);
    daemon_start(&d, "limits.max_clients=600", NULL);
    ck_assert_int_eq(prlimit(d.pid, RLIMIT_NOFILE, NULL, &its), 0);
    ck_assert_uint_eq(its.rlim_cur, 600 + 512);
    ck_assert_uint_eq(its.rlim_max, 1200);
    ck_assert_uint_eq(daemon_log_count(&d, "event=few_descriptors"), 0);
    daemon_stop(&d, SIGTERM, 0);
    daemon_start(&d, NULL);
    ck_assert_int_eq(prlimit(d.pid, RLIMIT_NOFILE, NULL, &its), 0);
    ck_assert_uint_eq(its.rlim_cur, 1200);
    ck_assert_uint_eq(daemon_log_count(&d, "event=few_descriptors limit=1200 max_clients=1024"), 1);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

START_TEST(more_clients_than_allowed)
{
    daemon_start(&d, "limits.max_clients=2", NULL);
    setup();
    struct raw second, third;
    raw_open(&second, d.socket);
    raw_connect(&third, d.socket);
    ck_assert(raw_receive(&third));
    ck_assert_uint_eq(third.header.type, MLA_NOTICE_ERROR);
    ck_assert_int_eq(third.message.error_notice.status.code, MLA_OVERLOADED);
    ck_assert_uint_eq(third.message.error_notice.status.limit, 2);
    ck_assert(!raw_receive(&third));
    raw_close(&third);
    raw_close(&second);
    WAIT_FOR(worker_metric(good, "mlad_clients", "") == 1, 1000 * TEST_SLOW);
    raw_open(&third, d.socket);
    raw_close(&third);
    ck_assert_double_eq(worker_metric(good, "mlad_connections_refused_total", ""), 1);
    teardown();
}
END_TEST

/* ---- D18, D11 ---- */

START_TEST(d18_another_major)
{
    daemon_start(&d, NULL);
    setup();
    struct raw r;
    uint8_t h[MLA_WIRE_HEADER_BYTES + 3] = {0};
    raw_connect(&r, d.socket);
    header(h, 2, MLA_MSG_HELLO, 3, 0); /* a body that this major need not understand */
    raw_bytes(&r, h, sizeof(h), NULL, 0);
    const struct mla_hello_reply *reply = &raw_wait(&r, 77)->hello_reply;
    ck_assert_int_eq(reply->status.code, MLA_VERSION_MISMATCH);
    ck_assert_uint_eq(reply->status.value, 2);
    ck_assert_uint_eq(reply->status.limit, MLA_PROTO_MAJOR);
    ck_assert_uint_eq(reply->major, MLA_PROTO_MAJOR);
    ck_assert_msg(strstr(reply->status.text, "2") != NULL && strstr(reply->status.text, "1") != NULL, "%s",
                  reply->status.text);
    ck_assert(!raw_receive(&r));
    raw_close(&r);
    teardown();
}
END_TEST

START_TEST(d11_another_gpu)
{
    daemon_start(&d, NULL);
    setup();
    struct raw r;
    struct mla_message m;
    const char *served = mla_server(good)->gpu_uuid;
    raw_connect(&r, d.socket);
    mla_message_init(&m, MLA_MSG_HELLO);
    m.hello.gpu_uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef";
    const struct mla_error *e = raw_expect(&r, &m, MLA_WRONG_DEVICE, "gpu_uuid");
    ck_assert_msg(strstr(e->text, served) != NULL, "%s", e->text);
    ck_assert(!raw_receive(&r));
    raw_close(&r);
    raw_connect(&r, d.socket);
    m.hello.gpu_uuid = served;
    raw_expect(&r, &m, MLA_OK, NULL);
    raw_close(&r);

    raw_open(&r, d.socket); /* the same for memory */
    int fd = raw_memfd(4096, NULL);
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    m.register_region.kind = MLA_REGION_MEMFD;
    m.register_region.access = MLA_ACCESS_READ;
    m.register_region.size = 4096;
    m.register_region.gpu_uuid = "GPU-0";
    e = &raw_call_fds(&r, &m, &fd, 1)->reply.status;
    ck_assert_int_eq(e->code, MLA_WRONG_DEVICE);
    ck_assert_str_eq(e->field, "gpu_uuid");
    ck_assert_msg(strstr(e->text, served) != NULL, "%s", e->text);
    raw_close(&r);

    struct mla_options options;
    struct mla_client *client = NULL;
    struct mla_error_info info;
    mla_options_init(&options);
    options.socket_path = d.socket;
    options.gpu_uuid = "GPU-0";
    ck_assert_int_eq(mla_open(&options, &client, &info), MLA_WRONG_DEVICE);
    ck_assert_msg(strstr(info.text, served) != NULL, "%s", info.text);
    teardown();
}
END_TEST

MLA_SUITE(mlad_hostile)
{
    TCase *tc = mla_tcase_timeout(suite, "hostile", 60);
    if (daemon_backend == NULL) /* with a memfd; on_cuda.c */
        tcase_add_test(tc, ids_of_steps_in_flight);
    tcase_add_test(tc, d8_objects_of_another);
    tcase_add_test(tc, d9_past_the_region);
    tcase_add_test(tc, d6_broken_streams);
    tcase_add_test(tc, d6_bad_bodies);
    tcase_add_test(tc, d6_flipped_bits);
    tcase_add_test(tc, d7_one_byte_at_a_time);
    tcase_add_test(tc, d7_never_reads);
    tcase_add_test(tc, d13_connections_until_descriptors_end);
    tcase_add_test(tc, the_soft_limit_of_descriptors_is_raised);
    tcase_add_test(tc, more_clients_than_allowed);
    tcase_add_test(tc, d18_another_major);
    tcase_add_test(tc, d11_another_gpu);
}
