/* Latency and shares of whole runs in virtual time. */
#include "tests/scenario/device.h"
#include "tests/support/check_main.h"
#include "tests/support/prng.h"

#define LAUNCH_US 2000
#define DEVICE                                                                                                         \
    {                                                                                                                  \
        .max_in_flight = 65536, .max_running = 2, .batch_jobs_max = 1024, .batch_seqs_max = 65536,                     \
        .launch_max_ns = LAUNCH_US * 1000, .launch_fixed_ns = 10000, .lead_ns = 75000, .retry_after_us = 1000          \
    }

static struct device_run run;

/* One client with decodes of 10 ms, cut into parts, and eight with small ones: those wait for the launch that runs and
 * the one behind it at most. */
START_TEST(small_ones_beside_a_large_one)
{
    run = (struct device_run){.config = DEVICE, .fixed_us = 10, .until_us = 2000000, .n_clients = 9};
    run.slower_percent = (uint32_t)_i * 15;
    run.clients[0] = (struct device_client){.load_us = 1430, .parts = 7, .in_flight = 2};
    for (int i = 1; i < 9; i++)
        run.clients[i] = (struct device_client){.load_us = 12, .think_us = 200 + 37 * (uint64_t)i, .start_us = 7};
    device_run(&run);
    uint64_t own_us = 12 + 10;
    ck_assert_uint_le(run.longest_us, LAUNCH_US * 21 / 20);
    for (int i = 1; i < 9; i++) {
        ck_assert_uint_gt(run.clients[i].answered, 400);
        ck_assert_uint_le(run.clients[i].p99_us, 2 * LAUNCH_US + own_us);
        ck_assert_uint_le(run.clients[i].p50_us, 2 * run.longest_us);
    }
    /* The large one has the rest, and the device does not idle. */
    ck_assert_uint_ge(run.busy_us * 1000, run.ended_us * 995);
    ck_assert_uint_ge(run.clients[0].served_us * (100 + run.slower_percent) / 100, run.until_us * 9 / 10);
}
END_TEST

/* Eager workers of the same kind: alone each would have the device for 80 of 120 us; together they fill it. */
START_TEST(workers_fill_the_device)
{
    static const uint32_t numbers[] = {1, 2, 4, 8, 16, 64};
    for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++) {
        run = (struct device_run){.config = DEVICE, .fixed_us = 10, .until_us = 500000, .n_clients = numbers[n]};
        uint64_t served = 0;
        for (uint32_t i = 0; i < run.n_clients; i++)
            run.clients[i] = (struct device_client){.load_us = 70, .think_us = 40, .start_us = 3 * i};
        device_run(&run);
        for (uint32_t i = 0; i < run.n_clients; i++)
            served += run.clients[i].served_us;
        if (numbers[n] == 1)
            ck_assert_uint_ge(served * 100, run.ended_us * 55);
        else if (numbers[n] >= 8) /* of one launch for all of them, again and again, without a pause */
            ck_assert_uint_ge(served * 100, run.ended_us * 90);
    }
}
END_TEST

/* Threads wake up late, for the timer, for a launch and for its end: together by more than the lead. The device does
 * not wait for them, since the lead follows. */
START_TEST(the_lead_follows_what_launches_need)
{
    run = (struct device_run){.config = DEVICE, .fixed_us = 10, .until_us = 500000, .n_clients = 16};
    run.timer_late_us = 30;
    run.launch_us = 40 + 40 * (uint64_t)_i;
    run.hear_us = 40;
    for (uint32_t i = 0; i < run.n_clients; i++)
        run.clients[i] = (struct device_client){.load_us = 65, .think_us = 30, .start_us = 3 * i};
    device_run(&run);
    ck_assert_uint_ge(run.busy_us * 1000, run.ended_us * 990);
    ck_assert_uint_ge(run.longest_us, 4 * 65);
}
END_TEST

/* Threads that poll are quick, and the lead is short: of four workers that need 70 us to come back, two share a launch
 * of 160 us each time, where with the lead that is configured they would come too late for it. */
START_TEST(a_short_lead_gathers_more)
{
    run = (struct device_run){.config = DEVICE, .fixed_us = 20, .until_us = 500000, .n_clients = 4};
    run.config.lead_ns = 100000;
    run.timer_late_us = 2;
    run.launch_us = 15;
    run.hear_us = 2;
    for (uint32_t i = 0; i < run.n_clients; i++)
        run.clients[i] = (struct device_client){.load_us = 70, .think_us = 70, .start_us = 3 * i};
    run.warm_us = 100000;
    device_run(&run);
    ck_assert_uint_ge(run.busy_us * 1000, run.ended_us * 985);
    uint64_t served = 0;
    for (uint32_t i = 0; i < run.n_clients; i++)
        served += run.clients[i].served_us;
    ck_assert_uint_ge(served * 100, (run.until_us - run.warm_us) * 84);
}
END_TEST

/* Four workers that are back 25 us after their answers, on a device on which a launch of one takes 79 us and one of two
 * 131: always two together, though now and then a launch needs much longer to get to the device than all others. One
 * that had to wait for its slot, or for the launch before it where there is one at a time, did not. */
START_TEST(a_hiccup_does_not_part_workers)
{
    static const uint64_t every_of[] = {0, 40, 150, 1000, 1};
    const uint64_t every = every_of[_i % 5];
    run = (struct device_run){.config = DEVICE, .fixed_us = 27, .until_us = 500000, .n_clients = 4};
    run.timer_late_us = 5;
    run.launch_us = 15;
    run.hear_us = 7;
    run.hiccup_us = 400;
    run.hiccup_every = every;
    run.hiccups = every == 1 ? 200 : 0; /* a bad beginning is forgotten */
    run.config.max_running = _i < 5 ? 2 : 1;
    for (uint32_t i = 0; i < run.n_clients; i++)
        run.clients[i] = (struct device_client){.load_us = 52, .think_us = 18, .start_us = 3 * i};
    device_run(&run);
    uint64_t answered = 0;
    for (uint32_t i = 0; i < run.n_clients; i++)
        answered += run.clients[i].answered;
    ck_assert_msg(answered * 100 >= run.launches * 185, "%llu jobs in %llu launches", (unsigned long long)answered,
                  (unsigned long long)run.launches);
}
END_TEST

/* Three times as much as the device can do. What is accepted waits for the backlog's bound and little more, what is
 * refused is told when to come, and those who heed it get all that the device can do. */
START_TEST(overload_bounds_what_is_accepted)
{
    bool heed = _i == 1;
    run = (struct device_run){.config = DEVICE, .fixed_us = 10, .until_us = 500000, .n_clients = 12};
    run.config.backlog_max_ns = 20000000;
    run.warm_us = 100000; /* the first came when few were there */
    for (uint32_t i = 0; i < 12; i++) {
        run.clients[i] = (struct device_client){.load_us = 100, .start_us = i};
        if (heed)
            run.clients[i].in_flight = 40;
        else
            run.clients[i].period_us = 400;
    }
    run.clients[11].period_us = heed ? 0 : 50; /* floods more than the others */
    device_run(&run);
    uint64_t served = 0, least = UINT64_MAX, most = 0;
    for (uint32_t i = 0; i < 12; i++) {
        ck_assert_uint_gt(run.clients[i].refused, 0);
        ck_assert_uint_le(run.clients[i].max_us, 20000 * 11 / 10 + 2 * LAUNCH_US);
        served += run.clients[i].served_us;
        least = run.clients[i].served_us < least ? run.clients[i].served_us : least;
        most = run.clients[i].served_us > most ? run.clients[i].served_us : most;
    }
    ck_assert_uint_ge(served * 100, (run.until_us - run.warm_us) * 95);
    ck_assert_msg(least * 10 >= most * 8, "from %llu to %llu us", (unsigned long long)least, (unsigned long long)most);
}
END_TEST

/* A client that keeps within its share is not refused because another floods the daemon. */
START_TEST(a_modest_client_is_not_refused)
{
    run = (struct device_run){.config = DEVICE, .fixed_us = 10, .until_us = 1000000, .n_clients = 2};
    run.config.backlog_max_ns = 20000000;
    run.clients[0] = (struct device_client){.load_us = 500, .period_us = 100};
    run.clients[1] = (struct device_client){.load_us = 50, .period_us = 500, .start_us = 1};
    device_run(&run);
    ck_assert_uint_gt(run.clients[0].refused, 1000);
    ck_assert_uint_eq(run.clients[1].refused, 0);
    ck_assert_uint_eq(run.clients[1].answered, 2000);
    ck_assert_uint_le(run.clients[1].p99_us, 2 * LAUNCH_US + 60);
}
END_TEST

/* Served by weight and priority when all have work all the time. */
START_TEST(shares_follow_weights)
{
    run = (struct device_run){.config = DEVICE, .fixed_us = 10, .until_us = 3000000, .n_clients = 4};
    static const struct {
        uint32_t weight, priority;
        uint64_t load_us;
    } kinds[] = {{1, 0, 300}, {2, 0, 900}, {1, 1, 150}, {5, 0, 40}}; /* 1 : 2 : 4 : 5 */
    for (int i = 0; i < 4; i++)
        run.clients[i] = (struct device_client){.load_us = kinds[i].load_us,
                                                .weight = kinds[i].weight,
                                                .priority = kinds[i].priority,
                                                .compat = (uint64_t)i % 2,
                                                .in_flight = 250,
                                                .start_us = (uint64_t)i};
    device_run(&run);
    uint64_t unit = run.clients[0].served_us, share[] = {1, 2, 4, 5};
    for (int i = 1; i < 4; i++)
        ck_assert_msg(run.clients[i].served_us * 100 >= unit * share[i] * 90 &&
                          run.clients[i].served_us * 100 <= unit * share[i] * 112,
                      "client %d: %llu us of %llu", i, (unsigned long long)run.clients[i].served_us,
                      (unsigned long long)unit);
}
END_TEST

/* Clients of any kind that come and go, urgent ones among them that alone could fill the device: each job is served
 * within what its flow's weight promises. The bound is that of self-clocked fair queueing: what its own flow has ahead
 * of it, and a part that went out of turn, at its share; a part of every other flow; and a launch each for forming and
 * running. */
START_TEST(nobody_starves)
{
    static const uint32_t of_priority[] = {1, 4, 16, 64};
    struct prng prng = {777 + (uint64_t)_i};
    run = (struct device_run){.config = DEVICE, .fixed_us = 5, .until_us = 400000, .n_clients = 24};
    run.config.batch_jobs_max = 1 + prng_below(&prng, 20);
    uint64_t weights = 0, part_us = 0;
    for (uint32_t i = 0; i < run.n_clients; i++) {
        uint64_t start = prng_below(&prng, 200000);
        run.clients[i] = (struct device_client){.load_us = 5 + prng_below(&prng, prng_below(&prng, 4) ? 200 : 1500),
                                                .parts = prng_below(&prng, 3) ? 1 : 1 + prng_below(&prng, 4),
                                                .priority = prng_below(&prng, 3) ? 0 : prng_below(&prng, 4),
                                                .weight = 1 + prng_below(&prng, 3),
                                                .compat = prng_below(&prng, 3),
                                                .in_flight = 1 + prng_below(&prng, 4),
                                                .think_us = prng_below(&prng, 2) ? 0 : prng_below(&prng, 3000),
                                                .start_us = start,
                                                .stop_us = start + 100000 + prng_below(&prng, 100000)};
        weights += run.clients[i].weight * of_priority[run.clients[i].priority];
        part_us += run.clients[i].load_us + run.fixed_us;
    }
    device_run(&run);
    for (uint32_t i = 0; i < run.n_clients; i++) {
        const struct device_client *c = &run.clients[i];
        uint64_t own_us = (c->load_us + run.fixed_us) * (c->parts * c->in_flight + 1);
        uint64_t share_us = own_us * weights / (c->weight * of_priority[c->priority]);
        uint64_t bound_us = share_us + part_us + 2 * (LAUNCH_US + run.fixed_us);
        ck_assert_uint_gt(c->answered, 0);
        ck_assert_msg(c->max_us <= bound_us, "client %u: %llu us, bound %llu", i, (unsigned long long)c->max_us,
                      (unsigned long long)bound_us);
    }
}
END_TEST

MLA_SUITE(sched_latency)
{
    TCase *tc = mla_tcase(suite, "latency");
    tcase_add_loop_test(tc, small_ones_beside_a_large_one, 0, 3);
    tcase_add_test(tc, workers_fill_the_device);
    tcase_add_loop_test(tc, the_lead_follows_what_launches_need, 0, 3);
    tcase_add_test(tc, a_short_lead_gathers_more);
    tcase_add_loop_test(tc, a_hiccup_does_not_part_workers, 0, 10);
    tcase_add_loop_test(tc, overload_bounds_what_is_accepted, 0, 2);
    tcase_add_test(tc, a_modest_client_is_not_refused);
    tcase_add_test(tc, shares_follow_weights);
    tcase_add_loop_test(tc, nobody_starves, 0, 20);
}
