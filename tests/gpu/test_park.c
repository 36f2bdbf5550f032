/* Launches that wait on the device for a word (kernels/host/park.h): what makes them run, what makes them leave, and
 * what is written then. With kernels that overlap where they can, and without. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/host/park.h"
#include "tests/gpu/rig_library.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

#define LONG_NS UINT64_C(20000000000)
#define ABORT   (UINT64_C(1) << 62)
#define READY   UINT64_C(7) /* the value that is waited for */
#define ROUNDS  200
#define N_WORDS 3
#define WORD    8 /* 64-bit words to the next cache line */

enum { AT_ORDER, AT_VERDICT, AT_READY };

struct bench {
    struct rig rig;
    struct dc *c;
    struct dc_job *job;
    uint64_t *words;
    CUdeviceptr words_device;
    CUdeviceptr out;
    CUstream other;
    uint64_t number;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t word(const struct bench *b, int which)
{
    return __atomic_load_n(b->words + (ptrdiff_t)which * WORD, __ATOMIC_ACQUIRE);
}

static void set(const struct bench *b, int which, uint64_t value)
{
    __atomic_store_n(b->words + (ptrdiff_t)which * WORD, value, __ATOMIC_RELEASE);
}

/* False where the variant of the round has nothing that waits. i: the variant, with and without overlap. */
static bool open_bench(struct bench *b, int i)
{
    memset(b, 0, sizeof(*b));
    if (i % 2 != 0)
        ck_assert_int_eq(setenv("MLA_TEST_PROGRAMMATIC", "1", 1), 0);
    if (!rig_open(&b->rig, i / 2))
        return false;
    if (!kernels_can_park(lib.kernels)) {
        ck_assert_ptr_null(strstr(lib.facts.name, "sm90-64"));
        ck_assert_int_ne(strcmp(lib.facts.name, "sm90"), 0);
        rig_close(&b->rig);
        return false;
    }
    b->c = dc_new(&b->rig);
    b->job = dc_add(b->c, &(struct dc_shape){.heads = 24,
                                             .n_seqs = 3,
                                             .seqs = SEQS({4, 300, 400}, {2, 64, 64}, {1, 130, 130}),
                                             .mask = MLA_MASK_VISIBLE,
                                             .user_status = true,
                                             .table = DC_REGION,
                                             .kv_len = DC_REGION,
                                             .visible = DC_REGION,
                                             .seed = 1});
    b->job->keep_reference = true;
    b->c->request.splits = 2;
    dc_run(b->c); /* all kernels are loaded; the blob is in device memory */
    dc_check_all(b->c);
    void *words;
    LIB_OK(cuMemHostAlloc(&words, N_WORDS * WORD * sizeof(uint64_t), CU_MEMHOSTALLOC_DEVICEMAP));
    memset(words, 0, N_WORDS * WORD * sizeof(uint64_t));
    b->words = words;
    LIB_OK(cuMemHostGetDevicePointer(&b->words_device, words, 0));
    LIB_OK(cuMemAlloc(&b->out, MLA_SM90_PARK_OUT_BYTES));
    LIB_OK(cuStreamCreate(&b->other, CU_STREAM_NON_BLOCKING));
    return true;
}

static void close_bench(struct bench *b)
{
    LIB_OK(cuStreamDestroy(b->other));
    LIB_OK(cuMemFree(b->out));
    LIB_OK(cuMemFreeHost(b->words));
    dc_free(b->c);
    rig_close(&b->rig);
}

/* The records as they were, poison in all outputs, and the launch on its way. */
static void park(struct bench *b, bool has_ready, uint64_t most_ns)
{
    struct mem *outputs[] = {&b->job->o_mem, &b->job->lse_mem, &b->job->user_status_mem};
    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
        memset(outputs[i]->host, DC_POISON, outputs[i]->bytes);
        mem_push(&b->rig, outputs[i]);
    }
    LIB_OK(cuMemcpyHtoD(lib.blob_copy, lib.blob,
                        mla_kernels_blob_bytes(lib.kernels, &b->c->plan, b->c->n_jobs, b->c->n_seqs)));
    set(b, AT_READY, READY - 1);
    struct kernels_park how = {.order = b->words_device + AT_ORDER * WORD * 8,
                               .verdict = b->words_device + AT_VERDICT * WORD * 8,
                               .ready = has_ready ? b->words_device + AT_READY * WORD * 8 : 0,
                               .ready_value = READY,
                               .number = ++b->number,
                               .out = b->out,
                               .most_ns = most_ns};
    CUresult result = CUDA_SUCCESS;
    int rc = kernels_launch_parked(lib.kernels, lib.stream, &lib.launch, &how, &result);
    ck_assert_msg(rc == 0, "%d, %s", rc, cuda_driver_error(&lib.driver, result));
}

/* Other streams go on meanwhile. */
static void still_waits(struct bench *b)
{
    usleep(2000);
    LIB_OK(cuMemsetD8Async(b->out, 0, MLA_SM90_PARK_OUT_BYTES, b->other));
    LIB_OK(cuStreamSynchronize(b->other));
    ck_assert_int_eq(lib.driver.cuStreamQuery(lib.stream), CUDA_ERROR_NOT_READY);
    ck_assert_uint_lt(word(b, AT_VERDICT), MLA_SM90_PARK_WORD(b->number, 0));
}

static void order(const struct bench *b, uint32_t what)
{
    set(b, AT_ORDER, MLA_SM90_PARK_WORD(b->number, what));
}

static void ends(struct bench *b, uint32_t verdict)
{
    LIB_OK(cuStreamSynchronize(lib.stream));
    ck_assert_uint_eq(word(b, AT_VERDICT), MLA_SM90_PARK_WORD(b->number, verdict));
    dc_pull(b->c);
}

static void has_run(struct bench *b)
{
    ends(b, MLA_SM90_PARK_RUN);
    dc_check_all(b->c);
}

static void has_left(struct bench *b)
{
    ends(b, MLA_SM90_PARK_LEAVE);
    const struct mem *outputs[] = {&b->job->o_mem, &b->job->lse_mem, &b->job->user_status_mem};
    for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
        const struct mem *m = outputs[i];
        ck_assert(m->host[0] == DC_POISON && memcmp(m->host, m->host + 1, m->bytes - 1) == 0);
    }
}

/* By the word, by a later value of it, by order, with a word and without; a word that is there before. */
START_TEST(runs)
{
    struct bench b;
    if (!open_bench(&b, _i))
        return;
    park(&b, true, LONG_NS);
    still_waits(&b);
    set(&b, AT_READY, READY);
    has_run(&b);
    park(&b, true, LONG_NS);
    still_waits(&b);
    set(&b, AT_READY, READY + 1000);
    has_run(&b);
    for (int has_ready = 0; has_ready < 2; has_ready++) {
        park(&b, has_ready, LONG_NS);
        still_waits(&b);
        order(&b, MLA_SM90_PARK_RUN);
        has_run(&b);
    }
    b.number++;
    order(&b, MLA_SM90_PARK_RUN);
    b.number--;
    park(&b, false, LONG_NS);
    has_run(&b);
    close_bench(&b);
}
END_TEST

/* By order, by time, and in spite of values that are none: earlier ones and aborts. Nothing is written, and what comes
 * next is right. */
START_TEST(leaves)
{
    static const uint64_t none[] = {READY - 1, 0, READY + ABORT, READY - ABORT, READY + (UINT64_C(1) << 61)};
    struct bench b;
    if (!open_bench(&b, _i))
        return;
    for (size_t k = 0; k < sizeof(none) / sizeof(none[0]); k++) {
        park(&b, true, LONG_NS);
        set(&b, AT_READY, none[k]);
        still_waits(&b);
        order(&b, MLA_SM90_PARK_LEAVE);
        has_left(&b);
    }
    uint64_t from = now_ns();
    park(&b, true, 5000000);
    has_left(&b);
    ck_assert_uint_ge(now_ns() - from, 5000000);
    park(&b, false, 0);
    has_left(&b);
    park(&b, true, LONG_NS);
    set(&b, AT_READY, READY);
    has_run(&b);
    close_bench(&b);
}
END_TEST

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The order to leave and the word at once: one of two things has happened, whole. Times are printed. */
START_TEST(word_or_order)
{
    uint64_t verdict_ns[ROUNDS];
    int n_run = 0, n = 0;
    struct bench b;
    if (!open_bench(&b, _i))
        return;
    for (int round = 0; round < ROUNDS; round++) {
        park(&b, true, LONG_NS);
        usleep(100);
        uint64_t from = now_ns();
        set(&b, AT_READY, READY);
        if (round % 2 != 0) {
            while (now_ns() < from + (uint64_t)round * 20)
                continue;
            order(&b, MLA_SM90_PARK_LEAVE);
        }
        while (word(&b, AT_VERDICT) < MLA_SM90_PARK_WORD(b.number, 0))
            continue;
        if (round % 2 == 0)
            verdict_ns[n++] = now_ns() - from;
        if (word(&b, AT_VERDICT) == MLA_SM90_PARK_WORD(b.number, MLA_SM90_PARK_RUN)) {
            has_run(&b);
            n_run++;
        } else {
            ck_assert_int_ne(round % 2, 0);
            has_left(&b);
        }
    }
    qsort(verdict_ns, (size_t)n, sizeof(verdict_ns[0]), compare);
    printf("park %s%s: word to verdict as the host sees it %.1f us p50, %.1f us p99; %d of %d with an order behind the "
           "word have run\n",
           lib.facts.name, _i % 2 != 0 ? ", programmatic" : "", (double)verdict_ns[n / 2] / 1e3,
           (double)verdict_ns[n * 99 / 100] / 1e3, n_run - n, ROUNDS - n);
    ck_assert_int_ge(n_run, n);
    close_bench(&b);
}
END_TEST

MLA_SUITE(library_park)
{
    TCase *tc = mla_tcase(suite, "park");
    tcase_add_loop_test(tc, runs, 0, 2 * rig_backends());
    tcase_add_loop_test(tc, leaves, 0, 2 * rig_backends());
    tcase_add_loop_test(tc, word_or_order, 0, 2 * rig_backends());
}
