/* Every message of the protocol against the real daemon: what is not offered, what is refused with which field, and
 * that refusals are counted and change nothing. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/integration/ground.h"
#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/messages.h"

static struct daemon d;
static struct ground g;
static struct mla_message m;

static void setup(void)
{
    daemon_start(&d, NULL);
    ground_open(&g, d.socket);
}

static void teardown(void)
{
    ground_decodes(&g);
    ground_close(&g);
    daemon_stop(&d, SIGTERM, 0);
}

START_TEST(hello_says_what_is_offered)
{
    struct raw r;
    daemon_start(&d, "limits.max_regions=11", "limits.max_mapped_bytes=12M", "limits.max_jobs_in_flight=13",
                 "limits.max_queued_bytes=14M", "limits.max_table_sets=15", "limits.max_caches=16", NULL);
    raw_connect(&r, d.socket);
    mla_message_init(&m, MLA_MSG_HELLO);
    m.hello.client_name = "me";
    const struct mla_hello_reply *h = &raw_call(&r, &m)->hello_reply;
    ck_assert_int_eq(h->status.code, MLA_OK);
    ck_assert_uint_eq(h->major, MLA_PROTO_MAJOR);
    ck_assert_uint_eq(h->minor, MLA_PROTO_MINOR);
    ck_assert_uint_eq(h->features, MLA_FEATURE_DECODE | MLA_FEATURE_MEMFD | MLA_FEATURE_SYNC | MLA_FEATURE_SUSPEND |
                                       MLA_FEATURE_PUBLISH | MLA_FEATURE_STEP | MLA_FEATURE_EVICT | MLA_FEATURE_RELOAD);
    ck_assert_uint_ne(h->boot_nonce, 0);
    ck_assert_uint_ne(h->client_id, 0);
    ck_assert_str_eq(h->backend, "cpu");
    ck_assert_str_eq(h->isolation, "host");
    ck_assert_msg(strncmp(h->gpu_uuid, "CPU-", 4) == 0, "%s", h->gpu_uuid);
    ck_assert(h->version[0] != '\0');
    ck_assert(h->limits.present);
    ck_assert_uint_eq(h->limits.max_regions, 11);
    ck_assert_uint_eq(h->limits.max_mapped_bytes, 12u << 20);
    ck_assert_uint_eq(h->limits.max_jobs_in_flight, 13);
    ck_assert_uint_eq(h->limits.max_queued_bytes, 14u << 20);
    ck_assert_uint_eq(h->limits.max_table_sets, 15);
    ck_assert_uint_eq(h->limits.max_caches, 16);
    ck_assert_uint_eq(h->limits.max_body_bytes, MLA_CAP_TABLE_BYTES);
    uint64_t id = h->client_id;
    mla_message_init(&m, MLA_MSG_STATUS);
    m.status.what = MLA_STATUS_CLIENTS;
    const struct mla_status_reply *s = &raw_call(&r, &m)->status_reply;
    ck_assert_uint_eq(s->n_clients, 1);
    ck_assert_uint_eq(s->clients[0].client_id, id);
    ck_assert_str_eq(s->clients[0].name, "me");
    ck_assert_uint_eq(s->clients[0].pid, (uint32_t)getpid());
    ck_assert_uint_eq(s->clients[0].uid, (uint32_t)getuid());

    /* One of several: that one, or none. */
    static struct raw other;
    raw_open(&other, d.socket);
    ck_assert_uint_eq(raw_call(&r, &m)->status_reply.n_clients, 2);
    m.status.client_id = id;
    s = &raw_call(&other, &m)->status_reply;
    ck_assert_uint_eq(s->n_clients, 1);
    ck_assert_uint_eq(s->clients[0].client_id, id);
    m.status.client_id = UINT64_MAX;
    s = &raw_call(&other, &m)->status_reply;
    ck_assert_int_eq(s->status.code, MLA_OK);
    ck_assert_uint_eq(s->n_clients, 0);
    raw_close(&other);
    raw_close(&r);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* Known, not offered: answered so, and the connection goes on. */
START_TEST(unsupported)
{
    const int fds[1] = {0};
    setup();
    unsigned fds_before = daemon_fds(&d);

    /* Kinds of memory of other backends. */
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    static const uint8_t handle[MLA_CUDA_IPC_BYTES];
    char uuid[96];
    mla_message_init(&m, MLA_MSG_HEALTH);
    snprintf(uuid, sizeof(uuid), "%s", raw_call(&g.r, &m)->health_reply.gpu_uuid);
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    m.register_region.kind = MLA_REGION_CUDA_IPC;
    m.register_region.access = MLA_ACCESS_READ;
    m.register_region.size = m.register_region.block_size = 4096;
    m.register_region.gpu_uuid = uuid;
    m.register_region.cuda_ipc = handle;
    m.register_region.n_cuda_ipc = sizeof(handle);
    raw_expect(&g.r, &m, MLA_UNSUPPORTED, "kind");
    ck_assert_uint_eq(g.r.message.reply.status.value, MLA_REGION_CUDA_IPC);
    m.register_region.gpu_uuid = "GPU-7";
    raw_expect(&g.r, &m, MLA_WRONG_DEVICE, "gpu_uuid");
    struct mla_region_part part = {.size = 4096};
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    m.register_region.kind = MLA_REGION_CUDA_VMM;
    m.register_region.access = MLA_ACCESS_READ;
    m.register_region.size = 4096;
    m.register_region.gpu_uuid = uuid;
    m.register_region.parts = &part;
    m.register_region.n_parts = 1;
    const struct mla_error *e = &raw_call_fds(&g.r, &m, fds, 1)->reply.status;
    ck_assert_int_eq(e->code, MLA_UNSUPPORTED);
    ck_assert_str_eq(e->field, "kind");
    ck_assert_double_eq(raw_metric(&g.r, "mlad_replies_total", "status=\"UNSUPPORTED\""), 2);
    ck_assert_uint_eq(daemon_fds(&d), fds_before);
    teardown();
}
END_TEST

/* ---- refusals that other files do not have ---- */

static const uint32_t two[2] = {2, 2}, lens[2] = {100, 64}, pages[4] = {0, 1, 2, 3};

static struct mla_put_table_set_request *tables(void)
{
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set.id = 50;
    m.put_table_set.q_len = two;
    m.put_table_set.kv_len_max = lens;
    m.put_table_set.n_q_len = m.put_table_set.n_kv_len_max = 2;
    m.put_table_set.pages = pages;
    m.put_table_set.n_pages = 3;
    return &m.put_table_set;
}

static void refused(enum mla_status code, const char *field, uint64_t index, uint64_t value, uint64_t limit)
{
    const struct mla_error *e = raw_expect(&g.r, &m, code, field);
    ck_assert_msg(e->index == index && e->value == value && e->limit == limit, "%s: index %llu, value %llu, limit %llu",
                  field, (unsigned long long)e->index, (unsigned long long)e->value, (unsigned long long)e->limit);
}

START_TEST(table_sets)
{
    setup();
    struct mla_put_table_set_request *t = &m.put_table_set;
    static uint32_t many[65537];
    const uint32_t long_q[2] = {1, MLA_Q_LEN_MAX + 1}, long_kv[2] = {1, MLA_KV_LEN_MAX + 1};
    double before = raw_metric(&g.r, "mlad_table_sets", "");
    tables()->n_pages = 4;
    refused(MLA_INVALID_ARGUMENT, "pages", 0, 4, 3);
    tables()->n_pages = 2;
    refused(MLA_INVALID_ARGUMENT, "pages", 0, 2, 3);
    tables()->entries_per_seq = 1;
    refused(MLA_INVALID_ARGUMENT, "entries_per_seq", 0, 1, 2);
    tables()->entries_per_seq = 3;
    refused(MLA_INVALID_ARGUMENT, "pages", 1, 3, 4);
    tables()->n_kv_len_max = 1;
    refused(MLA_INVALID_ARGUMENT, "kv_len_max", 0, 1, 2);
    tables()->q_len = long_q;
    refused(MLA_TOO_LARGE, "q_len", 1, MLA_Q_LEN_MAX + 1, MLA_Q_LEN_MAX);
    tables()->kv_len_max = long_kv;
    refused(MLA_TOO_LARGE, "kv_len_max", 1, MLA_KV_LEN_MAX + 1, MLA_KV_LEN_MAX);
    tables()->tokens_per_entry = 65;
    refused(MLA_MISALIGNED, "tokens_per_entry", 0, 65, 64);
    tables();
    t->q_len = t->kv_len_max = many;
    t->n_q_len = t->n_kv_len_max = MLA_SEQS_PER_JOB_MAX + 1;
    t->n_pages = 0;
    refused(MLA_TOO_LARGE, "q_len", 0, MLA_SEQS_PER_JOB_MAX + 1, MLA_SEQS_PER_JOB_MAX);
    ck_assert_double_eq(raw_metric(&g.r, "mlad_table_sets", ""), before);
    tables();
    raw_expect(&g.r, &m, MLA_OK, NULL);
    raw_expect(&g.r, &m, MLA_ALREADY_EXISTS, "id"); /* immutable */
    ck_assert_uint_eq(g.r.message.reply.status.value, 50);
    mla_message_init(&m, MLA_MSG_DROP_TABLE_SET);
    m.drop_table_set.id = 50;
    raw_expect(&g.r, &m, MLA_OK, NULL);
    raw_expect(&g.r, &m, MLA_NOT_FOUND, "id");
    tables()->n_pages = 0; /* tables in a region */
    raw_expect(&g.r, &m, MLA_OK, NULL);
    teardown();
}
END_TEST

START_TEST(names_and_enums)
{
    setup();
    struct raw r;
    raw_connect(&r, d.socket);
    mla_message_init(&m, MLA_MSG_HELLO);
    m.hello.client_name = "\xc3\xa9"; /* ASCII only */
    raw_expect(&r, &m, MLA_INVALID_ARGUMENT, "client_name");
    m.hello.client_name = "0123456789012345678901234567890123456789012345678901234567890123x";
    raw_expect(&r, &m, MLA_TOO_LARGE, "client_name");
    m.hello.client_name = "a\nb";
    raw_expect(&r, &m, MLA_INVALID_ARGUMENT, "client_name");
    m.hello.client_name = "fine"; /* a HELLO that was refused for its fields may be sent again */
    raw_expect(&r, &m, MLA_OK, NULL);
    raw_close(&r);
    mla_message_init(&m, MLA_MSG_STATUS);
    m.status.what = (enum mla_status_what)4;
    raw_expect(&g.r, &m, MLA_INVALID_ARGUMENT, "what");
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    m.register_region.kind = (enum mla_region_kind)4;
    m.register_region.access = MLA_ACCESS_READ;
    m.register_region.size = 1;
    raw_expect(&g.r, &m, MLA_INVALID_ARGUMENT, "kind");
    m.register_region.kind = MLA_REGION_MEMFD;
    m.register_region.block_size = 1;
    raw_expect(&g.r, &m, MLA_INVALID_ARGUMENT, "block_size");
    teardown();
}
END_TEST

/* Each refusal is one more of its code in mlad_replies_total, and nothing else moves but requests and traffic. */
START_TEST(counted)
{
    static const char *const still[] = {"mlad_regions", "mlad_mapped_bytes", "mlad_caches",       "mlad_table_sets",
                                        "mlad_clients", "mlad_attachments",  "mlad_batches_total"};
    double values[sizeof(still) / sizeof(still[0])];
    setup();
    for (size_t i = 0; i < sizeof(still) / sizeof(still[0]); i++)
        values[i] = raw_metric(&g.r, still[i], "");
    struct {
        enum mla_status code;
        const char *labels;
        double before;
    } codes[] = {{MLA_NOT_FOUND, "status=\"NOT_FOUND\"", 0},
                 {MLA_MISALIGNED, "status=\"MISALIGNED\"", 0},
                 {MLA_OUT_OF_BOUNDS, "status=\"OUT_OF_BOUNDS\"", 0},
                 {MLA_WRONG_DEVICE, "status=\"WRONG_DEVICE\"", 0}};
    for (size_t i = 0; i < 4; i++)
        codes[i].before = raw_metric(&g.r, "mlad_replies_total", codes[i].labels);
    double jobs = raw_metric(&g.r, "mlad_jobs_total", "status=\"MISALIGNED\"");
    for (unsigned round = 0; round < 5; round++) {
        ground_decode(&g, &m);
        m.decode.cache = 1;
        raw_expect(&g.r, &m, MLA_NOT_FOUND, "cache");
        ground_decode(&g, &m);
        m.decode.q.offset = 1; /* seen by the codec */
        raw_expect(&g.r, &m, MLA_MISALIGNED, "q.offset");
        ground_decode(&g, &m);
        m.decode.plane = 7;
        raw_expect(&g.r, &m, MLA_OUT_OF_BOUNDS, "plane");
        mla_message_init(&m, MLA_MSG_HELLO);
        struct raw r;
        raw_connect(&r, d.socket);
        m.hello.gpu_uuid = "GPU-7";
        raw_expect(&r, &m, MLA_WRONG_DEVICE, "gpu_uuid");
        raw_close(&r);
    }
    for (size_t i = 0; i < 4; i++)
        ck_assert_msg(raw_metric(&g.r, "mlad_replies_total", codes[i].labels) == codes[i].before + 5, "%s",
                      codes[i].labels);
    ck_assert_double_eq(raw_metric(&g.r, "mlad_jobs_total", "status=\"MISALIGNED\""), jobs + 5);
    for (size_t i = 0; i < sizeof(still) / sizeof(still[0]); i++)
        ck_assert_msg(raw_metric(&g.r, still[i], "") == values[i], "%s", still[i]);
    teardown();
}
END_TEST

/* ---- D17 ---- */

static void series(FILE *out)
{
    struct raw r;
    raw_open(&r, d.socket);
    mla_message_init(&m, MLA_MSG_METRICS);
    const struct mla_metrics_reply *reply = &raw_call(&r, &m)->metrics_reply;
    for (size_t i = 0; i < reply->n_metrics; i++) {
        const struct mla_metric *f = &reply->metrics[i];
        static const char *const types[] = {"", "counter", "gauge", "histogram"};
        fprintf(out, "# %s %s\n", f->name, types[f->type]);
        ck_assert_msg(f->help[0] != '\0', "%s has no help", f->name);
        if (strcmp(f->name, "mlad_build_info") == 0 || strcmp(f->name, "mlad_client_mapped_bytes") == 0)
            continue; /* their labels are those of the machine and of this connection */
        for (size_t k = 0; k < f->n_samples; k++)
            fprintf(out, "%s%s{%s}\n", f->name, f->samples[k].suffix, f->samples[k].labels);
    }
    raw_close(&r);
}

START_TEST(d17_metrics_before_any_traffic)
{
    daemon_start(&d, NULL);
    struct raw r;
    raw_open(&r, d.socket);
    mla_message_init(&m, MLA_MSG_METRICS);
    const struct mla_metrics_reply *reply = &raw_call(&r, &m)->metrics_reply;
    /* What is not 0 when the first to ask is this connection: its own traffic, and facts. */
    static const char *const moving[] = {"mlad_build_info",
                                         "mlad_uptime_seconds",
                                         "mlad_ready",
                                         "mlad_health",
                                         "mlad_loop_lag_seconds",
                                         "mlad_clients",
                                         "mlad_workspace_bytes",
                                         "mlad_device_memory_bytes",
                                         "mlad_units",
                                         "mlad_connections_accepted_total",
                                         "mlad_connections_closed_total",
                                         "mlad_frames_received_total",
                                         "mlad_frames_sent_total",
                                         "mlad_received_bytes_total",
                                         "mlad_sent_bytes_total"};
    for (size_t i = 0; i < reply->n_metrics; i++) {
        const struct mla_metric *f = &reply->metrics[i];
        bool moves = false;
        for (size_t k = 0; k < sizeof(moving) / sizeof(moving[0]); k++)
            moves = moves || strcmp(f->name, moving[k]) == 0;
        for (size_t k = 0; k < f->n_samples && !moves; k++) {
            const struct mla_sample *s = &f->samples[k];
            double expected =
                strcmp(s->labels, "type=\"HELLO\"") == 0 || strcmp(s->labels, "type=\"METRICS\"") == 0 ||
                        (strcmp(f->name, "mlad_replies_total") == 0 && strcmp(s->labels, "status=\"OK\"") == 0)
                    ? 1
                    : 0;
            ck_assert_msg(s->value == expected, "%s%s{%s} is %g", f->name, s->suffix, s->labels, s->value);
        }
    }
    raw_close(&r);

    static char text[1 << 16], golden[1 << 16];
    FILE *out = fmemopen(text, sizeof(text), "w"), *in = fopen(METRICS_GOLDEN, "re");
    series(out);
    fclose(out);
    ck_assert_ptr_nonnull(in);
    golden[fread(golden, 1, sizeof(golden) - 1, in)] = '\0';
    fclose(in);
    const char *a = text, *b = golden;
    for (unsigned line = 1; *a != '\0' || *b != '\0'; line++) {
        size_t na = strcspn(a, "\n"), nb = strcspn(b, "\n");
        ck_assert_msg(na == nb && memcmp(a, b, na) == 0, "series %u is \"%.*s\", not \"%.*s\" as in metrics.golden",
                      line, (int)na, a, (int)nb, b);
        a += na + (a[na] == '\n');
        b += nb + (b[nb] == '\n');
    }
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

MLA_SUITE(mlad_messages)
{
    TCase *tc = mla_tcase(suite, "messages");
    if (daemon_backend == NULL) { /* on_cuda.c: memfds, and what the CPU backend says of itself */
        tcase_add_test(tc, hello_says_what_is_offered);
        tcase_add_test(tc, unsupported);
        tcase_add_test(tc, table_sets);
        tcase_add_test(tc, names_and_enums);
        tcase_add_test(tc, counted);
    }
    tcase_add_test(tc, d17_metrics_before_any_traffic);
}
