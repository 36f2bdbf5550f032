/* The allocator of pinned memory. */
#include <stdlib.h>
#include <string.h>

#include "daemon/backend/cuda/host_arena.h"
#include "tests/support/check_main.h"
#include "tests/support/prng.h"

#define BYTES  (1u << 16)
#define PIECES 64

static unsigned char *block;
static struct cu_arena arena;

static void setup(void)
{
    block = aligned_alloc(64, BYTES);
    ck_assert_ptr_nonnull(block);
    memset(block, 0xa5, BYTES);
    cu_arena_init(&arena, block, BYTES);
}

static void teardown(void)
{
    free(block);
}

/* One assertion for many bytes: each is a message to Check's parent process. */
static void assert_all(const unsigned char *p, size_t n, unsigned char value)
{
    size_t other = 0;
    for (size_t i = 0; i < n; i++)
        other += p[i] != value;
    ck_assert_uint_eq(other, 0);
}

START_TEST(pieces_are_aligned_and_zeroed)
{
    const size_t sizes[] = {0, 1, 63, 64, 65, 1000, 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *p = cu_arena_alloc(&arena, sizes[i]);
        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq((uintptr_t)p % 64, 0);
        assert_all(p, sizes[i], 0);
        memset(p, 0xff, sizes[i]);
    }
    cu_arena_free(&arena, NULL);
}
END_TEST

START_TEST(all_of_it_and_no_more)
{
    ck_assert_ptr_null(cu_arena_alloc(&arena, BYTES));
    ck_assert_ptr_null(cu_arena_alloc(&arena, BYTES - 63));
    ck_assert_ptr_null(cu_arena_alloc(&arena, SIZE_MAX));
    ck_assert_ptr_null(cu_arena_alloc(&arena, SIZE_MAX - 63));
    unsigned char *p = cu_arena_alloc(&arena, BYTES - 64);
    ck_assert_ptr_nonnull(p);
    assert_all(p, BYTES - 64, 0);
    ck_assert_ptr_null(cu_arena_alloc(&arena, 1));
    ck_assert_uint_eq(arena.used_bytes, BYTES);
    cu_arena_free(&arena, p);
    ck_assert_uint_eq(arena.used_bytes, 0);
    ck_assert_ptr_eq(cu_arena_alloc(&arena, BYTES - 64), p);
}
END_TEST

/* Freed in every order of three, the pieces become one again. */
START_TEST(neighbours_become_one)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int k = 0; k < 6; k++) {
        void *p[3];
        for (int i = 0; i < 3; i++)
            p[i] = cu_arena_alloc(&arena, 5000);
        for (int i = 0; i < 3; i++)
            cu_arena_free(&arena, p[orders[k][i]]);
        void *all = cu_arena_alloc(&arena, BYTES - 64);
        ck_assert_msg(all != NULL, "order %d leaves the arena in pieces", k);
        cu_arena_free(&arena, all);
    }
}
END_TEST

START_TEST(a_hole_is_used_again)
{
    void *a = cu_arena_alloc(&arena, 1024);
    void *b = cu_arena_alloc(&arena, 1024);
    void *c = cu_arena_alloc(&arena, 1024);
    cu_arena_free(&arena, b);
    ck_assert_ptr_eq(cu_arena_alloc(&arena, 1024), b);
    cu_arena_free(&arena, a);
    ck_assert_ptr_nonnull(c);
}
END_TEST

/* Whatever is taken and given back in whatever order: pieces do not meet, keep their bytes, and all comes back. */
START_TEST(random_use)
{
    struct {
        unsigned char *p;
        size_t bytes;
    } live[PIECES] = {{0}};
    struct prng prng = {11};
    size_t taken = 0;
    for (int round = 0; round < 20000; round++) {
        size_t i = prng_below(&prng, PIECES);
        if (live[i].p) {
            assert_all(live[i].p, live[i].bytes, (unsigned char)(i + 1));
            cu_arena_free(&arena, live[i].p);
            live[i].p = NULL;
            continue;
        }
        live[i].bytes = prng_below(&prng, 3000);
        live[i].p = cu_arena_alloc(&arena, live[i].bytes);
        if (!live[i].p)
            continue;
        taken++;
        ck_assert(live[i].p >= block && live[i].p + live[i].bytes <= block + BYTES);
        memset(live[i].p, (int)(i + 1), live[i].bytes);
    }
    ck_assert_uint_gt(taken, 5000);
    for (size_t i = 0; i < PIECES; i++)
        cu_arena_free(&arena, live[i].p);
    ck_assert_uint_eq(arena.used_bytes, 0);
    ck_assert_ptr_nonnull(cu_arena_alloc(&arena, BYTES - 64));
}
END_TEST

MLA_SUITE(be_cuda_arena)
{
    TCase *tc = mla_tcase(suite, "arena");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, pieces_are_aligned_and_zeroed);
    tcase_add_test(tc, all_of_it_and_no_more);
    tcase_add_test(tc, neighbours_become_one);
    tcase_add_test(tc, a_hole_is_used_again);
    tcase_add_test(tc, random_use);
}
