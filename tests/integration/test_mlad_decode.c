/* DECODE: what is refused before there is a job, with the field and the limit; faults of single sequences; words. */
#include <math.h>
#include <signal.h>
#include <string.h>

#include "tests/integration/ground.h"
#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/prng.h"

static struct daemon d;
static struct ground g;
static struct mla_message m;
static struct mla_decode_request *const q = &m.decode;

static void setup(void)
{
    daemon_start(&d, NULL);
    ground_open(&g, d.socket);
    ground_decodes(&g);
}

static void teardown(void)
{
    ground_decodes(&g);
    ground_close(&g);
    daemon_stop(&d, SIGTERM, 0);
}

/* Starts from a good request; change is a statement. */
#define REFUSED(change, code, field)                                                                                   \
    do {                                                                                                               \
        ground_decode(&g, &m);                                                                                         \
        change;                                                                                                        \
        raw_expect(&g.r, &m, code, field);                                                                             \
    } while (0)
#define TAKEN(change) REFUSED(change, MLA_OK, NULL)
#define VALUE_AND_LIMIT(v, l)                                                                                          \
    do {                                                                                                               \
        ck_assert_uint_eq(g.r.message.reply.status.value, (uint64_t)(v));                                              \
        ck_assert_uint_eq(g.r.message.reply.status.limit, (uint64_t)(l));                                              \
    } while (0)

#define O_ROWS   (GROUND_Q_LEN * GROUND_HEADS)
#define O_BYTES  (O_ROWS * 2048u)
#define KV_BYTES (GROUND_PAGES * 64u * 576u)

/* ---- ranges: D9 for tensors and references ---- */

START_TEST(tensors_leave_their_region)
{
    setup();
    const uint64_t last_q = GROUND_IO_BYTES - O_ROWS * 576;
    TAKEN(q->q.offset = last_q);
    REFUSED(q->q.offset = last_q + 16, MLA_OUT_OF_BOUNDS, "q.offset");
    VALUE_AND_LIMIT(last_q + 16, GROUND_IO_BYTES);
    TAKEN(q->o.offset = GROUND_IO_BYTES - O_BYTES);
    REFUSED(q->o.offset = GROUND_IO_BYTES - O_BYTES + 16, MLA_OUT_OF_BOUNDS, "o.offset");
    TAKEN(q->lse.offset = GROUND_IO_BYTES - O_ROWS * 4);
    REFUSED(q->lse.offset = GROUND_IO_BYTES - O_ROWS * 4 + 4, MLA_OUT_OF_BOUNDS, "lse.offset");
    REFUSED(q->q.offset = UINT64_MAX - 15, MLA_OUT_OF_BOUNDS, "q.offset");
    REFUSED(q->q.token_stride = INT64_MAX - 15, MLA_OUT_OF_BOUNDS, "q.offset");
    REFUSED(q->q.token_stride = INT64_MIN, MLA_OUT_OF_BOUNDS, "q.offset");
    REFUSED(q->q.head_stride = INT64_C(1) << 62, MLA_OUT_OF_BOUNDS, "q.offset");
    REFUSED((q->q.head_stride = INT64_MAX - 15, q->q.token_stride = INT64_MIN), MLA_OUT_OF_BOUNDS, "q.offset");
    REFUSED(q->q.head_stride = -576, MLA_OUT_OF_BOUNDS, "q.offset"); /* rows before the region */
    TAKEN((q->q.head_stride = -576, q->q.offset = 3 * 576));
    REFUSED((q->o.head_stride = -2048, q->o.offset = 2 * 2048), MLA_OUT_OF_BOUNDS, "o.offset");
    /* Sequence strides count when not compact, and only to the last sequence that has rows. */
    TAKEN((q->q.compact = false, q->q.seq_stride = INT64_MAX - 15));
    raw_tables(&g.r, 20, 0, 64);
    TAKEN((q->table_set = 20, q->q.offset = UINT64_MAX - 15)); /* nothing is read, nothing written */
    REFUSED(q->q.offset = 8, MLA_MISALIGNED, "q.offset");
    VALUE_AND_LIMIT(8, 16);
    REFUSED(q->o.head_stride = 2056, MLA_MISALIGNED, "o.head_stride");
    REFUSED(q->lse.offset = GROUND_LSE + 2, MLA_MISALIGNED, "lse.offset");
    TAKEN((q->q_rope = q->q, q->q_rope.offset = GROUND_ROPE, q->q_rope.head_stride = 64, q->q_rope.token_stride = 256));
    REFUSED((q->q_rope = q->q, q->q_rope.offset = GROUND_IO_BYTES - 64), MLA_OUT_OF_BOUNDS, "q_rope.offset");
    teardown();
}
END_TEST

/* Terms beyond 63 bits, of which only the sum lies in the region: the first sequence has no tokens. */
START_TEST(offsets_and_strides_that_cancel_out)
{
    setup();
    static const uint32_t q_len[2] = {0, GROUND_Q_LEN}, kv_len[2] = {GROUND_KV_LEN, GROUND_KV_LEN},
                          pages[2 * GROUND_PAGES] = {0, 1, 2, 3, 0, 1, 2, 3};
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set = (struct mla_put_table_set_request){.id = 42,
                                                         .q_len = q_len,
                                                         .n_q_len = 2,
                                                         .kv_len_max = kv_len,
                                                         .n_kv_len_max = 2,
                                                         .pages = pages,
                                                         .n_pages = 2 * GROUND_PAGES,
                                                         .tokens_per_entry = 64};
    raw_expect(&g.r, &m, MLA_OK, NULL);
    ground_decode(&g, &m);
    q->table_set = 42;
    struct mla_tensor *tensors[] = {&q->q, &q->o, &q->lse};
    for (unsigned i = 0; i < 3; i++) { /* the second token lies before the first */
        tensors[i]->compact = false;
        tensors[i]->offset += (UINT64_C(1) << 63) + (uint64_t)tensors[i]->token_stride;
        tensors[i]->seq_stride = INT64_MIN;
        tensors[i]->token_stride = -tensors[i]->token_stride;
    }
    memset(g.io + GROUND_O, 0xa5, O_BYTES);
    raw_expect(&g.r, &m, MLA_OK, NULL);
    const float *o = (const float *)(const void *)(g.io + GROUND_O),
                *lse = (const float *)(const void *)(g.io + GROUND_LSE);
    for (unsigned row = 0; row < O_ROWS; row++) {
        ck_assert_double_eq_tol(o[row * 512], 1, 1e-5);
        ck_assert_double_eq_tol(lse[row], log(GROUND_KV_LEN - row / GROUND_HEADS), 1e-4);
    }
    REFUSED((q->table_set = 42, q->o.compact = false, q->o.offset = UINT64_C(1) << 63, q->o.seq_stride = INT64_MIN + 16,
             q->o.token_stride = -q->o.token_stride),
            MLA_OUT_OF_BOUNDS, "o.offset");
    teardown();
}
END_TEST

START_TEST(references_leave_their_region)
{
    setup();
    const uint64_t io = GROUND_IO_BYTES;
    TAKEN(q->kv_len_ref = ground_ref(g.io_region, GROUND_KV_LENS));
    int32_t *last = (int32_t *)(void *)(g.io + io - 4);
    *last = GROUND_KV_LEN;
    TAKEN(q->kv_len_ref = ground_ref(g.io_region, io - 4));
    REFUSED(q->kv_len_ref = ground_ref(g.io_region, io), MLA_OUT_OF_BOUNDS, "kv_len_ref.offset");
    VALUE_AND_LIMIT(io, io);
    REFUSED(q->kv_len_ref = ground_ref(g.io_region, UINT64_MAX - 3), MLA_OUT_OF_BOUNDS, "kv_len_ref.offset");
    REFUSED(q->kv_len_ref = ground_ref(g.io_region, 2), MLA_MISALIGNED, "kv_len_ref.offset");
    REFUSED((q->mask = MLA_MASK_VISIBLE, q->visible_ref = ground_ref(g.io_region, io - 4)), MLA_OUT_OF_BOUNDS,
            "visible_ref.offset");
    TAKEN((q->mask = MLA_MASK_VISIBLE, q->visible_ref = ground_ref(g.io_region, GROUND_VISIBLE)));
    REFUSED(q->status_ref = ground_ref(g.io_region, io), MLA_OUT_OF_BOUNDS, "status_ref.offset");
    REFUSED(q->status_ref = ground_ref(g.io_region, GROUND_STATUS + 4), MLA_MISALIGNED, "status_ref.offset");
    TAKEN(q->status_ref = ground_ref(g.io_region, io - 8));
    REFUSED(q->ready = ground_ref(g.sync, 4096), MLA_OUT_OF_BOUNDS, "ready.offset");
    REFUSED(q->ready = ground_ref(g.sync, UINT64_MAX - 63), MLA_OUT_OF_BOUNDS, "ready.offset");
    REFUSED(q->ready = ground_ref(g.sync, 8), MLA_MISALIGNED, "ready.offset");
    REFUSED(q->done = ground_ref(g.sync, 32), MLA_MISALIGNED, "done.offset");
    VALUE_AND_LIMIT(32, 64);
#define TABLE_REF(offset_, per_seq)                                                                                    \
    (q->table_set = GROUND_DEVICE, q->table_ref = ground_ref(g.io_region, offset_),                                    \
     q->table_entries_per_seq = (per_seq))
    TAKEN(TABLE_REF(GROUND_TABLE, 4));
    TAKEN(TABLE_REF(GROUND_TABLE, 1000));
    REFUSED(TABLE_REF(GROUND_TABLE, 3), MLA_OUT_OF_BOUNDS, "table_entries_per_seq");
    VALUE_AND_LIMIT(3, 4);
    REFUSED(TABLE_REF(GROUND_TABLE, UINT32_MAX), MLA_OUT_OF_BOUNDS, "table_ref.offset");
    REFUSED(TABLE_REF(io - 12, 4), MLA_OUT_OF_BOUNDS, "table_ref.offset");
    REFUSED(TABLE_REF(GROUND_TABLE + 2, 4), MLA_MISALIGNED, "table_ref.offset");
    REFUSED(TABLE_REF(GROUND_TABLE, 0), MLA_INVALID_ARGUMENT, "table_entries_per_seq");
    REFUSED(q->table_entries_per_seq = 4, MLA_INVALID_ARGUMENT, "table_entries_per_seq");
    REFUSED(q->table_set = GROUND_DEVICE, MLA_INVALID_ARGUMENT, "table_ref");
    REFUSED((TABLE_REF(GROUND_TABLE, 4), q->table_set = GROUND_TABLES), MLA_INVALID_ARGUMENT, "table_ref");
    teardown();
}
END_TEST

/* ---- what must not meet ---- */

START_TEST(overlaps)
{
    setup();
    REFUSED(q->o.offset = GROUND_Q, MLA_OVERLAP, "o");
    REFUSED(q->o.offset = GROUND_Q + (O_ROWS - 1) * 576 / 16 * 16, MLA_OVERLAP, "o"); /* the last row of Q */
    TAKEN(q->q.offset = GROUND_O + O_BYTES);                                          /* side by side */
    TAKEN(q->q.offset = GROUND_O - O_ROWS * 576);
    REFUSED(q->lse.offset = GROUND_O + O_BYTES - 4, MLA_OVERLAP, "lse");
    REFUSED(q->lse.offset = GROUND_Q + 576, MLA_OVERLAP, "lse");
    REFUSED((q->kv_len_ref = ground_ref(g.io_region, GROUND_O + 64)), MLA_OVERLAP, "o");
    REFUSED((q->kv_len_ref = ground_ref(g.io_region, GROUND_LSE)), MLA_OVERLAP, "lse");
    REFUSED(TABLE_REF(GROUND_O + O_BYTES - 4, 4), MLA_OVERLAP, "o");
    REFUSED((q->mask = MLA_MASK_VISIBLE, q->visible_ref = ground_ref(g.io_region, GROUND_O)), MLA_OVERLAP, "o");
    REFUSED(q->status_ref = ground_ref(g.io_region, GROUND_O), MLA_OVERLAP, "status_ref");
    REFUSED(q->status_ref = ground_ref(g.io_region, GROUND_LSE), MLA_OVERLAP, "status_ref");
    REFUSED(q->status_ref = ground_ref(g.io_region, GROUND_Q), MLA_OVERLAP, "status_ref");
    REFUSED((q->q_rope = q->q, q->q_rope.offset = GROUND_O), MLA_OVERLAP, "o");
    /* Rows of an output over each other; of an input they may. */
    REFUSED(q->o.head_stride = 2032, MLA_OVERLAP, "o");
    REFUSED(q->o.head_stride = 0, MLA_OVERLAP, "o");
    REFUSED(q->o.token_stride = 2048, MLA_OVERLAP, "o");
    REFUSED(q->lse.token_stride = 12, MLA_OVERLAP, "lse");
    REFUSED(q->lse.head_stride = 0, MLA_OVERLAP, "lse");
    TAKEN((q->o.token_stride = 2048, q->o.head_stride = 2 * 2048)); /* [head][token] */
    TAKEN((q->q.head_stride = 0, q->q.token_stride = 0));
    TAKEN((q->o.token_stride = 2048, q->o.head_stride = -2 * 2048, q->o.offset = GROUND_O + 6 * 2048));

    /* The cache itself, in a region that may be written. */
    uint64_t cache = raw_cache(&g.r, g.io_region, 4);
    REFUSED(q->cache = cache, MLA_OVERLAP, "o");
    REFUSED((q->cache = cache, q->o.offset = KV_BYTES), MLA_OVERLAP, "lse");
    TAKEN((q->cache = cache, q->o.offset = KV_BYTES, q->lse.offset = KV_BYTES + O_BYTES));
    teardown();
}
END_TEST

START_TEST(objects_that_do_not_fit)
{
    setup();
    REFUSED(q->o.region = g.kv_region, MLA_ACCESS_DENIED, "o.region");
    REFUSED(q->lse.region = g.kv_region, MLA_ACCESS_DENIED, "lse.region");
    REFUSED(q->status_ref = ground_ref(g.kv_region, 0), MLA_ACCESS_DENIED, "status_ref.region");
    TAKEN(q->q.region = g.kv_region);
    TAKEN(q->plane = 1);
    REFUSED(q->plane = 2, MLA_OUT_OF_BOUNDS, "plane");
    VALUE_AND_LIMIT(2, 1);
    REFUSED(q->plane = UINT32_MAX, MLA_OUT_OF_BOUNDS, "plane");
    REFUSED(q->heads = 0, MLA_INVALID_ARGUMENT, "heads");
    REFUSED(q->heads = 129, MLA_INVALID_ARGUMENT, "heads");
    VALUE_AND_LIMIT(129, 128);
    REFUSED(q->out_type = (enum mla_dtype)4, MLA_INVALID_ARGUMENT, "out_type");
    REFUSED(q->mask = (enum mla_mask)4, MLA_INVALID_ARGUMENT, "mask");
    REFUSED(q->priority = 4, MLA_INVALID_ARGUMENT, "priority");
    REFUSED(q->ready = ground_ref(g.io_region, 0), MLA_INVALID_ARGUMENT, "ready.region");
    REFUSED(q->done = ground_ref(g.io_region, 64), MLA_INVALID_ARGUMENT, "done.region");
    REFUSED((q->ready = ground_ref(g.sync, 64), q->done = q->ready), MLA_OVERLAP, "done");

    uint32_t visible[3] = {200, 200, 200};
    REFUSED((q->visible = visible, q->n_visible = 2), MLA_INVALID_ARGUMENT, "visible");
    REFUSED(q->visible_ref = ground_ref(g.io_region, GROUND_VISIBLE), MLA_INVALID_ARGUMENT, "visible_ref");
    REFUSED(q->mask = MLA_MASK_VISIBLE, MLA_INVALID_ARGUMENT, "visible");
    VALUE_AND_LIMIT(0, 2);
    REFUSED((q->mask = MLA_MASK_VISIBLE, q->visible = visible, q->n_visible = 3), MLA_INVALID_ARGUMENT, "visible");
    VALUE_AND_LIMIT(3, 2);
    REFUSED((q->mask = MLA_MASK_VISIBLE, q->visible = visible, q->n_visible = 2,
             q->visible_ref = ground_ref(g.io_region, GROUND_VISIBLE)),
            MLA_INVALID_ARGUMENT, "visible_ref");
    TAKEN((q->mask = MLA_MASK_VISIBLE, q->visible = visible, q->n_visible = 2));

    REFUSED(q->softmax_scale = INFINITY, MLA_NON_FINITE, "softmax_scale");
    REFUSED(q->q_scale = NAN, MLA_NON_FINITE, "q_scale");
    REFUSED(q->kv_scale = 0, MLA_NON_FINITE, "kv_scale");
    REFUSED(q->out_scale = -INFINITY, MLA_NON_FINITE, "out_scale");
    REFUSED((q->q_scale = 1e30f, q->kv_scale = 1e30f), MLA_NON_FINITE, "softmax_scale"); /* their product */
    REFUSED((q->q_scale = 1e-30f, q->kv_scale = 1e-30f), MLA_NON_FINITE, "softmax_scale");
    REFUSED(q->out_scale = 1e-45f, MLA_NON_FINITE, "out_scale"); /* its inverse */

    struct mla_message define;
    mla_message_init(&define, MLA_MSG_DEFINE_CACHE);
    define.define_cache.layout = MLA_CACHE_E4M3_576;
    define.define_cache.region = g.kv_region;
    define.define_cache.num_pages = 4;
    define.define_cache.tokens_per_entry = 128;
    uint64_t pairs = raw_call(&g.r, &define)->define_cache_reply.cache;
    REFUSED(q->cache = pairs, MLA_INVALID_ARGUMENT, "table_set");
    VALUE_AND_LIMIT(64, 128);

    const uint32_t q_len = 4096, kv_len = 0;
    static uint32_t many_q[140], many_kv[140];
    for (unsigned i = 0; i < 140; i++) {
        many_q[i] = q_len;
        many_kv[i] = kv_len;
    }
    struct mla_message put;
    mla_message_init(&put, MLA_MSG_PUT_TABLE_SET);
    put.put_table_set.id = 30;
    put.put_table_set.q_len = many_q;
    put.put_table_set.kv_len_max = many_kv;
    put.put_table_set.n_q_len = put.put_table_set.n_kv_len_max = 140;
    raw_expect(&g.r, &put, MLA_OK, NULL);
    REFUSED((q->table_set = 30, q->heads = 128), MLA_TOO_LARGE, "heads"); /* 140 * 4096 * 128 rows */
    VALUE_AND_LIMIT(140u * 4096 * 128, MLA_ROWS_PER_JOB_MAX);
    teardown();
}
END_TEST

/* ---- faults of sequences ---- */

START_TEST(faults_in_the_answer_and_in_status_words)
{
    setup();
    /* Three sequences: a page that is not there, a length above its bound, a good one. */
    static const uint32_t q_len[3] = {1, 1, 1}, kv_len[3] = {200, 100, 64}, pages[7] = {0, 9, 4, 1, 2, 3, 0};
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set.id = 40;
    m.put_table_set.q_len = q_len;
    m.put_table_set.kv_len_max = kv_len;
    m.put_table_set.n_q_len = m.put_table_set.n_kv_len_max = 3;
    m.put_table_set.pages = pages;
    m.put_table_set.n_pages = 7;
    raw_expect(&g.r, &m, MLA_OK, NULL);
    int32_t *kv_lens = (int32_t *)(void *)(g.io + GROUND_KV_LENS);
    uint64_t *status = (uint64_t *)(void *)(g.io + GROUND_STATUS);
    kv_lens[0] = 200;
    kv_lens[1] = 101;
    kv_lens[2] = 64;
    memset(status, 0xa5, 24);
    ground_decode(&g, &m);
    q->table_set = 40;
    q->kv_len_ref = ground_ref(g.io_region, GROUND_KV_LENS);
    q->status_ref = ground_ref(g.io_region, GROUND_STATUS);
    raw_expect(&g.r, &m, MLA_PARTIAL, NULL);
    const struct mla_decode_reply *reply = &g.r.message.decode_reply;
    ck_assert_uint_eq(reply->status.value, 2);
    ck_assert_uint_eq(reply->status.index, 0);
    ck_assert_str_eq(reply->status.text,
                     "2 faulted, the first is sequence 0: PAGE_OUT_OF_RANGE, index 1; all others are complete");
    ck_assert_uint_eq(reply->n_faults, 2);
    ck_assert_uint_eq(reply->faults[0].sequence, 0);
    ck_assert_int_eq(reply->faults[0].code, MLA_PAGE_OUT_OF_RANGE);
    ck_assert_uint_eq(reply->faults[0].index, 1);
    ck_assert_uint_eq(reply->faults[1].sequence, 1);
    ck_assert_int_eq(reply->faults[1].code, MLA_KV_LEN_OUT_OF_RANGE);
    ck_assert_uint_eq(status[0], (uint64_t)MLA_PAGE_OUT_OF_RANGE << 32 | 1);
    ck_assert_uint_eq(status[1], (uint64_t)MLA_KV_LEN_OUT_OF_RANGE << 32);
    ck_assert_uint_eq(status[2], 0);
    const float *lse = (const float *)(const void *)(g.io + GROUND_LSE);
    ck_assert_double_eq_tol(lse[2 * GROUND_HEADS], log(64), 1e-4);
    ck_assert_double_eq(raw_metric(&g.r, "mlad_sequence_faults_total", "kind=\"PAGE_OUT_OF_RANGE\""), 1);
    ck_assert_double_eq(raw_metric(&g.r, "mlad_sequence_faults_total", "kind=\"KV_LEN_OUT_OF_RANGE\""), 1);
    ck_assert_double_eq(raw_metric(&g.r, "mlad_jobs_total", "status=\"PARTIAL\""), 1);

    int32_t *visible = (int32_t *)(void *)(g.io + GROUND_VISIBLE);
    visible[0] = 5;
    visible[1] = -1;
    ground_decode(&g, &m);
    q->mask = MLA_MASK_VISIBLE;
    q->visible_ref = ground_ref(g.io_region, GROUND_VISIBLE);
    raw_expect(&g.r, &m, MLA_PARTIAL, NULL);
    ck_assert_int_eq(g.r.message.decode_reply.faults[0].code, MLA_VISIBLE_OUT_OF_RANGE);
    ck_assert_uint_eq(g.r.message.decode_reply.faults[0].index, 1);
    kv_lens[0] = GROUND_KV_LEN;
    teardown();
}
END_TEST

/* More faults than a reply lists. */
START_TEST(many_faults)
{
    setup();
    enum { SEQS = 100 };
    static uint32_t q_len[SEQS], kv_len[SEQS], pages[SEQS];
    for (unsigned i = 0; i < SEQS; i++) {
        q_len[i] = kv_len[i] = 1;
        pages[i] = 4 + i;
    }
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set = (struct mla_put_table_set_request){.id = 41,
                                                         .q_len = q_len,
                                                         .n_q_len = SEQS,
                                                         .kv_len_max = kv_len,
                                                         .n_kv_len_max = SEQS,
                                                         .pages = pages,
                                                         .n_pages = SEQS,
                                                         .tokens_per_entry = 64};
    raw_expect(&g.r, &m, MLA_OK, NULL);
    ground_decode(&g, &m);
    q->table_set = 41;
    q->o.offset = 65536;
    q->o.token_stride = 512 * 4 * GROUND_HEADS;
    q->q.token_stride = 0;
    q->q.head_stride = 0;
    q->lse.present = false;
    q->status_ref = ground_ref(g.io_region, GROUND_O);
    raw_expect(&g.r, &m, MLA_PARTIAL, NULL);
    ck_assert_uint_eq(g.r.message.decode_reply.status.value, SEQS);
    ck_assert_uint_eq(g.r.message.decode_reply.n_faults, 64);
    ck_assert_uint_eq(g.r.message.decode_reply.faults[63].sequence, 63);
    const uint64_t *status = (const uint64_t *)(const void *)(g.io + GROUND_O);
    for (unsigned i = 0; i < SEQS; i++)
        ck_assert_uint_eq(status[i], (uint64_t)MLA_PAGE_OUT_OF_RANGE << 32);
    teardown();
}
END_TEST

/* Where rows of sequences of any lengths begin, with strides of either sign: to the last byte of the region and no
 * further. */
START_TEST(ragged_sequences_in_a_region)
{
    setup();
    struct prng p = {5};
    uint32_t q_len[16], kv_len[16] = {0};
    for (uint64_t id = 100; id < 300; id++) {
        uint32_t n = 1 + prng_below(&p, 16);
        int64_t token = 16 * ((int64_t)prng_below(&p, 200) - 100),
                seq = 16 * (1 + (int64_t)prng_below(&p, 100)) * (id % 2 == 0 ? 1 : -1);
        int64_t low = INT64_MAX, high = INT64_MIN;
        for (uint32_t s = 0; s < n; s++) {
            q_len[s] = s == 0 ? 1 + prng_below(&p, 9) : prng_below(&p, 10);
            for (int64_t t = 0; t < q_len[s]; t++) {
                int64_t at = s * seq + t * token;
                low = at < low ? at : low;
                high = at > high ? at : high;
            }
        }
        mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
        m.put_table_set.id = id;
        m.put_table_set.q_len = q_len;
        m.put_table_set.kv_len_max = kv_len;
        m.put_table_set.n_q_len = m.put_table_set.n_kv_len_max = n;
        raw_expect(&g.r, &m, MLA_OK, NULL);
        const uint64_t first = (uint64_t)-low, last = KV_BYTES - (uint64_t)(high + 576);
        struct mla_tensor t = {
            .present = true, .region = g.kv_region, .seq_stride = seq, .token_stride = token, .head_stride = 16};
#define RAGGED (q->table_set = id, q->heads = 1, q->q = t, q->lse.present = false)
        TAKEN((t.offset = first, RAGGED));
        TAKEN((t.offset = last, RAGGED));
        REFUSED((t.offset = last + 16, RAGGED), MLA_OUT_OF_BOUNDS, "q.offset");
        if (first >= 16)
            REFUSED((t.offset = first - 16, RAGGED), MLA_OUT_OF_BOUNDS, "q.offset");
    }
    teardown();
}
END_TEST

MLA_SUITE(mlad_decode)
{
    TCase *tc = mla_tcase(suite, "decode");
    tcase_add_test(tc, tensors_leave_their_region);
    tcase_add_test(tc, offsets_and_strides_that_cancel_out);
    tcase_add_test(tc, references_leave_their_region);
    tcase_add_test(tc, overlaps);
    tcase_add_test(tc, objects_that_do_not_fit);
    tcase_add_test(tc, faults_in_the_answer_and_in_status_words);
    tcase_add_test(tc, many_faults);
    tcase_add_test(tc, ragged_sequences_in_a_region);
}
