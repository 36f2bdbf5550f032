#include "daemon/util/checked.h"
#include "daemon/util/cleanup.h"
#include "daemon/util/clock.h"
#include "daemon/util/list.h"
#include "daemon/util/random.h"
#include "tests/support/check_main.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>

START_TEST(add_and_mul_at_the_edge)
{
    uint64_t r = 1;
    ck_assert_int_eq(mla_add_u64(UINT64_MAX - 1, 1, &r), 0);
    ck_assert_uint_eq(r, UINT64_MAX);
    ck_assert_int_eq(mla_add_u64(UINT64_MAX, 1, &r), -EOVERFLOW);
    ck_assert_uint_eq(r, UINT64_MAX);
    ck_assert_int_eq(mla_mul_u64(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &r), 0);
    ck_assert_uint_eq(r, 0xffffffff00000000);
    ck_assert_int_eq(mla_mul_u64(UINT64_C(1) << 32, UINT64_C(1) << 32, &r), -EOVERFLOW);
    ck_assert_int_eq(mla_mul_add_u64(3, 5, 7, &r), 0);
    ck_assert_uint_eq(r, 22);
    ck_assert_int_eq(mla_mul_add_u64(UINT64_MAX / 3, 3, 1, &r), -EOVERFLOW);
    ck_assert_int_eq(mla_mul_add_u64(UINT64_MAX, 2, 0, &r), -EOVERFLOW);
    ck_assert_uint_eq(r, 22);
}
END_TEST

START_TEST(ranges)
{
    ck_assert(mla_range_fits(0, 10, 10));
    ck_assert(mla_range_fits(10, 0, 10));
    ck_assert(!mla_range_fits(11, 0, 10));
    ck_assert(!mla_range_fits(1, 10, 10));
    ck_assert(!mla_range_fits(8, UINT64_MAX - 4, 10));
    ck_assert(mla_range_fits(0, UINT64_MAX, UINT64_MAX));
}
END_TEST

static int fd_in_scope(int *kept)
{
    MLA_AUTO_FD int closed = open("/dev/null", O_RDONLY | O_CLOEXEC);
    MLA_AUTO_FD int stolen = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(closed, 0);
    ck_assert_int_ge(stolen, 0);
    *kept = mla_steal_fd(&stolen);
    ck_assert_int_eq(stolen, -1);
    return closed;
}

START_TEST(auto_fd_closes_and_steals)
{
    int kept = -1;
    int closed = fd_in_scope(&kept);
    ck_assert_int_eq(fcntl(closed, F_GETFD), -1);
    ck_assert_int_eq(errno, EBADF);
    ck_assert_int_ge(fcntl(kept, F_GETFD), 0);
    close(kept);
}
END_TEST

static char *steal_of_two(void)
{
    MLA_AUTO_FREE char *freed = strdup("freed");
    MLA_AUTO_FREE char *kept = strdup("kept");
    ck_assert_ptr_nonnull(freed);
    char *out = mla_steal_ptr(&kept);
    ck_assert_ptr_null(kept);
    errno = EIO;
    return out;
}

START_TEST(auto_free_keeps_errno) /* leaks and double frees are for the sanitizer build to see */
{
    char *s = steal_of_two();
    ck_assert_int_eq(errno, EIO);
    ck_assert_str_eq(s, "kept");
    free(s);
}
END_TEST

struct item {
    int value;
    struct list node;
};

static void expect_values(const struct list *head, const int *values, size_t n)
{
    size_t i = 0;
    list_for_each (node, head) {
        ck_assert_uint_lt(i, n);
        ck_assert_int_eq(list_entry(node, struct item, node)->value, values[i]);
        i++;
    }
    ck_assert_uint_eq(i, n);
}

START_TEST(list_keeps_order)
{
    struct list head;
    struct item items[4] = {{.value = 0}, {.value = 1}, {.value = 2}, {.value = 3}};
    list_init(&head);
    ck_assert(list_empty(&head));
    ck_assert_ptr_null(list_first(&head));
    list_push_back(&head, &items[1].node);
    list_push_back(&head, &items[3].node);
    list_push_front(&head, &items[0].node);
    list_insert_before(&items[3].node, &items[2].node);
    expect_values(&head, (const int[]){0, 1, 2, 3}, 4);
    ck_assert_ptr_eq(list_first(&head), &items[0].node);
    list_del(&items[2].node);
    list_del(&items[2].node);
    expect_values(&head, (const int[]){0, 1, 3}, 3);
    list_for_each_safe (node, &head) {
        if (list_entry(node, struct item, node)->value < 3)
            list_del(node);
    }
    expect_values(&head, (const int[]){3}, 1);
    list_del(&items[3].node);
    ck_assert(list_empty(&head));
}
END_TEST

START_TEST(ids_differ_and_are_not_zero)
{
    uint64_t ids[64];
    for (size_t i = 0; i < 64; i++) {
        ck_assert_int_eq(mla_random_id(&ids[i]), 0);
        ck_assert_uint_ne(ids[i], 0);
        for (size_t k = 0; k < i; k++)
            ck_assert_uint_ne(ids[i], ids[k]);
    }
}
END_TEST

START_TEST(random_fills_all_of_it)
{
    unsigned char bytes[300] = {0}; /* beyond 256 a signal may cut getrandom(2) short */
    int set[300] = {0};
    for (int round = 0; round < 8; round++) {
        ck_assert_int_eq(mla_random_bytes(bytes, sizeof(bytes)), 0);
        for (size_t i = 0; i < sizeof(bytes); i++)
            set[i] |= bytes[i];
    }
    for (size_t i = 0; i < sizeof(bytes); i++)
        ck_assert_int_ne(set[i], 0); /* wrong once in 2^55 runs */
}
END_TEST

START_TEST(clock_is_monotonic_in_ns)
{
    uint64_t a = mla_now_ns();
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    uint64_t b = mla_now_ns();
    ck_assert_uint_ge(b - a, 2 * MLA_NS_PER_MS);
    ck_assert_uint_lt(b - a, 20 * MLA_NS_PER_S);
}
END_TEST

MLA_SUITE(util_misc)
{
    TCase *tc = mla_tcase(suite, "checked");
    tcase_add_test(tc, add_and_mul_at_the_edge);
    tcase_add_test(tc, ranges);
    tc = mla_tcase(suite, "cleanup");
    tcase_add_test(tc, auto_fd_closes_and_steals);
    tcase_add_test(tc, auto_free_keeps_errno);
    tc = mla_tcase(suite, "list");
    tcase_add_test(tc, list_keeps_order);
    tc = mla_tcase(suite, "random");
    tcase_add_test(tc, ids_differ_and_are_not_zero);
    tcase_add_test(tc, random_fills_all_of_it);
    tc = mla_tcase(suite, "clock");
    tcase_add_test(tc, clock_is_monotonic_in_ns);
}
