/* Who is next, how much a launch takes, when the next one is formed, and who is refused. */
#include "tests/scenario/story.h"
#include "tests/support/check_main.h"

/* Two launches in flight, none above 2 ms, the next one formed 75 us before the end. */
#define LIMITS .launch_max_ns = 2000000, .lead_ns = 75000
#define DEVICE .max_running = 2, LIMITS

START_TEST(an_idle_device_is_given_work_at_once)
{
    begin(DEVICE);
    at(10);
    submit("a1", .load_us = 500);
    at(600);
    done("A");
    at(700);
    submit("b1", .load_us = 500);
    tells("10 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "600 DONE A -> REPLY a1 OK\n"
          "700 SUBMIT b1 -> STAGE A.2{b1}, LAUNCH #2 A.2{b1}\n");
}
END_TEST

START_TEST(while_it_is_busy_jobs_gather)
{
    begin(DEVICE);
    submit("a1", .load_us = 1000);
    at(100);
    submit("b1", .load_us = 200);
    at(500);
    submit("c1", .load_us = 200);
    at(925);
    timer(); /* on the device before a1 ends */
    at(990);
    submit("d1", .load_us = 200);
    at(1000);
    done("A");
    at(1325);
    timer();
    at(1400);
    done("B");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "100 SUBMIT b1 -> SET_TIMER 925\n"
          "500 SUBMIT c1 -> nothing\n"
          "925 TIMER -> STAGE B.1{b1 c1}, LAUNCH #2 B.1{b1 c1}\n"
          "990 SUBMIT d1 -> nothing\n"
          "1000 DONE A -> REPLY a1 OK, SET_TIMER 1325\n"
          "1325 TIMER -> STAGE A.2{d1}, LAUNCH #3 A.2{d1}\n"
          "1400 DONE B -> REPLY b1 OK, REPLY c1 OK\n");
}
END_TEST

START_TEST(an_early_end_does_not_wait_for_the_timer)
{
    begin(DEVICE);
    submit("a1", .load_us = 1000);
    submit("b1", .load_us = 200);
    at(600);
    done("A");
    at(650);
    timer();
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT b1 -> SET_TIMER 925\n"
          "600 DONE A -> REPLY a1 OK, STAGE A.2{b1}, LAUNCH #2 A.2{b1}\n"
          "650 TIMER -> nothing\n");
}
END_TEST

/* Launches take twice what they were predicted to: the next prediction allows for it. */
START_TEST(predictions_are_corrected)
{
    begin(DEVICE);
    submit("a1", .load_us = 500);
    at(1000);
    done("A");
    submit("a2", .load_us = 500);
    submit("b1", .load_us = 700); /* 1,400 us */
    submit("c1", .load_us = 400); /* not within 2 ms beside it */
    at(2000);
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "1000 DONE A -> REPLY a1 OK\n"
          "1000 SUBMIT a2 -> STAGE A.2{a2}, LAUNCH #2 A.2{a2}\n"
          "1000 SUBMIT b1 -> SET_TIMER 1925\n"
          "1000 SUBMIT c1 -> nothing\n"
          "2000 DONE A -> REPLY a2 OK, STAGE A.3{c1}, LAUNCH #3 A.3{c1}\n");
}
END_TEST

START_TEST(an_idle_device_may_wait_for_company)
{
    begin(DEVICE, .gather_ns = 50000, .batch_jobs_max = 3);
    submit("a1", .load_us = 100);
    at(30);
    submit("b1", .load_us = 100);
    at(50);
    timer();
    at(250);
    done("A");
    at(300);
    submit("a2");
    submit("b2");
    submit("c2"); /* as many as a launch takes: what would be waited for? */
    tells("0 SUBMIT a1 -> SET_TIMER 50\n"
          "30 SUBMIT b1 -> nothing\n"
          "50 TIMER -> STAGE A.1{a1 b1}, LAUNCH #1 A.1{a1 b1}\n"
          "250 DONE A -> REPLY a1 OK, REPLY b1 OK\n"
          "300 SUBMIT a2 -> SET_TIMER 350\n"
          "300 SUBMIT b2 -> nothing\n"
          "300 SUBMIT c2 -> STAGE A.2{a2 b2 c2}, LAUNCH #2 A.2{a2 b2 c2}\n");
}
END_TEST

/* One client has brought much, another brings little: it does not wait for all of it. */
START_TEST(a_small_client_passes_a_large_backlog)
{
    begin(DEVICE);
    submit("a1", .load_us = 1500);
    submit("a2", .load_us = 1500);
    submit("a3", .load_us = 1500);
    submit("a4", .load_us = 1500);
    at(100);
    submit("b1", .load_us = 100);
    at(1425);
    timer();
    at(1500);
    done("A");
    at(1525);
    timer();
    at(1600);
    done("B");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT a2 -> SET_TIMER 1425\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT a4 -> nothing\n"
          "100 SUBMIT b1 -> nothing\n"
          "1425 TIMER -> STAGE B.1{b1 a2}, LAUNCH #2 B.1{b1 a2}\n"
          "1500 DONE A -> REPLY a1 OK, SET_TIMER 3025\n"
          "1525 TIMER -> SET_TIMER 3025\n"
          "1600 DONE B -> REPLY b1 OK, REPLY a2 OK, STAGE A.2{a3 a4}, LAUNCH #3 A.2{a3 a4}\n");
}
END_TEST

/* Clients with work have equal time, not equal numbers of jobs. */
START_TEST(time_is_shared_not_jobs)
{
    begin(LIMITS, .batch_jobs_max = 1);
    submit("a1", .load_us = 900);
    submit("a2", .load_us = 900);
    submit("a3", .load_us = 900);
    for (int i = 1; i <= 8; i++) {
        char name[4] = {'b', (char)('0' + i), 0};
        submit(name, .load_us = 300);
    }
    for (int i = 0; i < 10; i++) {
        at(900 * (uint64_t)(i + 1));
        done_next();
    }
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT a2 -> SET_TIMER 825\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT b2 -> nothing\n"
          "0 SUBMIT b3 -> nothing\n"
          "0 SUBMIT b4 -> nothing\n"
          "0 SUBMIT b5 -> nothing\n"
          "0 SUBMIT b6 -> nothing\n"
          "0 SUBMIT b7 -> nothing\n"
          "0 SUBMIT b8 -> nothing\n"
          "900 DONE A -> REPLY a1 OK, STAGE A.2{b1}, LAUNCH #2 A.2{b1}\n"
          "1800 DONE A -> REPLY b1 OK, STAGE A.3{b2}, LAUNCH #3 A.3{b2}\n"
          "2700 DONE A -> REPLY b2 OK, STAGE A.4{a2}, LAUNCH #4 A.4{a2}\n"
          "3600 DONE A -> REPLY a2 OK, STAGE A.5{b3}, LAUNCH #5 A.5{b3}\n"
          "4500 DONE A -> REPLY b3 OK, STAGE A.6{b4}, LAUNCH #6 A.6{b4}\n"
          "5400 DONE A -> REPLY b4 OK, STAGE A.7{b5}, LAUNCH #7 A.7{b5}\n"
          "6300 DONE A -> REPLY b5 OK, STAGE A.8{a3}, LAUNCH #8 A.8{a3}\n"
          "7200 DONE A -> REPLY a3 OK, STAGE A.9{b6}, LAUNCH #9 A.9{b6}\n"
          "8100 DONE A -> REPLY b6 OK, STAGE A.10{b7}, LAUNCH #10 A.10{b7}\n"
          "9000 DONE A -> REPLY b7 OK, STAGE A.11{b8}, LAUNCH #11 A.11{b8}\n");
}
END_TEST

START_TEST(weights_share_by_three_to_one)
{
    begin(LIMITS, .batch_jobs_max = 1);
    weight("a", 3);
    submit("x1", .load_us = 300);
    for (int i = 1; i <= 6; i++) {
        char name[4] = {'a', (char)('0' + i), 0};
        submit(name, .load_us = 300);
        name[0] = 'b';
        submit(name, .load_us = 300);
    }
    for (int i = 0; i < 9; i++) {
        at(300 * (uint64_t)(i + 1));
        done_next();
    }
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT a1 -> SET_TIMER 225\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 SUBMIT b2 -> nothing\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT b3 -> nothing\n"
          "0 SUBMIT a4 -> nothing\n"
          "0 SUBMIT b4 -> nothing\n"
          "0 SUBMIT a5 -> nothing\n"
          "0 SUBMIT b5 -> nothing\n"
          "0 SUBMIT a6 -> nothing\n"
          "0 SUBMIT b6 -> nothing\n"
          "300 DONE A -> REPLY x1 OK, STAGE A.2{a1}, LAUNCH #2 A.2{a1}\n"
          "600 DONE A -> REPLY a1 OK, STAGE A.3{a2}, LAUNCH #3 A.3{a2}\n"
          "900 DONE A -> REPLY a2 OK, STAGE A.4{b1}, LAUNCH #4 A.4{b1}\n"
          "1200 DONE A -> REPLY b1 OK, STAGE A.5{a3}, LAUNCH #5 A.5{a3}\n"
          "1500 DONE A -> REPLY a3 OK, STAGE A.6{a4}, LAUNCH #6 A.6{a4}\n"
          "1800 DONE A -> REPLY a4 OK, STAGE A.7{a5}, LAUNCH #7 A.7{a5}\n"
          "2100 DONE A -> REPLY a5 OK, STAGE A.8{b2}, LAUNCH #8 A.8{b2}\n"
          "2400 DONE A -> REPLY b2 OK, STAGE A.9{a6}, LAUNCH #9 A.9{a6}\n"
          "2700 DONE A -> REPLY a6 OK, STAGE A.10{b3}, LAUNCH #10 A.10{b3}\n");
}
END_TEST

/* The urgent one is next, and those behind it are not forgotten. */
/* Client b is made as heavy as four while jobs of both wait: it has four launches for each of a, and a goes first of
 * those that are due at the same time. */
START_TEST(a_weight_that_changes_counts_at_once)
{
    begin(LIMITS, .batch_jobs_max = 1);
    submit("x1", .load_us = 300);
    submit("a1", .load_us = 300);
    submit("a2", .load_us = 300);
    submit("a3", .load_us = 300);
    for (int i = 1; i <= 8; i++) {
        char name[4] = {'b', (char)('0' + i), 0};
        submit(name, .load_us = 300);
    }
    weight("b", 4);
    for (uint64_t i = 1; i <= 10; i++) {
        at(300 * i);
        done_next();
    }
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT a1 -> SET_TIMER 225\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT b2 -> nothing\n"
          "0 SUBMIT b3 -> nothing\n"
          "0 SUBMIT b4 -> nothing\n"
          "0 SUBMIT b5 -> nothing\n"
          "0 SUBMIT b6 -> nothing\n"
          "0 SUBMIT b7 -> nothing\n"
          "0 SUBMIT b8 -> nothing\n"
          "300 DONE A -> REPLY x1 OK, STAGE A.2{b1}, LAUNCH #2 A.2{b1}\n"
          "600 DONE A -> REPLY b1 OK, STAGE A.3{b2}, LAUNCH #3 A.3{b2}\n"
          "900 DONE A -> REPLY b2 OK, STAGE A.4{b3}, LAUNCH #4 A.4{b3}\n"
          "1200 DONE A -> REPLY b3 OK, STAGE A.5{a1}, LAUNCH #5 A.5{a1}\n"
          "1500 DONE A -> REPLY a1 OK, STAGE A.6{b4}, LAUNCH #6 A.6{b4}\n"
          "1800 DONE A -> REPLY b4 OK, STAGE A.7{b5}, LAUNCH #7 A.7{b5}\n"
          "2100 DONE A -> REPLY b5 OK, STAGE A.8{b6}, LAUNCH #8 A.8{b6}\n"
          "2400 DONE A -> REPLY b6 OK, STAGE A.9{b7}, LAUNCH #9 A.9{b7}\n"
          "2700 DONE A -> REPLY b7 OK, STAGE A.10{a2}, LAUNCH #10 A.10{a2}\n"
          "3000 DONE A -> REPLY a2 OK, STAGE A.11{b8}, LAUNCH #11 A.11{b8}\n");
}
END_TEST

/* The longest that may wait is 4 ms, and a weighs three times as much as b: it may have 3 of them, b one. So what a
 * brings last and what b brings last would wait for the same 4 ms. Then b is the heavier one. */
START_TEST(shares_of_the_backlog_are_by_weight)
{
    begin(DEVICE, .backlog_max_ns = 4000000, .retry_after_us = 100);
    weight("a", 3);
    submit("x1", .load_us = 1000); /* runs */
    submit("b1", .load_us = 600);
    submit("a1", .load_us = 1000);
    submit("a2", .load_us = 1000);
    submit("a3", .load_us = 1000);
    submit("a4", .load_us = 300); /* 3.3 ms: 0.3 too many, of which 3 in 4 of the device get rid in 0.4 ms */
    submit("b2", .load_us = 400);
    submit("b3", .load_us = 300); /* 0.3 too many, at 1 in 4 */
    weight("b", 9);
    submit("b4", .load_us = 1000);
    submit("b5", .load_us = 1000);
    submit("b6", .load_us = 1000); /* 4 ms of 3 */
    submit("a5", .load_us = 100);
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT b1 -> SET_TIMER 925\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT a4 -> REPLY a4 OVERLOADED retry after 400\n"
          "0 SUBMIT b2 -> nothing\n"
          "0 SUBMIT b3 -> REPLY b3 OVERLOADED retry after 1200\n"
          "0 SUBMIT b4 -> nothing\n"
          "0 SUBMIT b5 -> nothing\n"
          "0 SUBMIT b6 -> REPLY b6 OVERLOADED retry after 1333\n"
          "0 SUBMIT a5 -> REPLY a5 OVERLOADED retry after 8400\n");
}
END_TEST

START_TEST(urgent_jobs_come_first)
{
    begin(LIMITS, .batch_jobs_max = 1);
    submit("a1", .load_us = 500);
    submit("a2", .load_us = 500);
    submit("b1", .load_us = 500);
    submit("c1", .load_us = 500, .priority = 3);
    submit("c2", .load_us = 500, .priority = 3);
    submit("b2", .load_us = 500, .priority = 1);
    for (int i = 0; i < 6; i++) {
        at(500 * (uint64_t)(i + 1));
        done_next();
    }
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT a2 -> SET_TIMER 425\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT c1 -> nothing\n"
          "0 SUBMIT c2 -> nothing\n"
          "0 SUBMIT b2 -> nothing\n"
          "500 DONE A -> REPLY a1 OK, STAGE A.2{c1}, LAUNCH #2 A.2{c1}\n"
          "1000 DONE A -> REPLY c1 OK, STAGE A.3{c2}, LAUNCH #3 A.3{c2}\n"
          "1500 DONE A -> REPLY c2 OK, STAGE A.4{b2}, LAUNCH #4 A.4{b2}\n"
          "2000 DONE A -> REPLY b2 OK, STAGE A.5{a2}, LAUNCH #5 A.5{a2}\n"
          "2500 DONE A -> REPLY a2 OK, STAGE A.6{b1}, LAUNCH #6 A.6{b1}\n"
          "3000 DONE A -> REPLY b1 OK\n");
}
END_TEST

/* A decode that takes 6 ms is four launches of 1.5 ms; b1 comes with the second. */
START_TEST(a_long_job_is_cut_and_answered_once)
{
    begin(DEVICE);
    submit("a1", .load_us = 1500, .parts = 4);
    at(200);
    submit("b1", .load_us = 100);
    at(1425);
    timer();
    at(1500);
    done("A");
    at(2950);
    done("B");
    at(3000);
    done("A");
    at(6000);
    done("B");
    at(7500);
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1/1}, LAUNCH #1 A.1{a1/1}, SET_TIMER 1425\n"
          "200 SUBMIT b1 -> nothing\n"
          "1425 TIMER -> STAGE B.1{b1 a1/2}, LAUNCH #2 B.1{b1 a1/2}\n"
          "1500 DONE A -> SET_TIMER 3025\n"
          "2950 DONE B -> REPLY b1 OK, STAGE A.2{a1/3}, LAUNCH #3 A.2{a1/3}\n"
          "3000 DONE A -> STAGE A.3{a1/4}, LAUNCH #4 A.3{a1/4}\n"
          "6000 DONE B -> nothing\n"
          "7500 DONE A -> REPLY a1 OK\n");
    ck_assert_uint_eq(job_named("a1")->parts_launched, 4);
    ck_assert_uint_eq(job_named("a1")->ended_ns, 7500000);
}
END_TEST

START_TEST(a_cut_job_is_stopped_between_its_parts)
{
    begin(LIMITS);
    submit("a1", .load_us = 1000, .parts = 4);
    at(950);
    timer(); /* a1/2 is staged */
    cancel("a1");
    at(1000);
    done("A");
    at(2000);
    submit("b1", .load_us = 1000, .parts = 2, .timeout_us = 500);
    at(2500);
    timer();
    at(3000);
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1/1}, LAUNCH #1 A.1{a1/1}, SET_TIMER 925\n"
          "950 TIMER -> STAGE B.1{a1/2}\n"
          "950 CANCEL a1 -> nothing\n"
          "1000 DONE A -> REPLY a1 CANCELLED\n"
          "2000 SUBMIT b1 -> STAGE A.2{b1/1}, LAUNCH #2 A.2{b1/1}, SET_TIMER 2500\n"
          "2500 TIMER -> nothing\n"
          "3000 DONE A -> REPLY b1 TIMED_OUT\n");
}
END_TEST

/* With all of it on the device a deadline is past help, as with any job. */
START_TEST(the_last_part_may_end_late)
{
    begin(DEVICE);
    submit("a1", .load_us = 1000, .parts = 2, .timeout_us = 1500);
    at(925);
    timer();
    at(1500);
    timer();
    done("A");
    at(2000);
    done("B");
    tells("0 SUBMIT a1 -> STAGE A.1{a1/1}, LAUNCH #1 A.1{a1/1}, SET_TIMER 925\n"
          "925 TIMER -> STAGE B.1{a1/2}, LAUNCH #2 B.1{a1/2}, SET_TIMER 1500\n"
          "1500 TIMER -> nothing\n"
          "1500 DONE A -> nothing\n"
          "2000 DONE B -> REPLY a1 LATE\n");
}
END_TEST

START_TEST(a_launch_fails_in_the_middle_of_a_job)
{
    begin(DEVICE);
    submit("a1", .load_us = 1000, .parts = 3);
    at(925);
    timer();
    at(1000);
    failed("A", MLA_INTERNAL);
    at(2000);
    done("B");
    submit("b1", .load_us = 1000, .parts = 3);
    at(2925);
    timer();
    device_lost();
    tells("0 SUBMIT a1 -> STAGE A.1{a1/1}, LAUNCH #1 A.1{a1/1}, SET_TIMER 925\n"
          "925 TIMER -> STAGE B.1{a1/2}, LAUNCH #2 B.1{a1/2}\n"
          "1000 DONE A INTERNAL -> nothing\n"
          "2000 DONE B -> REPLY a1 INTERNAL\n"
          "2000 SUBMIT b1 -> STAGE A.2{b1/1}, LAUNCH #3 A.2{b1/1}, SET_TIMER 2925\n"
          "2925 TIMER -> STAGE B.2{b1/2}, LAUNCH #4 B.2{b1/2}\n"
          "2925 FATAL -> REPLY b1 DEVICE_LOST, EXIT DEVICE_LOST\n");
}
END_TEST

START_TEST(a_peer_goes_between_the_parts)
{
    begin(LIMITS);
    submit("a1", .load_us = 1000, .parts = 3, .uses = "cache");
    at(950);
    timer();
    peer_gone("a");
    unregister("cache");
    at(1000);
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1/1}, LAUNCH #1 A.1{a1/1}, SET_TIMER 925\n"
          "950 TIMER -> STAGE B.1{a1/2}\n"
          "950 PEER_GONE a -> nothing\n"
          "950 UNREGISTER cache -> nothing\n"
          "1000 DONE A -> REPLY a1 DISCONNECTED (gone), RELEASE cache\n");
}
END_TEST

/* Kinds that cannot share a launch take turns by time. */
START_TEST(kinds_alternate)
{
    begin(DEVICE);
    submit("x1", .load_us = 900);
    for (int i = 1; i <= 3; i++) {
        char name[4] = {'a', (char)('0' + i), 0};
        submit(name, .load_us = 900, .compat = 96);
        name[0] = 'b';
        submit(name, .load_us = 900, .compat = 12);
    }
    for (int i = 0; i < 4; i++) {
        at(900 * (uint64_t)(i + 1));
        done_next();
    }
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT a1 -> SET_TIMER 825\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 SUBMIT b2 -> nothing\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT b3 -> nothing\n"
          "900 DONE A -> REPLY x1 OK, STAGE A.2{a1 a2}, LAUNCH #2 A.2{a1 a2}\n"
          "1800 DONE A -> REPLY a1 OK, REPLY a2 OK, STAGE A.3{b1 b2 b3}, LAUNCH #3 A.3{b1 b2 b3}\n"
          "2700 DONE A -> REPLY b1 OK, REPLY b2 OK, REPLY b3 OK, STAGE A.4{a3}, LAUNCH #4 A.4{a3}\n"
          "3600 DONE A -> REPLY a3 OK\n");
}
END_TEST

/* 3 ms may wait. Client a has all of them, then more than its share, so a is refused; b, within its own, is not. */
START_TEST(who_floods_is_refused)
{
    begin(DEVICE, .backlog_max_ns = 3000000, .retry_after_us = 100);
    submit("a1", .load_us = 1000); /* runs */
    submit("a2", .load_us = 1000);
    submit("a3", .load_us = 1000);
    submit("a4", .load_us = 1000);
    submit("a5", .load_us = 1000); /* a fourth millisecond */
    submit("b1", .load_us = 1000);
    submit("b2", .load_us = 1000); /* 2 ms, more than its share, as two have a backlog now */
    submit("b3", .load_us = 400);
    at(925);
    timer();
    submit("a6", .load_us = 1000);
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT a2 -> SET_TIMER 925\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT a4 -> nothing\n"
          "0 SUBMIT a5 -> REPLY a5 OVERLOADED retry after 1000\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT b2 -> REPLY b2 OVERLOADED retry after 1000\n"
          "0 SUBMIT b3 -> nothing\n"
          "925 TIMER -> STAGE B.1{a2 b1}, LAUNCH #2 B.1{a2 b1}\n"
          "925 SUBMIT a6 -> REPLY a6 OVERLOADED retry after 3000\n");
}
END_TEST

MLA_SUITE(sched_fairness)
{
    TCase *tc = mla_tcase(suite, "fairness");
    tcase_add_test(tc, an_idle_device_is_given_work_at_once);
    tcase_add_test(tc, while_it_is_busy_jobs_gather);
    tcase_add_test(tc, an_early_end_does_not_wait_for_the_timer);
    tcase_add_test(tc, predictions_are_corrected);
    tcase_add_test(tc, an_idle_device_may_wait_for_company);
    tcase_add_test(tc, a_small_client_passes_a_large_backlog);
    tcase_add_test(tc, time_is_shared_not_jobs);
    tcase_add_test(tc, weights_share_by_three_to_one);
    tcase_add_test(tc, a_weight_that_changes_counts_at_once);
    tcase_add_test(tc, shares_of_the_backlog_are_by_weight);
    tcase_add_test(tc, urgent_jobs_come_first);
    tcase_add_test(tc, a_long_job_is_cut_and_answered_once);
    tcase_add_test(tc, a_cut_job_is_stopped_between_its_parts);
    tcase_add_test(tc, the_last_part_may_end_late);
    tcase_add_test(tc, a_launch_fails_in_the_middle_of_a_job);
    tcase_add_test(tc, a_peer_goes_between_the_parts);
    tcase_add_test(tc, kinds_alternate);
    tcase_add_test(tc, who_floods_is_refused);
}
