#include "daemon/util/ring.h"
#include "tests/support/check_main.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>

START_TEST(init_checks_its_arguments)
{
    struct mla_ring ring;
    uint64_t storage[4];
    ck_assert_int_eq(mla_ring_init(&ring, storage, 8, 4), 0);
    ck_assert_int_eq(mla_ring_init(&ring, storage, 8, 0), -EINVAL);
    ck_assert_int_eq(mla_ring_init(&ring, storage, 8, 3), -EINVAL);
    ck_assert_int_eq(mla_ring_init(&ring, storage, 0, 4), -EINVAL);
    ck_assert_int_eq(mla_ring_init(&ring, NULL, 8, 4), -EINVAL);
}
END_TEST

START_TEST(fills_and_empties)
{
    struct mla_ring ring;
    uint32_t storage[4];
    uint32_t v = 77;
    ck_assert_int_eq(mla_ring_init(&ring, storage, sizeof(v), 4), 0);
    ck_assert(!mla_ring_pop(&ring, &v));
    ck_assert_uint_eq(v, 77);
    for (uint32_t round = 0; round < 5; round++) { /* more than once around */
        for (uint32_t i = 0; i < 4; i++) {
            v = round * 10 + i;
            ck_assert(mla_ring_push(&ring, &v));
        }
        ck_assert(!mla_ring_push(&ring, &v));
        for (uint32_t i = 0; i < 3; i++) {
            ck_assert(mla_ring_pop(&ring, &v));
            ck_assert_uint_eq(v, round * 10 + i);
        }
        v = 99;
        ck_assert(mla_ring_push(&ring, &v));
        ck_assert(mla_ring_pop(&ring, &v));
        ck_assert_uint_eq(v, round * 10 + 3);
        ck_assert(mla_ring_pop(&ring, &v));
        ck_assert_uint_eq(v, 99);
        ck_assert(!mla_ring_pop(&ring, &v));
    }
}
END_TEST

START_TEST(positions_wrap)
{
    struct mla_ring ring;
    uint32_t storage[2];
    uint32_t v;
    ck_assert_int_eq(mla_ring_init(&ring, storage, sizeof(v), 2), 0);
    size_t start = SIZE_MAX - 2;
    atomic_store(&ring.head, start);
    atomic_store(&ring.tail, start);
    ring.seen_head = ring.seen_tail = start;
    for (uint32_t i = 0; i < 8; i += 2) {
        v = i;
        ck_assert(mla_ring_push(&ring, &v));
        v = i + 1;
        ck_assert(mla_ring_push(&ring, &v));
        ck_assert(!mla_ring_push(&ring, &v));
        ck_assert(mla_ring_pop(&ring, &v));
        ck_assert_uint_eq(v, i);
        ck_assert(mla_ring_pop(&ring, &v));
        ck_assert_uint_eq(v, i + 1);
        ck_assert(!mla_ring_pop(&ring, &v));
    }
}
END_TEST

/* Three words that must arrive together, and memory beside the ring that the push must publish. */
struct message {
    uint64_t i;
    uint64_t twice;
    uint64_t *beside;
};

#define N_MESSAGES 200000
#define CAPACITY   64

static struct mla_ring shared_ring;
static struct message shared_storage[CAPACITY];
static uint64_t beside[N_MESSAGES];

static void *pushes(void *arg)
{
    (void)arg;
    for (uint64_t i = 0; i < N_MESSAGES; i++) {
        beside[i] = i + 5;
        struct message m = {.i = i, .twice = 2 * i, .beside = &beside[i]};
        while (!mla_ring_push(&shared_ring, &m))
            sched_yield();
    }
    return NULL;
}

START_TEST(two_threads)
{
    pthread_t pusher;
    ck_assert_int_eq(mla_ring_init(&shared_ring, shared_storage, sizeof(struct message), CAPACITY), 0);
    ck_assert_int_eq(pthread_create(&pusher, NULL, pushes, NULL), 0);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < N_MESSAGES; i++) {
        struct message m;
        while (!mla_ring_pop(&shared_ring, &m))
            sched_yield();
        wrong += m.i != i || m.twice != 2 * i || *m.beside != i + 5;
    }
    pthread_join(pusher, NULL);
    ck_assert_uint_eq(wrong, 0);
    struct message m;
    ck_assert(!mla_ring_pop(&shared_ring, &m));
}
END_TEST

MLA_SUITE(util_ring)
{
    TCase *tc = mla_tcase(suite, "ring");
    tcase_add_test(tc, init_checks_its_arguments);
    tcase_add_test(tc, fills_and_empties);
    tcase_add_test(tc, positions_wrap);
    tcase_add_test(tc, two_threads);
}
