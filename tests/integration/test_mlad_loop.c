/* How long one frame, or one peer's end, keeps all others waiting: read from mlad_loop_lag_seconds, which counts every
 * turn of the loop. Of several rounds the best counts, since the machine may take the processor away in any of them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/integration/ground.h"
#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"

#define ROUNDS     (TEST_SLOW == 1 ? 20 : 1) /* sanitizers look at what is done, not at how long it takes */
#define BAR_S      0.005
#define BOUNDS_MAX 32
#define IO_BYTES   (UINT64_C(3) << 30) /* hardly any of it is ever there */
#define SEQS       MLA_SEQS_PER_JOB_MAX
#define LAYERS     512u

static struct daemon d;
static struct raw watch; /* looks at the metrics */

struct turns {
    double bounds[BOUNDS_MAX], counts[BOUNDS_MAX];
    size_t n;
};

static void look(struct turns *t)
{
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_METRICS);
    const struct mla_metrics_reply *reply = &raw_call(&watch, &m)->metrics_reply;
    t->n = 0;
    for (size_t i = 0; i < reply->n_metrics; i++) {
        const struct mla_metric *f = &reply->metrics[i];
        if (strcmp(f->name, "mlad_loop_lag_seconds") != 0)
            continue;
        for (size_t k = 0; k < f->n_samples; k++) {
            if (strcmp(f->samples[k].suffix, "_bucket") != 0)
                continue;
            ck_assert_uint_lt(t->n, BOUNDS_MAX);
            t->bounds[t->n] = strtod(f->samples[k].labels + strlen("le=\""), NULL);
            t->counts[t->n++] = f->samples[k].value;
        }
    }
    ck_assert_uint_gt(t->n, 0);
}

/* The bound of the bucket that the longest turn between the two looks is in. */
static double longest(const struct turns *before, const struct turns *after)
{
    double all = after->counts[after->n - 1] - before->counts[before->n - 1];
    for (size_t i = 0; i < after->n; i++)
        if (after->counts[i] - before->counts[i] == all)
            return after->bounds[i];
    ck_abort_msg("a histogram that ends below its count");
    return 0;
}

struct peer {
    struct ground g;
    uint64_t io; /* a region of IO_BYTES */
    uint64_t ids;
};

static void peer_open(struct peer *p)
{
    ground_open(&p->g, d.socket);
    int fd = raw_memfd(IO_BYTES, NULL);
    p->io = raw_region(&p->g.r, fd, IO_BYTES, MLA_ACCESS_READ_WRITE);
    close(fd);
    p->ids = 100;
}

/* ---- bodies ---- */

static uint32_t *numbers(size_t n, uint32_t value)
{
    uint32_t *of = malloc(n * sizeof(*of));
    ck_assert_ptr_nonnull(of);
    for (size_t i = 0; i < n; i++)
        of[i] = value;
    return of;
}

static uint64_t put_of(struct peer *p, uint32_t n_seqs, uint32_t q_len, uint32_t kv_len, size_t n_pages,
                       enum mla_status expected)
{
    struct mla_message m;
    uint32_t *q = numbers(n_seqs, q_len), *kv = numbers(n_seqs, kv_len), *pages = numbers(n_pages + 1, 0);
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set.id = ++p->ids;
    m.put_table_set.q_len = q;
    m.put_table_set.kv_len_max = kv;
    m.put_table_set.n_q_len = m.put_table_set.n_kv_len_max = n_seqs;
    m.put_table_set.pages = pages;
    m.put_table_set.n_pages = n_pages;
    enum mla_status code = raw_call(&p->g.r, &m)->reply.status.code;
    ck_assert_msg(code == expected, "%s", mla_status_name(code));
    free(q);
    free(kv);
    free(pages);
    return p->ids;
}

static uint64_t put(struct peer *p, uint32_t n_seqs, uint32_t kv_len, size_t n_pages, enum mla_status expected)
{
    return put_of(p, n_seqs, 1, kv_len, n_pages, expected);
}

/* Whatever a test did before is dropped: quotas are per client. */
static void drop(struct peer *p, uint64_t id)
{
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_DROP_TABLE_SET);
    m.drop_table_set.id = id;
    raw_expect(&p->g.r, &m, MLA_OK, NULL);
}

static void most_pages(struct peer *p)
{
    drop(p, put(p, 7, MLA_KV_LEN_MAX, 7 * (size_t)(MLA_KV_LEN_MAX / 64), MLA_OK));
}

static void most_sequences(struct peer *p)
{
    drop(p, put(p, SEQS, 64, SEQS, MLA_OK));
}

static void wrong_at_the_end(struct peer *p)
{
    put(p, SEQS, 64, SEQS - 1, MLA_INVALID_ARGUMENT);
}

static void decode_of(const struct peer *p, struct mla_message *m, uint64_t tables)
{
    ground_decode(&p->g, m);
    m->decode.table_set = tables;
    m->decode.heads = 1;
    m->decode.out_type = MLA_DTYPE_E4M3;
    m->decode.mask = MLA_MASK_NONE;
    m->decode.lse.present = false;
    m->decode.q.region = m->decode.o.region = p->io;
    m->decode.q.token_stride = m->decode.q.head_stride = 576;
    m->decode.o.token_stride = m->decode.o.head_stride = 512;
    m->decode.q.offset = 0;
    m->decode.o.offset = IO_BYTES / 2;
}

static void decode_most_sequences(struct peer *p)
{
    struct mla_message m;
    uint64_t id = put(p, SEQS, 0, 0, MLA_OK);
    decode_of(p, &m, id);
    raw_expect(&p->g.r, &m, MLA_OK, NULL);
    drop(p, id);
}

static void decode_invariant(struct peer *p)
{
    struct mla_message m;
    uint64_t id = put(p, SEQS, 0, 0, MLA_OK);
    decode_of(p, &m, id);
    m.decode.batch_invariant = true;
    raw_expect(&p->g.r, &m, MLA_OK, NULL);
    drop(p, id);
}

/* Planned when it comes, since it is to be invariant; then cancelled. */
static void decode_most_rows(struct peer *p)
{
    struct mla_message m;
    uint32_t n_seqs = MLA_ROWS_PER_JOB_MAX / MLA_Q_LEN_MAX / MLA_HEADS_MAX;
    uint64_t id = put_of(p, n_seqs, MLA_Q_LEN_MAX, 64, n_seqs, MLA_OK), decode = ++p->g.r.last_id;
    decode_of(p, &m, id);
    m.decode.heads = MLA_HEADS_MAX;
    m.decode.q.token_stride = m.decode.q.head_stride = 0;
    m.decode.o.token_stride = 512 * MLA_HEADS_MAX;
    m.decode.o.offset = 4096;
    m.decode.batch_invariant = true;
    m.decode.ready = ground_ref(p->g.sync, 0);
    raw_send(&p->g.r, &m, decode, NULL, 0);
    mla_message_init(&m, MLA_MSG_CANCEL);
    m.cancel.request_id = decode;
    raw_send(&p->g.r, &m, ++p->g.r.last_id, NULL, 0);
    const struct mla_error *status = &raw_wait(&p->g.r, decode)->reply.status;
    ck_assert_msg(status->code == MLA_CANCELLED, "%s (%s)", status->text, status->field == NULL ? "" : status->field);
    drop(p, id);
}

/* One sequence as long as they may be among many short ones: the planner cuts it, and looks for where. */
static void decode_uneven(struct peer *p)
{
    static uint32_t q[SEQS], kv[SEQS], pages[SEQS + MLA_KV_LEN_MAX / 64];
    struct mla_message m;
    for (uint32_t s = 0; s < SEQS; s++) {
        q[s] = 1;
        kv[s] = s == SEQS / 2 ? MLA_KV_LEN_MAX : 64;
    }
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set.id = ++p->ids;
    m.put_table_set.q_len = q;
    m.put_table_set.kv_len_max = kv;
    m.put_table_set.n_q_len = m.put_table_set.n_kv_len_max = SEQS;
    m.put_table_set.pages = pages;
    m.put_table_set.n_pages = SEQS - 1 + MLA_KV_LEN_MAX / 64;
    raw_expect(&p->g.r, &m, MLA_OK, NULL);
    uint64_t decode = ++p->g.r.last_id;
    decode_of(p, &m, p->ids);
    m.decode.batch_invariant = true;
    m.decode.ready = ground_ref(p->g.sync, 0);
    raw_send(&p->g.r, &m, decode, NULL, 0);
    mla_message_init(&m, MLA_MSG_CANCEL);
    m.cancel.request_id = decode;
    raw_send(&p->g.r, &m, ++p->g.r.last_id, NULL, 0);
    const struct mla_error *status = &raw_wait(&p->g.r, decode)->reply.status;
    ck_assert_msg(status->code == MLA_CANCELLED, "%s (%s)", status->text, status->field == NULL ? "" : status->field);
    drop(p, p->ids);
}

static void decode_visible(struct peer *p)
{
    struct mla_message m;
    uint64_t id = put(p, SEQS, 1, SEQS, MLA_OK);
    uint32_t *visible = numbers(SEQS, 1);
    decode_of(p, &m, id);
    m.decode.mask = MLA_MASK_VISIBLE;
    m.decode.visible = visible;
    m.decode.n_visible = SEQS;
    m.decode.timeout_us = 1000; /* late or not */
    enum mla_status code = raw_call(&p->g.r, &m)->reply.status.code;
    ck_assert(code == MLA_OK || code == MLA_TIMED_OUT || code == MLA_LATE);
    free(visible);
    drop(p, id);
}

static void template_of(struct peer *p, uint64_t tables, enum mla_status expected)
{
    static struct mla_decode_request layers[LAYERS];
    struct mla_message m;
    decode_of(p, &m, tables);
    for (uint32_t i = 0; i < LAYERS; i++) {
        layers[i] = m.decode;
        layers[i].ready = ground_ref(p->g.sync, 0);
        layers[i].done = ground_ref(p->g.sync, 64);
    }
    mla_message_init(&m, MLA_MSG_TEMPLATE_OPEN);
    m.template_open.id = ++p->ids;
    m.template_open.layers = layers;
    m.template_open.n_layers = LAYERS;
    enum mla_status code = raw_call(&p->g.r, &m)->reply.status.code;
    ck_assert_msg(code == expected, "%s", mla_status_name(code));
}

static void template_small(struct peer *p)
{
    template_of(p, GROUND_TABLES, MLA_OVERLAP); /* all name the same words */
}

static void template_of_too_much(struct peer *p)
{
    uint64_t id = put(p, SEQS, 1, SEQS, MLA_OK);
    template_of(p, id, MLA_TOO_LARGE);
    drop(p, id);
}

static void template_most_sequences(struct peer *p)
{
    uint64_t id = put(p, MLA_LAYER_SEQS_MAX / LAYERS, 1, MLA_LAYER_SEQS_MAX / LAYERS, MLA_OK);
    template_of(p, id, MLA_OVERLAP);
    drop(p, id);
}

/* ---- bodies that are not ones ---- */

static void bomb(struct peer *p, uint16_t type, const uint8_t first[2], uint8_t a, uint8_t b)
{
    size_t n = MLA_CAP_TABLE_BYTES;
    uint8_t *frame = malloc(MLA_WIRE_HEADER_BYTES + n);
    ck_assert_ptr_nonnull(frame);
    for (size_t i = 0; i < n; i += 2) {
        frame[MLA_WIRE_HEADER_BYTES + i] = a;
        frame[MLA_WIRE_HEADER_BYTES + i + 1] = b;
    }
    memcpy(frame + MLA_WIRE_HEADER_BYTES, first, 2);
    mla_wire_pack(
        &(struct mla_frame_header){
            .major = MLA_PROTO_MAJOR, .type = type, .body_len = (uint32_t)n, .request_id = ++p->g.r.last_id},
        frame);
    ck_assert(raw_bytes(&p->g.r, frame, MLA_WIRE_HEADER_BYTES + n, NULL, 0));
    ck_assert_int_ne(raw_wait(&p->g.r, p->g.r.last_id)->reply.status.code, MLA_OK);
    free(frame);
}

static void bomb_of_layers(struct peer *p)
{
    bomb(p, MLA_MSG_TEMPLATE_OPEN, (const uint8_t[]){0x12, 0}, 0x12, 0);
}

static void bomb_behind_a_layer(struct peer *p) /* of a field that is not known */
{
    bomb(p, MLA_MSG_TEMPLATE_OPEN, (const uint8_t[]){0x12, 0}, 0x78, 1);
}

static void bomb_of_ids(struct peer *p) /* behind a layer, of a field that may come once */
{
    bomb(p, MLA_MSG_TEMPLATE_OPEN, (const uint8_t[]){0x12, 0}, 0x08, 1);
}

static void bomb_of_a_scalar(struct peer *p)
{
    bomb(p, MLA_MSG_DECODE, (const uint8_t[]){0x78, 1}, 0x78, 1);
}

static void bomb_of_bits(struct peer *p)
{
    bomb(p, MLA_MSG_PUT_TABLE_SET, (const uint8_t[]){0x80, 0x80}, 0x80, 0x80);
}

/* ---- ends ---- */

static void end_of_much(struct peer *p)
{
    struct mla_message m;
    struct raw r;
    (void)p;
    raw_open(&r, d.socket);
    int fd = raw_memfd(64 * 576, NULL);
    for (int i = 0; i < 120; i++)
        raw_cache(&r, raw_region(&r, fd, 64 * 576, MLA_ACCESS_READ_WRITE), 1);
    for (int i = 0; i < 400; i++)
        raw_region(&r, fd, 64 * 576, MLA_ACCESS_READ_WRITE);
    close(fd);
    for (uint64_t i = 1; i <= 500; i++)
        raw_tables(&r, i, 1, 64);
    mla_message_init(&m, MLA_MSG_HEALTH);
    raw_expect(&r, &m, MLA_OK, NULL);
    raw_close(&r);
    WAIT_FOR(raw_metric(&watch, "mlad_regions", "") <= 4, 5000 * TEST_SLOW);
}

/* All that STATUS may list, asked for by one who has little. The owners stay for the rounds that may follow. */
static void list_of_caches(struct peer *p)
{
    enum { OWN = 256, ROWS = 2048 }; /* limits.max_caches; what one list has at most */
    static struct raw owners[ROWS / OWN + 1];
    struct mla_message m;
    for (size_t i = 0; i < sizeof(owners) / sizeof(owners[0]) && owners[i].memory == NULL; i++) {
        raw_open(&owners[i], d.socket);
        int fd = raw_memfd(64 * 576, NULL);
        uint64_t region = raw_region(&owners[i], fd, 64 * 576, MLA_ACCESS_READ_WRITE);
        close(fd);
        for (int k = 0; k < OWN; k++)
            raw_cache(&owners[i], region, 1);
    }
    mla_message_init(&m, MLA_MSG_STATUS);
    m.status.what = MLA_STATUS_CACHES;
    ck_assert_uint_eq(raw_call(&p->g.r, &m)->status_reply.n_caches, ROWS);
}

static const struct {
    const char *name;
    void (*act)(struct peer *p);
} acts[] = {
    {"most pages", most_pages},
    {"most sequences", most_sequences},
    {"wrong at the end", wrong_at_the_end},
    {"decode of most sequences", decode_most_sequences},
    {"the same, invariant", decode_invariant},
    {"the same, visible counts", decode_visible},
    {"decode of most rows", decode_most_rows},
    {"decode of uneven sequences", decode_uneven},
    {"template of most layers", template_small},
    {"the same, most sequences", template_most_sequences},
    {"the same, more sequences", template_of_too_much},
    {"8 MiB of empty layers", bomb_of_layers},
    {"8 MiB of the unknown", bomb_behind_a_layer},
    {"8 MiB of ids", bomb_of_ids},
    {"8 MiB of a scalar", bomb_of_a_scalar},
    {"8 MiB of bits", bomb_of_bits},
    {"end of a peer with much", end_of_much},
    {"list of most caches", list_of_caches},
};

START_TEST(no_turn_is_long)
{
    struct peer p;
    double best = 1e9;
    daemon_start(&d, "daemon.log_level=error", "limits.max_queued_bytes=1G", NULL);
    setpriority(PRIO_PROCESS, (id_t)d.pid, -15); /* where it may, it runs when it wants to */
    raw_open(&watch, d.socket);
    peer_open(&p);
    for (int round = 0; round < ROUNDS && best > BAR_S; round++) {
        struct turns before, after;
        look(&before);
        acts[_i].act(&p);
        look(&after);
        double this = longest(&before, &after);
        best = this < best ? this : best;
    }
    ck_assert_msg(TEST_SLOW > 1 || best <= BAR_S, "%s: a turn took up to %g s, more than %g s", acts[_i].name, best,
                  BAR_S);
    ground_close(&p.g);
    raw_close(&watch);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* Plans as a GPU's, which has more units than there are processors here: many tiles, one of them very long, to be cut
 * so that all units end together. On the null backend, which plans for an H200 and computes nothing. */
static void decode_for_gpu(struct raw *r, uint64_t io, uint64_t cache, uint32_t n_seqs, uint32_t q_len, uint32_t heads,
                           bool invariant)
{
    static uint32_t q[SEQS], kv[SEQS], pages[SEQS + MLA_KV_LEN_MAX / 64];
    struct mla_message m;
    for (uint32_t s = 0; s < n_seqs; s++) {
        q[s] = q_len;
        kv[s] = s == n_seqs / 2 ? MLA_KV_LEN_MAX : 64;
    }
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set.id = 1;
    m.put_table_set.q_len = q;
    m.put_table_set.kv_len_max = kv;
    m.put_table_set.n_q_len = m.put_table_set.n_kv_len_max = n_seqs;
    m.put_table_set.pages = pages;
    m.put_table_set.n_pages = n_seqs - 1 + MLA_KV_LEN_MAX / 64;
    raw_expect(r, &m, MLA_OK, NULL);
    mla_message_init(&m, MLA_MSG_DECODE);
    struct mla_decode_request *of = &m.decode;
    of->cache = cache;
    of->table_set = 1;
    of->heads = heads;
    of->q = of->o = (struct mla_tensor){.present = true, .region = io, .compact = true};
    of->o.token_stride = 512 * (int64_t)heads;
    of->o.head_stride = 512;
    of->o.offset = 4096;
    of->out_type = MLA_DTYPE_E4M3;
    of->mask = MLA_MASK_NONE;
    of->softmax_scale = 1;
    of->batch_invariant = invariant;
    /* Either is fine: what counts is how long it was thought about. */
    enum mla_status code = raw_call(r, &m)->reply.status.code;
    ck_assert_msg(code == MLA_OK || code == MLA_TOO_LARGE, "%s", mla_status_name(code));
    mla_message_init(&m, MLA_MSG_DROP_TABLE_SET);
    m.drop_table_set.id = 1;
    raw_expect(r, &m, MLA_OK, NULL);
}

static const struct {
    uint32_t n_seqs, q_len, heads;
    bool invariant;
} shapes[] = {{SEQS, 1, 1, false},   {SEQS, 1, 1, true},   {SEQS, 2, 128, false},
              {8, 4096, 128, false}, {8, 4096, 128, true}, {SEQS / 2, 1, 96, false}};

START_TEST(no_plan_of_a_gpu_is_long)
{
    struct raw r;
    double best = 1e9;
    daemon_start(&d, "daemon.backend=null", "daemon.log_level=error", "limits.max_queued_bytes=1G", NULL);
    setpriority(PRIO_PROCESS, (id_t)d.pid, -15);
    raw_open(&watch, d.socket);
    raw_open(&r, d.socket);
    int fd = raw_memfd(IO_BYTES, NULL), kv = raw_memfd(64 * 576, NULL);
    uint64_t io = raw_region(&r, fd, IO_BYTES, MLA_ACCESS_READ_WRITE);
    uint64_t cache = raw_cache(&r, raw_region(&r, kv, 64 * 576, MLA_ACCESS_READ), 1);
    for (int round = 0; round < ROUNDS && best > BAR_S; round++) {
        struct turns before, after;
        look(&before);
        decode_for_gpu(&r, io, cache, shapes[_i].n_seqs, shapes[_i].q_len, shapes[_i].heads, shapes[_i].invariant);
        look(&after);
        double this = longest(&before, &after);
        best = this < best ? this : best;
    }
    ck_assert_msg(TEST_SLOW > 1 || best <= BAR_S, "shape %d: a turn took up to %g s, more than %g s", _i, best, BAR_S);
    close(fd);
    close(kv);
    raw_close(&r);
    raw_close(&watch);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

MLA_SUITE(mlad_loop)
{
    TCase *tc = mla_tcase_timeout(suite, "loop", 60);
    tcase_add_loop_test(tc, no_turn_is_long, 0, (int)(sizeof(acts) / sizeof(acts[0])));
    tcase_add_loop_test(tc, no_plan_of_a_gpu_is_long, 0, (int)(sizeof(shapes) / sizeof(shapes[0])));
}
