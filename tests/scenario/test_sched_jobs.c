/* One story for each cell of the state table in sched.h. */
#include "tests/scenario/story.h"
#include "tests/support/check_main.h"

START_TEST(received_an_idle_device_is_used_at_once)
{
    begin();
    submit("a1");
    at(3);
    submitted("A");
    at(40);
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "3 SUBMITTED A -> nothing\n"
          "40 DONE A -> REPLY a1 OK\n");
    const struct sched_job *job = job_named("a1");
    ck_assert_uint_eq(job->received_ns, 0);
    ck_assert_uint_eq(job->ended_ns, 40000);
    ck_assert_uint_eq(job->batch_number, 1);
    ck_assert_uint_eq(job->batch_jobs, 1);
}
END_TEST

START_TEST(received_refusals_in_their_order)
{
    begin(.max_in_flight = 2, .retry_after_us = 700);
    submit("a1", .uses = "r1");
    submit("a2", .refused = MLA_OUT_OF_BOUNDS);
    unregister("r1");
    submit("a3", .uses = "r2 r1");
    submit("a4", .timeout_us = 5);
    submit("a5");
    submit("a6", .uses = "r1");
    submit("a7", .refused = MLA_QUOTA, .uses = "r1");
    peer_gone("b");
    submit("b1", .refused = MLA_QUOTA);
    drain(0);
    submit("a8", .uses = "r1");
    device_lost();
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT a2 -> REPLY a2 OUT_OF_BOUNDS\n"
          "0 UNREGISTER r1 -> nothing\n"
          "0 SUBMIT a3 -> REPLY a3 NOT_FOUND\n"
          "0 SUBMIT a4 -> STAGE B.1{a4}, SET_TIMER 5\n"
          "0 SUBMIT a5 -> REPLY a5 OVERLOADED retry after 700\n"
          "0 SUBMIT a6 -> REPLY a6 NOT_FOUND\n"
          "0 SUBMIT a7 -> REPLY a7 QUOTA\n"
          "0 PEER_GONE b -> nothing\n"
          "0 SUBMIT b1 -> REPLY b1 DISCONNECTED (gone)\n"
          "0 DRAIN -> nothing\n"
          "0 SUBMIT a8 -> REPLY a8 DRAINING\n"
          "0 FATAL -> REPLY a1 DEVICE_LOST, REPLY a4 DEVICE_LOST, RELEASE r1, EXIT DEVICE_LOST\n");
    ck_assert_uint_eq(peer_named("a")->in_flight, 0);
    ck_assert_uint_eq(peer_named("b")->in_flight, 0);
}
END_TEST

START_TEST(received_past_its_deadline)
{
    begin();
    at(30);
    submit("a1", .overdue = true, .uses = "r1");
    submit("a2", .overdue = true, .ready_word = true);
    submit("a3");
    tells("30 SUBMIT a1 -> REPLY a1 TIMED_OUT\n"
          "30 SUBMIT a2 -> REPLY a2 TIMED_OUT\n"
          "30 SUBMIT a3 -> STAGE A.1{a3}, LAUNCH #1 A.1{a3}\n");
}
END_TEST

START_TEST(waiting_ready)
{
    begin();
    submit("a1", .ready_word = true);
    at(100);
    ready("a1");
    at(101);
    ready("a1");
    at(130);
    done("A");
    ready("a1");
    cancel("a1");
    tells("0 SUBMIT a1 -> WATCH a1\n"
          "100 READY a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "101 READY a1 -> nothing\n"
          "130 DONE A -> REPLY a1 OK\n"
          "130 READY a1 -> nothing\n"
          "130 CANCEL a1 -> nothing\n");
    ck_assert_uint_eq(job_named("a1")->received_ns, 0);
    ck_assert_uint_eq(job_named("a1")->ready_ns, 100000);
    ck_assert_uint_eq(job_named("a1")->launched_ns, 100000);
}
END_TEST

START_TEST(waiting_ready_aborted)
{
    begin();
    submit("a1", .ready_word = true, .uses = "r1");
    unregister("r1");
    at(100);
    ready_aborted("a1");
    tells("0 SUBMIT a1 -> WATCH a1\n"
          "0 UNREGISTER r1 -> nothing\n"
          "100 READY a1 aborted -> REPLY a1 READY_ABORTED, RELEASE r1\n");
}
END_TEST

/* D14: the word never comes; others are not held up. */
START_TEST(waiting_timer)
{
    begin();
    submit("a1", .ready_word = true, .timeout_us = 1000);
    at(10);
    submit("b1");
    at(50);
    done("A");
    at(1000);
    timer();
    tells("0 SUBMIT a1 -> WATCH a1, SET_TIMER 1000\n"
          "10 SUBMIT b1 -> STAGE A.1{b1}, LAUNCH #1 A.1{b1}\n"
          "50 DONE A -> REPLY b1 OK\n"
          "1000 TIMER -> UNWATCH a1, REPLY a1 TIMED_OUT\n");
    ck_assert_uint_eq(job_named("a1")->launched_ns, 0);
}
END_TEST

START_TEST(waiting_cancel)
{
    begin();
    submit("a1", .ready_word = true);
    submit("a2", .ready_word = true);
    cancel("a1");
    cancel("a1");
    ready("a2");
    tells("0 SUBMIT a1 -> WATCH a1\n"
          "0 SUBMIT a2 -> WATCH a2\n"
          "0 CANCEL a1 -> UNWATCH a1, REPLY a1 CANCELLED\n"
          "0 CANCEL a1 -> nothing\n"
          "0 READY a2 -> STAGE A.1{a2}, LAUNCH #1 A.1{a2}\n");
}
END_TEST

START_TEST(waiting_peer_gone)
{
    begin();
    submit("a1", .ready_word = true);
    submit("b1", .ready_word = true);
    submit("a2", .ready_word = true);
    peer_gone("a");
    tells("0 SUBMIT a1 -> WATCH a1\n"
          "0 SUBMIT b1 -> WATCH b1\n"
          "0 SUBMIT a2 -> WATCH a2\n"
          "0 PEER_GONE a -> UNWATCH a1, REPLY a1 DISCONNECTED (gone), UNWATCH a2, "
          "REPLY a2 DISCONNECTED (gone)\n");
    ck_assert_uint_eq(peer_named("a")->in_flight, 0);
    ck_assert_uint_eq(peer_named("b")->in_flight, 1);
}
END_TEST

START_TEST(waiting_fatal)
{
    begin();
    submit("a1", .ready_word = true);
    device_lost();
    tells("0 SUBMIT a1 -> WATCH a1\n"
          "0 FATAL -> UNWATCH a1, REPLY a1 DEVICE_LOST, EXIT DEVICE_LOST\n");
}
END_TEST

/* One runs (x1), one is staged behind it (x2); what comes after is QUEUED. */
static void busy(void)
{
    begin();
    submit("x1");
    submit("x2");
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT x2 -> STAGE B.1{x2}\n");
}

START_TEST(queued_batch_formed)
{
    busy();
    submit("a1");
    submit("b1");
    at(10);
    done("A");
    at(20);
    done("B");
    at(30);
    done("A");
    tells("0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "10 DONE A -> LAUNCH #2 B.1{x2}, REPLY x1 OK, STAGE A.2{a1 b1}\n"
          "20 DONE B -> LAUNCH #3 A.2{a1 b1}, REPLY x2 OK\n"
          "30 DONE A -> REPLY a1 OK, REPLY b1 OK\n");
}
END_TEST

START_TEST(queued_cancel)
{
    busy();
    submit("a1");
    submit("b1");
    cancel("a1");
    done("A");
    tells("0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 CANCEL a1 -> REPLY a1 CANCELLED\n"
          "0 DONE A -> LAUNCH #2 B.1{x2}, REPLY x1 OK, STAGE A.2{b1}\n");
}
END_TEST

START_TEST(queued_timer)
{
    busy();
    submit("a1", .timeout_us = 50);
    submit("b1", .timeout_us = 40);
    at(40);
    timer();
    at(50);
    timer();
    tells("0 SUBMIT a1 -> SET_TIMER 50\n"
          "0 SUBMIT b1 -> SET_TIMER 40\n"
          "40 TIMER -> REPLY b1 TIMED_OUT, SET_TIMER 50\n"
          "50 TIMER -> REPLY a1 TIMED_OUT\n");
}
END_TEST

START_TEST(queued_peer_gone)
{
    busy();
    submit("a1");
    submit("b1");
    submit("a2");
    peer_gone("a");
    done("A");
    tells("0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 PEER_GONE a -> REPLY a1 DISCONNECTED (gone), REPLY a2 DISCONNECTED (gone)\n"
          "0 DONE A -> LAUNCH #2 B.1{x2}, REPLY x1 OK, STAGE A.2{b1}\n");
}
END_TEST

START_TEST(queued_fatal)
{
    busy();
    submit("a1");
    device_lost();
    tells("0 SUBMIT a1 -> nothing\n"
          "0 FATAL -> REPLY x1 DEVICE_LOST, REPLY x2 DEVICE_LOST, REPLY a1 DEVICE_LOST, EXIT DEVICE_LOST\n");
}
END_TEST

START_TEST(staged_cancel)
{
    begin();
    plans_by_hand();
    submit("x1");
    planned("A.1");
    submit("x2", .compat = 1);
    submit("a1");
    submit("b1");
    planned("B.1");
    cancel("x2"); /* the last of its batch: given up, and the slot is used anew */
    planned("B.1");
    cancel("a1"); /* not the last: staged again without it */
    planned("B.2");
    done("A");
    planned("B.3");
    tells("0 SUBMIT x1 -> STAGE A.1{x1}\n"
          "0 PLANNED A.1 -> LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT x2 -> STAGE B.1{x2}\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 PLANNED B.1 -> nothing\n"
          "0 CANCEL x2 -> REPLY x2 CANCELLED, STAGE B.2{a1 b1}\n"
          "0 PLANNED B.1 -> nothing\n"
          "0 CANCEL a1 -> REPLY a1 CANCELLED, STAGE B.3{b1}\n"
          "0 PLANNED B.2 -> nothing\n"
          "0 DONE A -> REPLY x1 OK\n"
          "0 PLANNED B.3 -> LAUNCH #2 B.3{b1}\n");
}
END_TEST

START_TEST(staged_cancel_of_a_planned_batch)
{
    begin();
    submit("x1");
    submit("x2");
    submit("a1");
    submit("b1");
    done("A"); /* x2 runs, a1 and b1 are planned behind it */
    cancel("b1");
    done("B");
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT x2 -> STAGE B.1{x2}\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{x2}, REPLY x1 OK, STAGE A.2{a1 b1}\n"
          "0 CANCEL b1 -> REPLY b1 CANCELLED, STAGE A.3{a1}\n"
          "0 DONE B -> LAUNCH #3 A.3{a1}, REPLY x2 OK\n");
    ck_assert_ptr_null(job_named("b1")->batch);
    ck_assert_uint_eq(job_named("b1")->batch_number, 0);
}
END_TEST

START_TEST(staged_timer)
{
    begin();
    plans_by_hand();
    submit("a1", .timeout_us = 30);
    at(30);
    planned("A.1"); /* planning took too long: not launched although the timer has not come */
    timer();
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, SET_TIMER 30\n"
          "30 PLANNED A.1 -> REPLY a1 TIMED_OUT\n"
          "30 TIMER -> nothing\n");
}
END_TEST

START_TEST(staged_peer_gone)
{
    begin();
    submit("x1");
    submit("x2");
    submit("a1");
    submit("b1");
    submit("a2");
    done("A");
    peer_gone("a");
    peer_gone("b");
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT x2 -> STAGE B.1{x2}\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{x2}, REPLY x1 OK, STAGE A.2{a1 b1 a2}\n"
          "0 PEER_GONE a -> REPLY a1 DISCONNECTED (gone), REPLY a2 DISCONNECTED (gone), STAGE A.3{b1}\n"
          "0 PEER_GONE b -> REPLY b1 DISCONNECTED (gone)\n");
}
END_TEST

START_TEST(staged_cannot_be_planned)
{
    begin();
    plans_by_hand();
    submit("x1");
    planned("A.1");
    submit("x2");
    submit("a1");
    submit("b1");
    done("A");
    cannot_plan("B.1", MLA_OUT_OF_MEMORY);
    cannot_plan("A.1", MLA_INTERNAL); /* stale */
    cannot_plan("A.2", MLA_OUT_OF_MEMORY);
    cannot_plan("A.3", MLA_OUT_OF_MEMORY);
    cannot_plan("A.4", MLA_OUT_OF_MEMORY);
    tells("0 SUBMIT x1 -> STAGE A.1{x1}\n"
          "0 PLANNED A.1 -> LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT x2 -> STAGE B.1{x2}\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 DONE A -> REPLY x1 OK\n"
          "0 PLANNED B.1 OUT_OF_MEMORY -> REPLY x2 OUT_OF_MEMORY, STAGE A.2{a1 b1}\n"
          "0 PLANNED A.1 INTERNAL -> nothing\n"
          "0 PLANNED A.2 OUT_OF_MEMORY -> STAGE A.3{a1}\n"
          "0 PLANNED A.3 OUT_OF_MEMORY -> REPLY a1 OUT_OF_MEMORY, STAGE A.4{b1}\n"
          "0 PLANNED A.4 OUT_OF_MEMORY -> REPLY b1 OUT_OF_MEMORY\n");
    ck_assert_ptr_nonnull(job_named("b1")->batch); /* where the caller may keep the reason */
}
END_TEST

START_TEST(staged_fatal)
{
    begin();
    plans_by_hand();
    submit("a1");
    device_lost();
    planned("A.1");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}\n"
          "0 FATAL -> REPLY a1 DEVICE_LOST, EXIT DEVICE_LOST\n"
          "0 PLANNED A.1 -> nothing\n");
}
END_TEST

/* D20: answered only when the batch has ended. */
START_TEST(running_cancel)
{
    begin();
    submit("a1", .uses = "r1");
    at(5);
    cancel("a1");
    cancel("a1");
    at(90);
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "5 CANCEL a1 -> nothing\n"
          "5 CANCEL a1 -> nothing\n"
          "90 DONE A -> REPLY a1 CANCELLED\n");
}
END_TEST

/* D20 */
START_TEST(running_timer)
{
    begin();
    submit("a1", .timeout_us = 50, .uses = "r1");
    unregister("r1");
    at(50);
    timer();
    ck_assert(job_named("a1")->late);
    at(90);
    done("A");
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}, SET_TIMER 50\n"
          "0 UNREGISTER r1 -> nothing\n"
          "50 TIMER -> nothing\n"
          "90 DONE A -> REPLY a1 LATE, RELEASE r1\n");
}
END_TEST

START_TEST(running_past_its_deadline_with_a_slow_timer)
{
    begin();
    submit("a1", .timeout_us = 50);
    at(50);
    done("A");
    at(51);
    timer();
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}, SET_TIMER 50\n"
          "50 DONE A -> REPLY a1 LATE\n"
          "51 TIMER -> nothing\n");
}
END_TEST

/* D3 */
START_TEST(running_peer_gone)
{
    begin();
    submit("a1", .uses = "r1");
    at(5);
    unregister("r1");
    peer_gone("a");
    ck_assert_uint_eq(peer_named("a")->in_flight, 1);
    at(90);
    done("A");
    ck_assert_uint_eq(peer_named("a")->in_flight, 0);
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "5 UNREGISTER r1 -> nothing\n"
          "5 PEER_GONE a -> nothing\n"
          "90 DONE A -> REPLY a1 OK (gone), RELEASE r1\n");
}
END_TEST

START_TEST(running_batch_error_before_cancelled_before_late)
{
    begin(.batch_jobs_max = 3);
    submit("x1");
    submit("x2");
    submit("a1", .timeout_us = 50);
    submit("a2");
    submit("a3", .timeout_us = 50);
    done("A");
    done("B"); /* all three run */
    cancel("a1");
    cancel("a2");
    at(60);
    done("A");
    submit("b1", .timeout_us = 5);
    cancel("b1");
    at(70);
    failed("A", MLA_INTERNAL);
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT x2 -> STAGE B.1{x2}\n"
          "0 SUBMIT a1 -> SET_TIMER 50\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{x2}, REPLY x1 OK, STAGE A.2{a1 a2 a3}\n"
          "0 DONE B -> LAUNCH #3 A.2{a1 a2 a3}, REPLY x2 OK\n"
          "0 CANCEL a1 -> nothing\n"
          "0 CANCEL a2 -> nothing\n"
          "60 DONE A -> REPLY a1 CANCELLED, REPLY a2 CANCELLED, REPLY a3 LATE\n"
          "60 SUBMIT b1 -> STAGE A.3{b1}, LAUNCH #4 A.3{b1}\n"
          "60 CANCEL b1 -> nothing\n"
          "70 DONE A INTERNAL -> REPLY b1 INTERNAL\n");
    ck_assert(job_named("a1")->late);
    ck_assert(job_named("b1")->late);
    ck_assert(job_named("b1")->cancelled);
}
END_TEST

/* D16 */
START_TEST(running_fatal)
{
    begin(.max_running = 2);
    submit("a1", .uses = "r1");
    submit("b1");
    submit("c1", .ready_word = true);
    submit("d1");
    unregister("r1");
    cancel("a1");
    at(7);
    device_lost();
    submit("d2");
    done("A");
    timer();
    tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
          "0 SUBMIT b1 -> STAGE B.1{b1}, LAUNCH #2 B.1{b1}\n"
          "0 SUBMIT c1 -> WATCH c1\n"
          "0 SUBMIT d1 -> nothing\n"
          "0 UNREGISTER r1 -> nothing\n"
          "0 CANCEL a1 -> nothing\n"
          "7 FATAL -> REPLY a1 DEVICE_LOST, REPLY b1 DEVICE_LOST, REPLY d1 DEVICE_LOST, UNWATCH c1, "
          "REPLY c1 DEVICE_LOST, RELEASE r1, EXIT DEVICE_LOST\n"
          "7 SUBMIT d2 -> nothing\n"
          "7 DONE A -> nothing\n"
          "7 TIMER -> nothing\n");
    ck_assert_int_eq(job_named("d2")->state, SCHED_RECEIVED);
}
END_TEST

MLA_SUITE(sched_jobs)
{
    TCase *tc = mla_tcase(suite, "state table");
    tcase_add_test(tc, received_an_idle_device_is_used_at_once);
    tcase_add_test(tc, received_refusals_in_their_order);
    tcase_add_test(tc, received_past_its_deadline);
    tcase_add_test(tc, waiting_ready);
    tcase_add_test(tc, waiting_ready_aborted);
    tcase_add_test(tc, waiting_timer);
    tcase_add_test(tc, waiting_cancel);
    tcase_add_test(tc, waiting_peer_gone);
    tcase_add_test(tc, waiting_fatal);
    tcase_add_test(tc, queued_batch_formed);
    tcase_add_test(tc, queued_cancel);
    tcase_add_test(tc, queued_timer);
    tcase_add_test(tc, queued_peer_gone);
    tcase_add_test(tc, queued_fatal);
    tcase_add_test(tc, staged_cancel);
    tcase_add_test(tc, staged_cancel_of_a_planned_batch);
    tcase_add_test(tc, staged_timer);
    tcase_add_test(tc, staged_peer_gone);
    tcase_add_test(tc, staged_cannot_be_planned);
    tcase_add_test(tc, staged_fatal);
    tcase_add_test(tc, running_cancel);
    tcase_add_test(tc, running_timer);
    tcase_add_test(tc, running_past_its_deadline_with_a_slow_timer);
    tcase_add_test(tc, running_peer_gone);
    tcase_add_test(tc, running_batch_error_before_cancelled_before_late);
    tcase_add_test(tc, running_fatal);
}
