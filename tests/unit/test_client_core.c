/* The core without a socket: frames in pieces of any size, and damaged ones. */
#include <stdlib.h>
#include <string.h>

#include "client/core.h"

#include "tests/support/check_main.h"

#define JOBS   8
#define STREAM 65536

static uint64_t rng_state;

static uint32_t rng(uint32_t below)
{
    rng_state = rng_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(rng_state >> 33) % below;
}

static void no_callback(struct mla_client *c, const struct mla_decode_result *r, void *user)
{
    (void)c, (void)r, (void)user;
}

/* Appends the frame of msg at *n. */
static void append(uint8_t *stream, size_t *n, const struct mla_message *msg, uint64_t id)
{
    size_t body;
    uint8_t *at = stream + *n;
    ck_assert_int_eq(mla_codec_encode(msg, at + MLA_WIRE_HEADER_BYTES, STREAM - *n - MLA_WIRE_HEADER_BYTES, &body), 0);
    const struct mla_frame_header h = {
        .major = MLA_PROTO_MAJOR, .type = msg->type, .body_len = (uint32_t)body, .request_id = id};
    mla_wire_pack(&h, at);
    *n += MLA_WIRE_HEADER_BYTES + body;
}

/* Jobs in flight and the stream that answers them, notices between. */
static size_t make_stream(struct mlac_core *core, uint8_t *stream)
{
    static const struct mla_sequence_fault faults[3] = {{1, MLA_PAGE_OUT_OF_RANGE, 2, 0},
                                                        {3, MLA_KV_LEN_OUT_OF_RANGE, 0, 0}};
    size_t n = 0;
    for (unsigned i = 0; i < JOBS; i++) {
        struct mlac_request *r = mlac_request_new(core, MLA_MSG_DECODE, MLAC_JOB);
        struct mla_message m;
        r->callback = no_callback;
        mla_message_init(&m, MLA_MSG_DECODE | MLA_REPLY);
        m.decode_reply.batch = i;
        if (i & 1) {
            mla_error_set(&m.decode_reply.status, MLA_PARTIAL, "pages", "two sequences faulted");
            m.decode_reply.faults = faults;
            m.decode_reply.n_faults = 2;
        }
        append(stream, &n, &m, r->id);
        if (i == 4) {
            mla_message_init(&m, MLA_NOTICE_CACHE_GONE);
            m.cache_gone_notice.cache = 99;
            m.cache_gone_notice.name = "kv";
            append(stream, &n, &m, 0);
        }
    }
    return n;
}

static void feed(struct mlac_core *core, const uint8_t *stream, size_t n, uint32_t piece_max)
{
    size_t at = 0;
    while (at < n && !core->ended) {
        size_t room, piece = 1 + rng(piece_max);
        uint8_t *in = mlac_core_in(core, &room);
        ck_assert_ptr_nonnull(in);
        ck_assert_uint_gt(room, 0);
        piece = piece < n - at ? piece : n - at;
        piece = piece < room ? piece : room;
        memcpy(in, stream + at, piece);
        mlac_core_received(core, piece);
        at += piece;
        enum mlac_step step;
        while ((step = mlac_core_step(core, 0)) == MLAC_FRAME)
            ;
        ck_assert_int_eq(step, core->ended ? MLAC_ENDED : MLAC_MORE);
    }
}

/* Takes all that is ready; number of answers. */
static unsigned take_all(struct mlac_core *core, bool seen[JOBS])
{
    struct mlac_ready *item;
    unsigned answers = 0;
    while ((item = mlac_core_take(core))) {
        if (item->is_event) {
            mlac_event_free((struct mlac_event *)item);
            continue;
        }
        struct mlac_request *r = (struct mlac_request *)item;
        ck_assert_uint_lt(r->slot, JOBS);
        ck_assert(!seen[r->slot]);
        ck_assert_uint_eq(r->result.request, r->id);
        ck_assert_uint_le(r->result.n_listed, MLA_FAULTS_MAX);
        seen[r->slot] = true;
        answers++;
        mlac_request_free(core, r);
    }
    return answers;
}

START_TEST(pieces_of_any_size)
{
    uint8_t *stream = malloc(STREAM);
    rng_state = (uint64_t)_i;
    struct mlac_core core;
    bool seen[JOBS] = {0};
    ck_assert_int_eq(mlac_core_init(&core, 1u << 20, true), 0);
    size_t n = make_stream(&core, stream);
    feed(&core, stream, n, _i == 0 ? 1 : 200);
    ck_assert(!core.ended);
    ck_assert_uint_eq(core.n_events, 1);
    ck_assert_uint_eq(take_all(&core, seen), JOBS);
    ck_assert_uint_eq(core.n_jobs, 0);
    mlac_core_free(&core);
    free(stream);
}
END_TEST

START_TEST(damaged_bytes)
{
    uint8_t *stream = malloc(STREAM);
    unsigned ended = 0;
    for (unsigned round = 0; round < 2000; round++) {
        rng_state = round;
        struct mlac_core core;
        bool seen[JOBS] = {0};
        ck_assert_int_eq(mlac_core_init(&core, 1u << 20, true), 0);
        size_t n = make_stream(&core, stream);
        for (uint32_t k = 1 + rng(3); k > 0; k--)
            stream[rng((uint32_t)n)] ^= (uint8_t)(1u << rng(8));
        feed(&core, stream, n, 400);
        ended += core.ended;
        /* Whatever came, the end answers the rest: each exactly once. */
        mlac_core_end_with(&core, MLA_DISCONNECTED, "end of test");
        ck_assert_uint_eq(take_all(&core, seen), JOBS);
        ck_assert_int_ne(core.reason.code, MLA_OK);
        mlac_core_free(&core);
    }
    /* Damage is mostly found; a changed number in a body cannot be. */
    ck_assert_uint_gt(ended, 1000);
    free(stream);
}
END_TEST

/* A steady load reuses its records: the pool is as large as the most in flight at once. */
START_TEST(records_are_reused)
{
    struct mlac_core core;
    uint64_t last = 0;
    ck_assert_int_eq(mlac_core_init(&core, 1u << 20, true), 0);
    for (int i = 0; i < 1000; i++) {
        struct mlac_request *a = mlac_request_new(&core, MLA_MSG_DECODE, MLAC_JOB);
        struct mlac_request *b = mlac_request_new(&core, MLA_MSG_DECODE, MLAC_JOB);
        ck_assert_uint_gt(a->id, last);
        ck_assert_uint_gt(b->id, a->id);
        last = b->id;
        ck_assert_ptr_eq(mlac_request_find(&core, a->id), a);
        mlac_request_free(&core, a);
        ck_assert_ptr_null(mlac_request_find(&core, a->id));
        mlac_request_free(&core, b);
    }
    ck_assert_uint_eq(core.n_slots, 2);
    ck_assert_ptr_null(mlac_request_find(&core, UINT64_MAX));
    mlac_core_free(&core);
}
END_TEST

MLA_SUITE(client_core)
{
    TCase *tc = mla_tcase(suite, "core");
    tcase_add_loop_test(tc, pieces_of_any_size, 0, 50);
    tcase_add_test(tc, damaged_bytes);
    tcase_add_test(tc, records_are_reused);
}
