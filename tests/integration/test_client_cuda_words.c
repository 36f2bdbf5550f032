/* Decodes in the order of the worker's stream, and what happens to a waiting stream when the daemon goes. */
#include "tests/integration/test_client_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "daemon/util/clock.h"

#define N 4u

/* A cache of N pages in its own allocation, rows, and a pinned sync page. */
struct scene {
    struct worker w;
    struct rows rows;
    CUdeviceptr block;
    mla_region_id region;
    mla_cache_id cache;
    struct mla_sync *sync;
    struct mla_cuda_sync *words;
};

static void scene_start(struct scene *s, const char *daemon_fake)
{
    static const uint32_t pages[N] = {0, 1, 2, 3};
    struct mla_cache_desc d;
    struct worker *w = &s->w;
    worker_start(w, daemon_fake);
    rows_make(w, &s->rows);
    OK(w->cu.cuMemAlloc(&s->block, N * PAGE_BYTES));
    MLA(w, mla_cuda_region_register(w->client, s->block, N * PAGE_BYTES, MLA_ACCESS_READ, "kv", LONG_US, &s->region),
        MLA_OK);
    mla_cache_desc_init(&d);
    d.region = s->region;
    d.num_pages = N;
    MLA(w, mla_cache_define(w->client, &d, LONG_US, &s->cache), MLA_OK);
    put_tables(w, 1, pages, N);
    MLA(w, mla_sync_create(w->client, 8, LONG_US, &s->sync), MLA_OK);
    MLA(w, mla_cuda_sync_attach(w->client, s->sync, &s->words), MLA_OK);
}

static void scene_stop(struct scene *s)
{
    ck_assert_int_eq(mla_cuda_sync_detach(s->words), MLA_OK);
    MLA(&s->w, mla_sync_destroy(s->sync, LONG_US), MLA_OK);
    if (s->w.daemon) {
        MLA(&s->w, mla_cache_drop(s->w.client, s->cache, LONG_US), MLA_OK);
        MLA(&s->w, mla_region_unregister(s->w.client, s->region, LONG_US), MLA_OK);
        rows_free(&s->w, &s->rows);
    } else {
        OK(s->w.cu.cuMemFree(s->rows.memory));
    }
    OK(s->w.cu.cuMemFree(s->block));
    worker_stop(&s->w);
}

enum { READY, DONE, STATUS };

static struct mla_decode_args ordered_args(const struct scene *s, uint64_t value)
{
    struct mla_decode_args a = decode_args(s->cache, 1, &s->rows);
    a.ready = mla_sync_location(s->sync, READY);
    a.ready_value = value;
    a.done = mla_sync_location(s->sync, DONE);
    a.done_value = value;
    a.status = mla_sync_location(s->sync, STATUS);
    a.n_status = N;
    return a;
}

static uint64_t word(const struct scene *s, size_t index)
{
    return mla_word_load(mla_sync_word(s->sync, index));
}

/* Each decode reads what the stream wrote in front of it, and the stream goes on behind it. */
START_TEST(decodes_run_in_stream_order)
{
    struct scene s;
    struct worker *w = &s.w;
    scene_start(&s, "");
    for (uint64_t value = 1; value <= 5; value++) {
        struct mla_decode_args a = ordered_args(&s, value);
        mla_request_id request;
        MLA(w, mla_decode_submit(w->client, &a, NULL, NULL, &request), MLA_OK);
        if (value == 3) { /* the job waits for the stream, whatever that does first */
            MLA(w, mla_wait(w->client, request, 50000, NULL), MLA_PENDING);
            ck_assert_uint_eq(word(&s, DONE), 2);
        }
        for (size_t p = 0; p < N; p++)
            OK(w->cu.cuMemsetD8Async(s.block + p * PAGE_BYTES, (unsigned char)(0x30 + 2 * value + p), PAGE_BYTES,
                                     w->stream));
        ck_assert_int_eq(mla_cuda_write_ready(s.words, READY, value, w->stream), MLA_OK);
        ck_assert_int_eq(mla_cuda_wait_done(s.words, DONE, value, w->stream), MLA_OK);
        float o[512];
        size_t o_at = (size_t)SEQS_MAX * HEADS * ROW_BYTES;
        for (size_t p = 0; p < N; p++) {
            OK(w->cu.cuMemcpyDtoHAsync(o, s.rows.memory + o_at + p * HEADS * O_ROW, sizeof(o), w->stream));
            OK(w->cu.cuStreamSynchronize(w->stream));
            unsigned bits = (unsigned)(0x30 + 2 * value + p); /* 2^(e - 7) * (1 + m / 8) */
            double want = (double)(1u << (bits >> 3)) / 128.0 * (1.0 + (bits & 7) / 8.0);
            ck_assert_double_eq_tol((double)o[0], want, want / 100);
            ck_assert_double_eq_tol((double)o[511], want, want / 100);
        }
        ck_assert_uint_eq(word(&s, DONE), value);
        ck_assert(!mla_word_aborted(word(&s, DONE), value));
        MLA(w, mla_wait(w->client, request, LONG_US, NULL), MLA_OK);
    }
    scene_stop(&s);
}
END_TEST

static double sync_ms(struct worker *w)
{
    uint64_t begun = mla_now_ns();
    OK(w->cu.cuStreamSynchronize(w->stream));
    return (double)(mla_now_ns() - begun) / 1e6;
}

/* A job that is cancelled, or whose word never comes, releases the stream as well. */
START_TEST(jobs_that_fail_release_the_stream)
{
    struct scene s;
    struct worker *w = &s.w;
    scene_start(&s, "");
    struct mla_decode_args a = ordered_args(&s, 1);
    mla_request_id request;
    a.deadline_us = _i ? 50000 : 0;
    MLA(w, mla_decode_submit(w->client, &a, NULL, NULL, &request), MLA_OK);
    ck_assert_int_eq(mla_cuda_wait_done(s.words, DONE, 1, w->stream), MLA_OK);
    if (!_i)
        MLA(w, mla_cancel(w->client, request), MLA_OK);
    MLA(w, mla_wait(w->client, request, LONG_US, NULL), _i ? MLA_TIMED_OUT : MLA_CANCELLED);
    sync_ms(w);
    ck_assert(mla_word_aborted(word(&s, DONE), 1));
    ck_assert_uint_eq(word(&s, STATUS) >> 32, _i ? MLA_TIMED_OUT : MLA_CANCELLED);
    scene_stop(&s);
}
END_TEST

/* Kills the daemon while the stream waits; the program is in cuStreamSynchronize and in no call of the library. */
static void killed(struct scene *s)
{
    struct worker *w = &s->w;
    worker_kill_daemon(w);
    double ms = sync_ms(w);
    ck_assert_msg(ms < 100.0, "the stream waited %.1f ms", ms);
    ck_assert_uint_eq(word(s, DONE), 1 + MLA_ABORT_OFFSET);
    for (size_t i = 0; i < N; i++)
        ck_assert_uint_eq(mla_word_load(mla_sync_word(s->sync, STATUS) + i), (uint64_t)MLA_DISCONNECTED << 32);
}

START_TEST(a_dead_daemon_releases_the_stream)
{
    struct scene s;
    struct worker *w = &s.w;
    mla_request_id request;
    scene_start(&s, "");
    struct mla_decode_args a = ordered_args(&s, 1);
    MLA(w, mla_decode_submit(w->client, &a, NULL, NULL, &request), MLA_OK);
    ck_assert_int_eq(mla_cuda_wait_done(s.words, DONE, 1, w->stream), MLA_OK);
    MLA(w, mla_wait(w->client, request, 20000, NULL), MLA_PENDING);
    ck_assert_int_eq(w->cu.cuStreamQuery(w->stream), CUDA_ERROR_NOT_READY);
    killed(&s);
    MLA(w, mla_wait(w->client, request, LONG_US, NULL), MLA_DISCONNECTED);
    scene_stop(&s);
}
END_TEST

/* The same while the daemon's kernel runs. */
START_TEST(a_daemon_killed_in_a_batch_releases_the_stream)
{
    struct scene s;
    struct worker *w = &s.w;
    mla_request_id request;
    scene_start(&s, "kernel@1=hold /nonexistent/file");
    struct mla_decode_args a = ordered_args(&s, 1);
    MLA(w, mla_decode_submit(w->client, &a, NULL, NULL, &request), MLA_OK);
    ck_assert_int_eq(mla_cuda_write_ready(s.words, READY, 1, w->stream), MLA_OK);
    ck_assert_int_eq(mla_cuda_wait_done(s.words, DONE, 1, w->stream), MLA_OK);
    MLA(w, mla_wait(w->client, request, 100000, NULL), MLA_PENDING);
    ck_assert_uint_eq(word(&s, DONE), 0);
    killed(&s);
    MLA(w, mla_wait(w->client, request, LONG_US, NULL), MLA_DISCONNECTED);
    scene_stop(&s);
}
END_TEST

/* A device that is lost in the daemon: its process ends, with what it wrote last or with the watcher's word. */
START_TEST(a_lost_device_releases_the_stream)
{
    struct scene s;
    struct worker *w = &s.w;
    mla_request_id request;
    scene_start(&s, "kernel@1=lose CUDA_ERROR_ILLEGAL_ADDRESS");
    struct mla_decode_args a = ordered_args(&s, 1);
    MLA(w, mla_decode_submit(w->client, &a, NULL, NULL, &request), MLA_OK);
    ck_assert_int_eq(mla_cuda_write_ready(s.words, READY, 1, w->stream), MLA_OK);
    ck_assert_int_eq(mla_cuda_wait_done(s.words, DONE, 1, w->stream), MLA_OK);
    sync_ms(w);
    ck_assert(mla_word_aborted(word(&s, DONE), 1));
    enum mla_status status = mla_wait(w->client, request, LONG_US, NULL);
    ck_assert_msg(status == MLA_DEVICE_LOST || status == MLA_DISCONNECTED, "%s", mla_errname(status));
    worker_kill_daemon(w);
    scene_stop(&s);
}
END_TEST

START_TEST(words_out_of_range)
{
    struct scene s;
    struct worker *w = &s.w;
    struct mla_cuda_sync *twice;
    scene_start(&s, "");
    size_t n = mla_sync_words(s.sync);
    ck_assert_uint_eq(mla_cuda_word(s.words, n), 0);
    ck_assert_uint_eq(mla_cuda_word(s.words, 2) - mla_cuda_word(s.words, 0), 2 * MLA_WORD_BYTES);
    ck_assert_int_eq(mla_cuda_write_ready(s.words, n, 1, w->stream), MLA_OUT_OF_BOUNDS);
    ck_assert_uint_eq(mla_cuda_last_error()->value, n);
    ck_assert_uint_eq(mla_cuda_last_error()->limit, n - 1);
    ck_assert_int_eq(mla_cuda_wait_done(s.words, n, 1, w->stream), MLA_OUT_OF_BOUNDS);
    ck_assert_int_eq(mla_cuda_wait_done(NULL, 0, 1, w->stream), MLA_INVALID_ARGUMENT);
    MLA(w, mla_cuda_sync_attach(w->client, s.sync, &twice), MLA_ALREADY_EXISTS);
    ck_assert_ptr_null(twice);
    MLA(w, mla_cuda_sync_attach(w->client, NULL, &twice), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_cuda_sync_attach(NULL, s.sync, &twice), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_cuda_sync_detach(NULL), MLA_OK);
    /* A context of no one's is current: detaching finds its own. */
    OK(w->cu.cuCtxSetCurrent(NULL));
    ck_assert_int_eq(mla_cuda_sync_detach(s.words), MLA_OK);
    MLA(w, mla_cuda_sync_attach(w->client, s.sync, &s.words), MLA_INVALID_ARGUMENT);
    OK(w->cu.cuCtxSetCurrent(w->context));
    MLA(w, mla_cuda_sync_attach(w->client, s.sync, &s.words), MLA_OK);
    scene_stop(&s);
}
END_TEST

MLA_SUITE(client_cuda_words)
{
    TCase *tc = mla_tcase_timeout(suite, "words", 60);
    tcase_add_test(tc, decodes_run_in_stream_order);
    tcase_add_loop_test(tc, jobs_that_fail_release_the_stream, 0, 2);
    tcase_add_test(tc, a_dead_daemon_releases_the_stream);
    tcase_add_test(tc, words_out_of_range);
    if (!worker_is_fake()) /* a real GPU's kernels are neither held nor lost at will */
        return;
    tcase_add_test(tc, a_daemon_killed_in_a_batch_releases_the_stream);
    tcase_add_test(tc, a_lost_device_releases_the_stream);
}
