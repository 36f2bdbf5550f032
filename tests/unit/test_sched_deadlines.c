/* The heap of deadlines, through the scheduler's door: jobs that wait, time that passes. */
#include <stdlib.h>

#include "daemon/sched/sched_state.h"
#include "tests/support/check_main.h"
#include "tests/support/prng.h"

#define JOBS 20000

static struct sched sched;
static struct sched_peer peer;
static struct sched_job *jobs;

static void setup(void)
{
    sched_init(&sched, &(struct sched_config){.max_in_flight = JOBS, .max_running = 1});
    peer = (struct sched_peer){0};
    jobs = calloc(JOBS, sizeof(*jobs));
    ck_assert_ptr_nonnull(jobs);
}

static void teardown(void)
{
    free(jobs);
}

static uint64_t give(struct sched_event event, uint64_t *replies, uint64_t last_deadline)
{
    struct sched_action a;
    sched_step(&sched, &event);
    while (sched_next(&sched, &a)) {
        if (a.kind != SCHED_REPLY || a.code != MLA_TIMED_OUT)
            continue;
        bool in_order = a.job->deadline_ns >= last_deadline && a.job->deadline_ns <= event.now_ns;
        if (!in_order) /* each ck_assert costs a system call */
            ck_abort_msg("a deadline of %llu after %llu", (unsigned long long)a.job->deadline_ns,
                         (unsigned long long)last_deadline);
        last_deadline = a.job->deadline_ns;
        ++*replies;
    }
    return last_deadline;
}

static void submit_waiting(uint64_t (*deadline)(struct prng *, int i))
{
    struct prng prng = {7};
    uint64_t none = 0;
    for (int i = 0; i < JOBS; i++) {
        jobs[i].peer = &peer;
        jobs[i].has_ready = true;
        jobs[i].deadline_ns = deadline(&prng, i);
        give((struct sched_event){.kind = SCHED_SUBMIT, .now_ns = 1, .job = &jobs[i]}, &none, 0);
    }
    ck_assert_uint_eq(none, 0);
}

/* A third leaves early, in no order; the others time out in order of their deadlines, in steps. */
static void drain_in_order(void)
{
    struct prng prng = {8};
    uint64_t replies = 0, cancelled = 0, last = 0;
    for (int i = 0; i < JOBS; i++)
        if (prng_below(&prng, 3) == 0) {
            give((struct sched_event){.kind = SCHED_CANCEL, .now_ns = 1, .job = &jobs[i]}, &replies, 0);
            cancelled++;
        }
    ck_assert_uint_eq(replies, 0);
    for (uint64_t now = 100; now <= 4000000; now = now * 5 / 4) {
        last = give((struct sched_event){.kind = SCHED_TIMER, .now_ns = now}, &replies, last);
        int wrong = 0;
        for (int i = 0; i < JOBS; i++)
            wrong += (jobs[i].state == SCHED_ANSWERED) != (jobs[i].cancelled || jobs[i].deadline_ns <= now);
        ck_assert_int_eq(wrong, 0);
    }
    ck_assert_uint_eq(replies + cancelled, JOBS);
    ck_assert_uint_eq(peer.in_flight, 0);
}

static uint64_t rising(struct prng *prng, int i)
{
    (void)prng;
    return 1000 + (uint64_t)i;
}

static uint64_t falling(struct prng *prng, int i)
{
    (void)prng;
    return 100000 - (uint64_t)i;
}

static uint64_t equal(struct prng *prng, int i)
{
    (void)prng;
    (void)i;
    return 5000;
}

static uint64_t scattered(struct prng *prng, int i)
{
    (void)i;
    return 100 + prng_below(prng, 3000000);
}

START_TEST(rising_deadlines)
{
    submit_waiting(rising);
    drain_in_order();
}
END_TEST

START_TEST(falling_deadlines)
{
    submit_waiting(falling);
    drain_in_order();
}
END_TEST

START_TEST(scattered_deadlines)
{
    submit_waiting(scattered);
    drain_in_order();
}
END_TEST

START_TEST(equal_deadlines_in_order_of_submission)
{
    submit_waiting(equal);
    sched_step(&sched, &(struct sched_event){.kind = SCHED_TIMER, .now_ns = 5000});
    struct sched_action a;
    int next = 0;
    int wrong = 0;
    while (sched_next(&sched, &a))
        if (a.kind == SCHED_REPLY)
            wrong += a.job != &jobs[next++];
    ck_assert_int_eq(wrong, 0);
    ck_assert_int_eq(next, JOBS);
}
END_TEST

MLA_SUITE(sched_deadlines)
{
    TCase *tc = mla_tcase(suite, "heap");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, rising_deadlines);
    tcase_add_test(tc, falling_deadlines);
    tcase_add_test(tc, scattered_deadlines);
    tcase_add_test(tc, equal_deadlines_in_order_of_submission);
}
