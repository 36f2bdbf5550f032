/* Words in sync pages: watches, done words, aborts. */
#include <string.h>
#include <unistd.h>

#include "daemon/util/clock.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

#define ABORT_STEP (UINT64_C(1) << 62)
#define WORD       8 /* 64-bit words to the next cache line */

struct words {
    struct rig rig;
    struct mem page;
    uint64_t *client; /* the client's mapping */
    uint64_t *daemon; /* the backend's */
};

static bool words_open(struct words *w, int index)
{
    if (!rig_open(&w->rig, index))
        return false;
    mem_take(&w->rig, &w->page, w->rig.shared, 4096, MEM_SYNC);
    w->client = (uint64_t *)(void *)w->page.host;
    w->daemon = w->page.region.host;
    ck_assert_ptr_nonnull(w->daemon);
    return true;
}

static void words_close(struct words *w)
{
    mem_drop(&w->rig, &w->page);
    rig_close(&w->rig);
}

static void store(struct words *w, int word, uint64_t value)
{
    __atomic_store_n(&w->client[word * WORD], value, __ATOMIC_RELEASE);
}

static uint64_t load(struct words *w, int word)
{
    return __atomic_load_n(&w->client[word * WORD], __ATOMIC_ACQUIRE);
}

static struct ticket watch_of(struct words *w, int word, uint64_t value)
{
    return (struct ticket){.request = {.op = BE_WATCH, .watch = {.word = &w->daemon[word * WORD], .value = value}}};
}

static void unwatch(struct words *w, struct ticket *watch)
{
    struct ticket end = {.request = {.op = BE_UNWATCH, .unwatch = &watch->request}};
    rig_submit(&w->rig, &end);
    rig_wait(&w->rig, &end);
    ck_assert_int_eq(end.error.code, MLA_OK);
}

/* A watch fires once, when the word comes, and not before. */
START_TEST(watch_fires_when_the_word_comes)
{
    struct words w;
    if (!words_open(&w, _i))
        return;
    struct ticket t = watch_of(&w, 3, 7);
    store(&w, 3, 6);
    store(&w, 2, 7); /* its neighbours' words are not its own */
    store(&w, 4, 7);
    rig_submit(&w.rig, &t);
    rig_poll(&w.rig, 30);
    ck_assert_uint_eq(t.ready_at, 0);
    store(&w, 3, 7);
    rig_wait(&w.rig, &t);
    ck_assert(!t.aborted);
    rig_poll(&w.rig, 10);
    words_close(&w);
}
END_TEST

/* A word that is there already, or beyond: fires at once. Comparison is of signed differences, over the wrap too. */
START_TEST(watch_compares_signed_differences)
{
    static const struct {
        uint64_t word, value;
        bool ready;
    } cases[] = {{5, 5, true},
                 {9, 5, true},
                 {4, 5, false},
                 {0, 1, false},
                 {2, UINT64_MAX - 1, true},
                 {UINT64_MAX - 1, 2, false},
                 {UINT64_C(1) << 61, 1, true},
                 {0, UINT64_C(1) << 62, false}};
    struct words w;
    if (!words_open(&w, _i))
        return;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ticket t = watch_of(&w, 1, cases[i].value);
        store(&w, 1, cases[i].word);
        rig_submit(&w.rig, &t);
        if (cases[i].ready) {
            rig_wait(&w.rig, &t);
            ck_assert_msg(!t.aborted, "case %zu is no abort", i);
        } else {
            rig_poll(&w.rig, 20);
            ck_assert_msg(t.ready_at == 0, "case %zu must not be ready", i);
            unwatch(&w, &t);
        }
    }
    words_close(&w);
}
END_TEST

/* value + 2^62 is an abort of that value: before the watch, and while it waits. */
START_TEST(watch_tells_an_abort)
{
    struct words w;
    if (!words_open(&w, _i))
        return;
    const uint64_t values[] = {1, 1000, UINT64_MAX - 3};
    for (size_t i = 0; i < 6; i++) {
        struct ticket t = watch_of(&w, 5, values[i / 2]);
        store(&w, 5, values[i / 2] - 1);
        if (i % 2)
            store(&w, 5, values[i / 2] + ABORT_STEP);
        rig_submit(&w.rig, &t);
        if (i % 2 == 0) {
            rig_poll(&w.rig, 5);
            store(&w, 5, values[i / 2] + ABORT_STEP);
        }
        rig_wait(&w.rig, &t);
        ck_assert(t.aborted);
    }
    words_close(&w);
}
END_TEST

/* UNWATCH ends a watch: no event of it afterwards, whatever the word does. */
START_TEST(unwatch_ends_a_watch)
{
    struct words w;
    if (!words_open(&w, _i))
        return;
    struct ticket t = watch_of(&w, 0, 1);
    rig_submit(&w.rig, &t);
    unwatch(&w, &t);
    ck_assert_uint_eq(t.ready_at, 0);
    store(&w, 0, 1);
    rig_poll(&w.rig, 50);
    ck_assert_uint_eq(t.ready_at, 0);
    words_close(&w);
}
END_TEST

/* UNWATCH of a watch that has fired is answered too, and its READY (if it comes) came before. */
START_TEST(unwatch_of_a_watch_that_fired)
{
    struct words w;
    if (!words_open(&w, _i))
        return;
    for (int i = 0; i < 20; i++) {
        struct ticket t = watch_of(&w, 0, (uint64_t)i + 1);
        rig_submit(&w.rig, &t);
        store(&w, 0, (uint64_t)i + 1);
        struct ticket end = {.request = {.op = BE_UNWATCH, .unwatch = &t.request}};
        rig_submit(&w.rig, &end);
        rig_wait(&w.rig, &end);
        ck_assert(t.ready_at == 0 || t.ready_at < end.ended_at);
        rig_poll(&w.rig, 1);
    }
    words_close(&w);
}
END_TEST

/* Hundreds of watches, words coming in another order: each fires once, for its own word. */
START_TEST(many_watches)
{
    static struct ticket t[64][8];
    struct words w;
    if (!words_open(&w, _i))
        return;
    for (int word = 0; word < 64; word++)
        for (int v = 0; v < 8; v++) {
            t[word][v] = watch_of(&w, word, (uint64_t)v + 1);
            rig_submit(&w.rig, &t[word][v]);
        }
    for (int v = 0; v < 8; v++) {
        for (int word = 63; word >= 0; word--)
            store(&w, word * 37 % 64, (uint64_t)v + 1);
        for (int word = 0; word < 64; word++) {
            rig_wait(&w.rig, &t[word][v]);
            ck_assert(v == 7 || t[word][v + 1].ready_at == 0);
        }
    }
    words_close(&w);
}
END_TEST

/* A word that does not come holds up nothing: launches run beside the watch. */
START_TEST(watch_does_not_hold_up_launches)
{
    struct words w;
    if (!words_open(&w, _i))
        return;
    struct ticket t = watch_of(&w, 0, 1);
    rig_submit(&w.rig, &t);
    struct dc *c = dc_new(&w.rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 16, .n_seqs = 1, .seqs = SEQS({1, 100}), .seed = 1});
    dc_run(c);
    dc_check(j);
    ck_assert_uint_eq(t.ready_at, 0);
    dc_launch(c);
    store(&w, 0, 1);
    dc_wait(c);
    rig_wait(&w.rig, &t);
    dc_free(c);
    words_close(&w);
}
END_TEST

/* Done words hold their values at BATCH_DONE; whoever sees one sees the outputs, before any event is taken. */
START_TEST(done_word_comes_behind_the_outputs)
{
    struct words w;
    if (!words_open(&w, _i))
        return;
    struct dc *c = dc_new(&w.rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 96,
                                                    .n_seqs = 2,
                                                    .seqs = SEQS({4, 500}, {1, 64}),
                                                    .user_status = true,
                                                    .ref_head_step = 31,
                                                    .seed = 2});
    struct be_done_word done[2] = {{&w.daemon[6 * WORD], 0}, {&w.daemon[7 * WORD], 0}};
    c->done = done;
    c->n_done = 2;
    dc_run(c);
    dc_check(j);
    struct dc_bits want = dc_bits(j);
    for (uint64_t round = 1; round <= 5; round++) {
        done[0].value = round;
        done[1].value = UINT64_MAX - round;
        dc_launch(c);
        uint64_t limit = mla_now_ns() + 60 * MLA_NS_PER_S;
        while (load(&w, 7) != UINT64_MAX - round)
            if (mla_now_ns() > limit)
                ck_abort_msg("the done word does not come");
        dc_pull(c);
        struct dc_bits got = dc_bits(j); /* at once: outputs were poisoned before the launch */
        uint64_t status = __atomic_load_n(&j->user_status[1], __ATOMIC_RELAXED);
        dc_assert_same(&want, &got, NULL, "outputs when the done word came");
        dc_bits_free(&got);
        ck_assert_uint_eq(status, 0);
        ck_assert_uint_eq(load(&w, 6), round);
        dc_wait(c);
        ck_assert_uint_eq(load(&w, 5), 0);
    }
    dc_bits_free(&want);
    dc_free(c);
    words_close(&w);
}
END_TEST

/* ABORT stores the reason in each of the caller's status words, then the word's value. */
START_TEST(abort_writes_statuses_and_word)
{
    struct words w;
    if (!words_open(&w, _i))
        return;
    struct mem status;
    mem_take(&w.rig, &status, w.rig.shared, 4096, MEM_WRITE);
    memset(status.host, DC_POISON, status.bytes);
    mem_push(&w.rig, &status);
    struct ticket t = {.request = {.op = BE_ABORT,
                                   .abort = {.word = &w.daemon[9 * WORD],
                                             .value = 41 + ABORT_STEP,
                                             .user_status = status.address + 64,
                                             .n_seqs = 3,
                                             .code = MLA_TIMED_OUT}}};
    rig_submit(&w.rig, &t);
    rig_wait(&w.rig, &t);
    ck_assert_int_eq(t.error.code, MLA_OK);
    ck_assert_uint_eq(load(&w, 9), 41 + ABORT_STEP);
    mem_pull(&w.rig, &status);
    const uint64_t *words = (const uint64_t *)(const void *)(status.host + 64);
    for (int s = 0; s < 3; s++)
        ck_assert_uint_eq(words[s], (uint64_t)MLA_TIMED_OUT << 32);
    ck_assert_uint_eq(words[3], UINT64_C(0xa5a5a5a5a5a5a5a5));
    ck_assert_uint_eq(words[-1], UINT64_C(0xa5a5a5a5a5a5a5a5));

    t.request.abort.user_status = 0;
    t.request.abort.value = 42 + ABORT_STEP;
    rig_submit(&w.rig, &t);
    rig_wait(&w.rig, &t);
    ck_assert_uint_eq(load(&w, 9), 42 + ABORT_STEP);
    mem_drop(&w.rig, &status);
    words_close(&w);
}
END_TEST

/* Closing with watches pending ends them silently. */
START_TEST(close_with_pending_watches)
{
    struct words w;
    if (!words_open(&w, _i))
        return;
    struct ticket t[10];
    for (int i = 0; i < 10; i++) {
        t[i] = watch_of(&w, i, 1);
        rig_submit(&w.rig, &t[i]);
    }
    rig_close(&w.rig);
}
END_TEST

/* Thousands of requests, more than any ring holds: all answered, in order. */
START_TEST(many_requests_in_order)
{
    static struct ticket t[5000];
    struct words w;
    if (!words_open(&w, _i))
        return;
    for (size_t i = 0; i < 5000; i++) {
        t[i].request = (struct be_request){.op = BE_ABORT, .abort = {.word = &w.daemon[0], .value = i + 1}};
        rig_submit(&w.rig, &t[i]);
    }
    rig_wait(&w.rig, &t[4999]);
    size_t out_of_order = 0;
    for (size_t i = 1; i < 5000; i++)
        out_of_order += t[i].ended_at <= t[i - 1].ended_at || t[i - 1].ended_at == 0;
    ck_assert_uint_eq(out_of_order, 0);
    ck_assert_uint_eq(load(&w, 0), 5000);
    words_close(&w);
}
END_TEST

/* A request never overtakes one that it takes back, whatever runs meanwhile: here a layer whose word is there. */
START_TEST(what_is_taken_back_has_begun)
{
    enum { ROUNDS = 100, READY = 0, DONE, NEVER, NEVER_DONE, WATCHED };
    static struct ticket watches[ROUNDS];
    struct words w;
    if (!words_open(&w, _i))
        return;
    struct dc *c = dc_new(&w.rig);
    dc_add(c, &(struct dc_shape){.heads = 16, .n_seqs = 1, .seqs = SEQS({1, 100}), .seed = 1});
    dc_run(c);
    struct be_layer layers[2];
    struct be_step steps[2];
    for (int i = 0; i < 2; i++) {
        layers[i] = (struct be_layer){.ready = &w.daemon[(i == 0 ? READY : NEVER) * WORD],
                                      .done = &w.daemon[(i == 0 ? DONE : NEVER_DONE) * WORD],
                                      .ready_value = 1,
                                      .done_value = 1,
                                      .job = c->batch.jobs[0]};
        steps[i] = (struct be_step){.layers = &layers[i],
                                    .n_layers = 1,
                                    .seqs = c->batch.seqs,
                                    .plan = c->request,
                                    .shape = 1,
                                    .compat = 1,
                                    .n_parts = 1};
    }
    for (int i = 0; i < ROUNDS; i++) {
        struct ticket step = {.request = {.op = BE_STEP, .step = &steps[0]}};
        struct ticket other = {.request = {.op = BE_STEP, .step = &steps[1]}};
        struct ticket other_end = {
            .request = {.op = BE_STEP_END, .step_end = {.step = &other.request, .code = MLA_CANCELLED}}};
        struct ticket unwatch = {.request = {.op = BE_UNWATCH, .unwatch = &watches[i].request}};
        struct ticket *behind[2][4] = {{&watches[i], &unwatch, &other, &other_end},
                                       {&other, &other_end, &watches[i], &unwatch}};
        watches[i] = watch_of(&w, WATCHED, 1);
        store(&w, READY, 1);
        store(&w, DONE, 0);
        rig_submit(&w.rig, &step);
        for (int k = 0; k < 4; k++)
            rig_submit(&w.rig, behind[i % 2][k]);
        rig_wait(&w.rig, &step);
        rig_wait(&w.rig, &other);
        rig_wait(&w.rig, &other_end);
        rig_wait(&w.rig, &unwatch);
        ck_assert_int_eq(step.error.code, MLA_OK);
        ck_assert_int_eq(other.error.code, MLA_CANCELLED);
    }
    store(&w, WATCHED, 1);
    rig_poll(&w.rig, 20);
    for (int i = 0; i < ROUNDS; i++)
        ck_assert_msg(watches[i].ready_at == 0, "watch %d goes on", i);
    dc_free(c);
    words_close(&w);
}
END_TEST

/* The progress counter grows while nothing is asked for, at least once a second. */
START_TEST(progress_while_idle)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (int i = 0; i < 2; i++) {
        uint64_t before = be_progress(&rig.be);
        usleep(1100000);
        ck_assert_uint_gt(be_progress(&rig.be), before);
    }
    rig_close(&rig);
}
END_TEST

MLA_SUITE(backend_words)
{
    TCase *tc = mla_tcase(suite, "words");
    rig_add(tc, watch_fires_when_the_word_comes);
    rig_add(tc, watch_compares_signed_differences);
    rig_add(tc, watch_tells_an_abort);
    rig_add(tc, unwatch_ends_a_watch);
    rig_add(tc, unwatch_of_a_watch_that_fired);
    rig_add(tc, many_watches);
    rig_add(tc, watch_does_not_hold_up_launches);
    rig_add(tc, done_word_comes_behind_the_outputs);
    rig_add(tc, abort_writes_statuses_and_word);
    rig_add(tc, close_with_pending_watches);
    rig_add(tc, many_requests_in_order);
    rig_add(tc, what_is_taken_back_has_begun);
    rig_add(tc, progress_while_idle);
}
