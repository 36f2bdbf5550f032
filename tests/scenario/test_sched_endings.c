/* Objects that go while they are used (D3), drains (D15) and the end of the device (D16). */
#include "tests/scenario/story.h"
#include "tests/support/check_main.h"

START_TEST(unregister_of_an_unused_object)
{
    begin();
    submit("a1", .uses = "r1");
    done("A");
    unregister("r1");
    unregister("r1");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 DONE A -> REPLY a1 OK\n"
          "0 UNREGISTER r1 -> RELEASE r1\n"
          "0 UNREGISTER r1 -> nothing\n");
}
END_TEST

START_TEST(unregister_waits_for_the_last_job)
{
    begin();
    submit("a1", .uses = "r1 c1");
    submit("a2", .uses = "r1 c1 r1");
    submit("a3", .uses = "r1", .ready_word = true);
    unregister("r1");
    submit("a4", .uses = "r1");
    done("A");
    unregister("c1");
    cancel("a3");
    done("B");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT a2 -> STAGE B.1{a2}\n"
          "0 SUBMIT a3 -> WATCH a3\n"
          "0 UNREGISTER r1 -> nothing\n"
          "0 SUBMIT a4 -> REPLY a4 NOT_FOUND\n"
          "0 DONE A -> LAUNCH #2 B.1{a2}, REPLY a1 OK\n"
          "0 UNREGISTER c1 -> nothing\n"
          "0 CANCEL a3 -> UNWATCH a3, REPLY a3 CANCELLED\n"
          "0 DONE B -> REPLY a2 OK, RELEASE c1, RELEASE r1\n");
}
END_TEST

START_TEST(unregister_waits_for_other_objects)
{
    begin();
    pin("r1"); /* by a cache */
    submit("a1", .uses = "r1");
    unregister("r1");
    done("A");
    unpin("r1");
    pin("r2");
    unpin("r2");
    unregister("r2");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 UNREGISTER r1 -> nothing\n"
          "0 DONE A -> REPLY a1 OK\n"
          "0 unpin r1 -> RELEASE r1\n"
          "0 unpin r2 -> nothing\n"
          "0 UNREGISTER r2 -> RELEASE r2\n");
}
END_TEST

START_TEST(disconnect_while_a_batch_reads_the_region)
{
    begin();
    submit("a1", .uses = "r1");
    submit("b1", .uses = "r2");
    submit("a2", .uses = "r1");
    peer_gone("a");
    unregister("r1");
    at(50);
    done("A");
    done("B");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT b1 -> STAGE B.1{b1}\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 PEER_GONE a -> REPLY a2 DISCONNECTED (gone)\n"
          "0 UNREGISTER r1 -> nothing\n"
          "50 DONE A -> LAUNCH #2 B.1{b1}, REPLY a1 OK (gone), RELEASE r1\n"
          "50 DONE B -> REPLY b1 OK\n");
}
END_TEST

START_TEST(drain_of_an_idle_daemon)
{
    begin();
    drain(1000);
    submit("a1");
    timer();
    tells("0 DRAIN until 1000 -> EXIT OK\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 TIMER -> nothing\n");
}
END_TEST

START_TEST(drain_lets_all_work_end)
{
    begin();
    submit("a1", .uses = "r1");
    submit("a2");
    submit("a3");
    submit("b1", .ready_word = true);
    unregister("r1");
    at(10);
    drain(5000);
    submit("b2");
    at(20);
    ready("b1");
    done("A");
    done("B");
    at(30);
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT a2 -> STAGE B.1{a2}\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT b1 -> WATCH b1\n"
          "0 UNREGISTER r1 -> nothing\n"
          "10 DRAIN until 5000 -> SET_TIMER 5000\n"
          "10 SUBMIT b2 -> REPLY b2 DRAINING\n"
          "20 READY b1 -> nothing\n"
          "20 DONE A -> LAUNCH #2 B.1{a2}, REPLY a1 OK, RELEASE r1, STAGE A.2{a3 b1}\n"
          "20 DONE B -> LAUNCH #3 A.2{a3 b1}, REPLY a2 OK\n"
          "30 DONE A -> REPLY a3 OK, REPLY b1 OK, EXIT OK\n");
}
END_TEST

START_TEST(drain_does_not_wait_for_objects_of_clients_that_stay)
{
    begin();
    pin("r1");
    submit("a1", .uses = "r1");
    unregister("r1");
    drain(0);
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 UNREGISTER r1 -> nothing\n"
          "0 DRAIN -> nothing\n"
          "0 DONE A -> REPLY a1 OK, EXIT OK\n");
}
END_TEST

START_TEST(drain_at_its_deadline)
{
    begin();
    submit("a1", .uses = "r1");
    submit("a2", .uses = "r2");
    submit("a3");
    submit("b1", .ready_word = true);
    submit("b2", .timeout_us = 100);
    unregister("r1");
    unregister("r2");
    at(10);
    drain(500);
    at(100);
    timer();
    at(500);
    timer();
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT a2 -> STAGE B.1{a2}\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT b1 -> WATCH b1\n"
          "0 SUBMIT b2 -> SET_TIMER 100\n"
          "0 UNREGISTER r1 -> nothing\n"
          "0 UNREGISTER r2 -> nothing\n"
          "10 DRAIN until 500 -> nothing\n"
          "100 TIMER -> REPLY b2 TIMED_OUT, SET_TIMER 500\n"
          "500 TIMER -> REPLY a2 DRAINING, REPLY a3 DRAINING, UNWATCH b1, REPLY b1 DRAINING, RELEASE r2, "
          "EXIT TIMED_OUT\n"
          "500 DONE A -> nothing\n");
    ck_assert_int_eq(job_named("a1")->state, SCHED_RUNNING);
}
END_TEST

START_TEST(drain_deadline_may_be_changed)
{
    begin();
    submit("a1");
    drain(0);
    at(10);
    drain(50);
    at(20);
    drain(40);
    at(40);
    timer();
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 DRAIN -> nothing\n"
          "10 DRAIN until 50 -> SET_TIMER 50\n"
          "20 DRAIN until 40 -> SET_TIMER 40\n"
          "40 TIMER -> EXIT TIMED_OUT\n");
}
END_TEST

START_TEST(drain_deadline_that_has_passed_already)
{
    begin();
    at(100);
    submit("a1", .ready_word = true);
    drain(100);
    tells("100 SUBMIT a1 -> WATCH a1\n"
          "100 DRAIN until 100 -> UNWATCH a1, REPLY a1 DRAINING, EXIT TIMED_OUT\n");
}
END_TEST

START_TEST(fatal_during_a_drain)
{
    begin();
    submit("a1");
    drain(50);
    device_lost();
    at(50);
    timer();
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 DRAIN until 50 -> SET_TIMER 50\n"
          "0 FATAL -> REPLY a1 DEVICE_LOST, EXIT DEVICE_LOST\n"
          "50 TIMER -> nothing\n");
}
END_TEST

START_TEST(fatal_when_idle)
{
    begin();
    device_lost();
    device_lost();
    tells("0 FATAL -> EXIT DEVICE_LOST\n"
          "0 FATAL -> nothing\n");
}
END_TEST

MLA_SUITE(sched_endings)
{
    TCase *tc = mla_tcase(suite, "endings");
    tcase_add_test(tc, unregister_of_an_unused_object);
    tcase_add_test(tc, unregister_waits_for_the_last_job);
    tcase_add_test(tc, unregister_waits_for_other_objects);
    tcase_add_test(tc, disconnect_while_a_batch_reads_the_region);
    tcase_add_test(tc, drain_of_an_idle_daemon);
    tcase_add_test(tc, drain_lets_all_work_end);
    tcase_add_test(tc, drain_does_not_wait_for_objects_of_clients_that_stay);
    tcase_add_test(tc, drain_at_its_deadline);
    tcase_add_test(tc, drain_deadline_may_be_changed);
    tcase_add_test(tc, drain_deadline_that_has_passed_already);
    tcase_add_test(tc, fatal_during_a_drain);
    tcase_add_test(tc, fatal_when_idle);
}
