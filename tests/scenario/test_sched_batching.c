/* The first policy: oldest first, compatible jobs of all clients together, within limits. */
#include "tests/scenario/story.h"
#include "tests/support/check_main.h"

#include <stdio.h>

START_TEST(jobs_of_all_clients_share_a_launch)
{
    begin();
    submit("a1");
    submit("b1");
    submit("c1");
    submit("a2");
    submit("b2");
    at(100);
    done("A");
    at(120);
    done("B");
    at(200);
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT b1 -> STAGE B.1{b1}\n"
          "0 SUBMIT c1 -> nothing\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 SUBMIT b2 -> nothing\n"
          "100 DONE A -> LAUNCH #2 B.1{b1}, REPLY a1 OK, STAGE A.2{c1 a2 b2}\n"
          "120 DONE B -> LAUNCH #3 A.2{c1 a2 b2}, REPLY b1 OK\n"
          "200 DONE A -> REPLY c1 OK, REPLY a2 OK, REPLY b2 OK\n");
    ck_assert_uint_eq(job_named("c1")->batch_jobs, 3);
    ck_assert_uint_eq(job_named("c1")->batch_number, 3);
}
END_TEST

START_TEST(each_kind_in_batches_of_its_own)
{
    begin();
    submit("a1", .compat = 96);
    submit("b1", .compat = 96);
    submit("a2", .compat = 96);
    submit("c1", .compat = 12);
    submit("b2", .compat = 96);
    submit("c2", .compat = 12);
    submit("a3", .compat = 96);
    done("A"); /* b1 runs; a2 is the oldest: 96 */
    submit("a4", .compat = 96);
    done("B"); /* c1 is the oldest now */
    done("A");
    done("B");
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT b1 -> STAGE B.1{b1}\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 SUBMIT c1 -> nothing\n"
          "0 SUBMIT b2 -> nothing\n"
          "0 SUBMIT c2 -> nothing\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{b1}, REPLY a1 OK, STAGE A.2{a2 b2 a3}\n"
          "0 SUBMIT a4 -> nothing\n"
          "0 DONE B -> LAUNCH #3 A.2{a2 b2 a3}, REPLY b1 OK, STAGE B.2{c1 c2}\n"
          "0 DONE A -> LAUNCH #4 B.2{c1 c2}, REPLY a2 OK, REPLY b2 OK, REPLY a3 OK, STAGE A.3{a4}\n"
          "0 DONE B -> LAUNCH #5 A.3{a4}, REPLY c1 OK, REPLY c2 OK\n"
          "0 DONE A -> REPLY a4 OK\n");
}
END_TEST

START_TEST(a_stream_of_one_kind_does_not_starve_another)
{
    begin(.batch_jobs_max = 2);
    submit("a1", .compat = 1);
    submit("a2", .compat = 1);
    submit("a3", .compat = 1);
    submit("b1", .compat = 2);
    submit("a4", .compat = 1);
    submit("a5", .compat = 1);
    submit("a6", .compat = 1);
    done("A");
    submit("a7", .compat = 1);
    done("B");
    submit("a8", .compat = 1);
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT a2 -> STAGE B.1{a2}\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT a4 -> nothing\n"
          "0 SUBMIT a5 -> nothing\n"
          "0 SUBMIT a6 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{a2}, REPLY a1 OK, STAGE A.2{a3 a4}\n"
          "0 SUBMIT a7 -> nothing\n"
          "0 DONE B -> LAUNCH #3 A.2{a3 a4}, REPLY a2 OK, STAGE B.2{b1}\n"
          "0 SUBMIT a8 -> nothing\n"
          "0 DONE A -> LAUNCH #4 B.2{b1}, REPLY a3 OK, REPLY a4 OK, STAGE A.3{a5 a6}\n");
}
END_TEST

START_TEST(limits_close_a_batch)
{
    begin(.batch_jobs_max = 3, .batch_seqs_max = 10, .batch_cost_max = 100);
    submit("x1");
    submit("x2");
    submit("a1", .seqs = 4);
    submit("a2", .seqs = 6);
    submit("a3", .seqs = 1); /* an eleventh sequence */
    submit("a4", .seqs = 1, .cost = 60);
    submit("a5", .seqs = 1, .cost = 40);
    submit("a6", .seqs = 1, .cost = 100); /* a fourth job */
    submit("a7", .seqs = 1, .cost = 1);   /* over the cost; a8 may not overtake it */
    submit("a8", .seqs = 1, .cost = 0);
    submit("a9", .seqs = 1);
    done("A");
    done("B");
    done("A");
    done("B");
    done("A");
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT x2 -> STAGE B.1{x2}\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT a4 -> nothing\n"
          "0 SUBMIT a5 -> nothing\n"
          "0 SUBMIT a6 -> nothing\n"
          "0 SUBMIT a7 -> nothing\n"
          "0 SUBMIT a8 -> nothing\n"
          "0 SUBMIT a9 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{x2}, REPLY x1 OK, STAGE A.2{a1 a2}\n"
          "0 DONE B -> LAUNCH #3 A.2{a1 a2}, REPLY x2 OK, STAGE B.2{a3 a4 a5}\n"
          "0 DONE A -> LAUNCH #4 B.2{a3 a4 a5}, REPLY a1 OK, REPLY a2 OK, STAGE A.3{a6}\n"
          "0 DONE B -> LAUNCH #5 A.3{a6}, REPLY a3 OK, REPLY a4 OK, REPLY a5 OK, STAGE B.3{a7 a8 a9}\n"
          "0 DONE A -> LAUNCH #6 B.3{a7 a8 a9}, REPLY a6 OK\n");
}
END_TEST

START_TEST(what_exceeds_a_limit_runs_alone)
{
    begin(.batch_seqs_max = 10, .batch_cost_max = 100);
    submit("x1");
    submit("x2");
    submit("a1");
    submit("a2", .seqs = 11);
    submit("a3");
    submit("a4", .cost = UINT64_MAX);
    submit("a5", .cost = UINT64_MAX);
    submit("a6");
    done("A");
    done("B");
    done("A");
    done("B");
    done("A");
    done("B");
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT x2 -> STAGE B.1{x2}\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT a4 -> nothing\n"
          "0 SUBMIT a5 -> nothing\n"
          "0 SUBMIT a6 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{x2}, REPLY x1 OK, STAGE A.2{a1}\n"
          "0 DONE B -> LAUNCH #3 A.2{a1}, REPLY x2 OK, STAGE B.2{a2}\n"
          "0 DONE A -> LAUNCH #4 B.2{a2}, REPLY a1 OK, STAGE A.3{a3}\n"
          "0 DONE B -> LAUNCH #5 A.3{a3}, REPLY a2 OK, STAGE B.3{a4}\n"
          "0 DONE A -> LAUNCH #6 B.3{a4}, REPLY a3 OK, STAGE A.4{a5}\n"
          "0 DONE B -> LAUNCH #7 A.4{a5}, REPLY a4 OK, STAGE B.4{a6}\n");
}
END_TEST

START_TEST(two_launches_at_a_time)
{
    begin(.max_running = 2);
    submit("a1");
    submit("a2");
    submit("a3");
    submit("a4");
    at(10);
    done("B"); /* the second ends first */
    at(20);
    done("B");
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT a2 -> STAGE B.1{a2}, LAUNCH #2 B.1{a2}\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT a4 -> nothing\n"
          "10 DONE B -> REPLY a2 OK, STAGE B.2{a3 a4}, LAUNCH #3 B.2{a3 a4}\n"
          "20 DONE B -> REPLY a3 OK, REPLY a4 OK\n"
          "20 DONE A -> REPLY a1 OK\n");
}
END_TEST

START_TEST(overload_ends_when_one_is_answered)
{
    begin(.max_in_flight = 3, .retry_after_us = 250);
    submit("a1");
    submit("a2");
    submit("a3", .ready_word = true);
    submit("b1");
    done("A");
    submit("b2");
    submit("b3");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT a2 -> STAGE B.1{a2}\n"
          "0 SUBMIT a3 -> WATCH a3\n"
          "0 SUBMIT b1 -> REPLY b1 OVERLOADED retry after 250\n"
          "0 DONE A -> LAUNCH #2 B.1{a2}, REPLY a1 OK\n"
          "0 SUBMIT b2 -> STAGE A.2{b2}\n"
          "0 SUBMIT b3 -> REPLY b3 OVERLOADED retry after 250\n");
}
END_TEST

START_TEST(queue_order_is_the_order_of_becoming_ready)
{
    begin();
    submit("x1");
    submit("x2");
    submit("a1", .ready_word = true);
    submit("b1", .ready_word = true);
    submit("c1");
    ready("b1");
    ready("a1");
    done("A");
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT x2 -> STAGE B.1{x2}\n"
          "0 SUBMIT a1 -> WATCH a1\n"
          "0 SUBMIT b1 -> WATCH b1\n"
          "0 SUBMIT c1 -> nothing\n"
          "0 READY b1 -> nothing\n"
          "0 READY a1 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{x2}, REPLY x1 OK, STAGE A.2{c1 b1 a1}\n");
}
END_TEST

START_TEST(the_timer_moves_only_for_an_earlier_deadline)
{
    begin();
    submit("a1", .timeout_us = 1000);
    at(10);
    submit("a2", .timeout_us = 1000);
    at(20);
    submit("a3", .timeout_us = 500);
    at(30);
    done("A");
    at(40);
    done("B");
    at(50);
    done("A");
    at(520);
    timer(); /* nothing is due, nothing left */
    submit("a4", .timeout_us = 1000);
    at(600);
    timer(); /* went off early: armed anew */
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}, SET_TIMER 1000\n"
          "10 SUBMIT a2 -> STAGE B.1{a2}\n"
          "20 SUBMIT a3 -> SET_TIMER 520\n"
          "30 DONE A -> LAUNCH #2 B.1{a2}, REPLY a1 OK, STAGE A.2{a3}\n"
          "40 DONE B -> LAUNCH #3 A.2{a3}, REPLY a2 OK\n"
          "50 DONE A -> REPLY a3 OK\n"
          "520 TIMER -> nothing\n"
          "520 SUBMIT a4 -> STAGE A.3{a4}, LAUNCH #4 A.3{a4}, SET_TIMER 1520\n"
          "600 TIMER -> SET_TIMER 1520\n");
}
END_TEST

START_TEST(one_event_answers_any_number_of_jobs)
{
    begin(.max_in_flight = 5000);
    for (int i = 0; i < 3000; i++) {
        char name[16];
        snprintf(name, sizeof(name), "a%d", i);
        submit(name, .ready_word = true, .timeout_us = 100);
    }
    ck_assert_uint_eq(peer_named("a")->in_flight, 3000);
    at(100);
    timer();
    ck_assert_uint_eq(peer_named("a")->in_flight, 0);
    ck_assert_int_eq(job_named("a0")->code, MLA_TIMED_OUT);
    ck_assert_int_eq(job_named("a2999")->code, MLA_TIMED_OUT);
}
END_TEST

MLA_SUITE(sched_batching)
{
    TCase *tc = mla_tcase(suite, "first policy");
    tcase_add_test(tc, jobs_of_all_clients_share_a_launch);
    tcase_add_test(tc, each_kind_in_batches_of_its_own);
    tcase_add_test(tc, a_stream_of_one_kind_does_not_starve_another);
    tcase_add_test(tc, limits_close_a_batch);
    tcase_add_test(tc, what_exceeds_a_limit_runs_alone);
    tcase_add_test(tc, two_launches_at_a_time);
    tcase_add_test(tc, overload_ends_when_one_is_answered);
    tcase_add_test(tc, queue_order_is_the_order_of_becoming_ready);
    tcase_add_test(tc, the_timer_moves_only_for_an_earlier_deadline);
    tcase_add_test(tc, one_event_answers_any_number_of_jobs);
}
