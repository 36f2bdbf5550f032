/* Plans that fail: whose fault it is comes out, and nobody beside it pays. Jobs wait behind x1, so that they are
 * planned together. */
#include "tests/scenario/story.h"
#include "tests/support/check_main.h"

static void together(const char *const *names)
{
    submit("x1");
    submit("y1");
    for (; *names != NULL; names++)
        submit(*names);
}
#define TOGETHER(...) together((const char *const[]){__VA_ARGS__, NULL})

START_TEST(the_first_is_the_culprit)
{
    begin();
    plans_fail_for("a1");
    TOGETHER("a1", "b1", "c1", "d1");
    for (int i = 0; i < 4; i++)
        done_next();
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT y1 -> STAGE B.1{y1}\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT c1 -> nothing\n"
          "0 SUBMIT d1 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{y1}, REPLY x1 OK, STAGE A.2{a1 b1 c1 d1}, STAGE A.3{a1 b1}, STAGE A.4{a1}\n"
          "0 DONE B -> REPLY y1 OK, STAGE A.5{a1}, REPLY a1 OUT_OF_MEMORY, STAGE A.6{b1}, LAUNCH #3 A.6{b1}, STAGE "
          "B.2{c1 d1}\n"
          "0 DONE A -> LAUNCH #4 B.2{c1 d1}, REPLY b1 OK\n"
          "0 DONE B -> REPLY c1 OK, REPLY d1 OK\n");
}
END_TEST

START_TEST(the_last_is_the_culprit)
{
    begin();
    plans_fail_for("d1");
    TOGETHER("a1", "b1", "c1", "d1");
    for (int i = 0; i < 4; i++)
        done_next();
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT y1 -> STAGE B.1{y1}\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT c1 -> nothing\n"
          "0 SUBMIT d1 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{y1}, REPLY x1 OK, STAGE A.2{a1 b1 c1 d1}, STAGE A.3{a1 b1}\n"
          "0 DONE B -> LAUNCH #3 A.3{a1 b1}, REPLY y1 OK, STAGE B.2{c1 d1}, STAGE B.3{c1}\n"
          "0 DONE A -> LAUNCH #4 B.3{c1}, REPLY a1 OK, REPLY b1 OK, STAGE A.4{d1}\n"
          "0 DONE B -> REPLY c1 OK, STAGE A.5{d1}, REPLY d1 OUT_OF_MEMORY\n");
}
END_TEST

/* Of an odd number, one in the middle, and two jobs of its own client behind it. */
START_TEST(one_in_the_middle)
{
    begin();
    plans_fail_for("c1");
    TOGETHER("a1", "b1", "c1", "c2", "c3");
    for (int i = 0; i < 5; i++)
        done_next();
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT y1 -> STAGE B.1{y1}\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT c1 -> nothing\n"
          "0 SUBMIT c2 -> nothing\n"
          "0 SUBMIT c3 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{y1}, REPLY x1 OK, STAGE A.2{a1 b1 c1 c2 c3}, STAGE A.3{a1 b1}\n"
          "0 DONE B -> LAUNCH #3 A.3{a1 b1}, REPLY y1 OK, STAGE B.2{c1 c2 c3}, STAGE B.3{c1}\n"
          "0 DONE A -> REPLY a1 OK, REPLY b1 OK, STAGE A.4{c1}, REPLY c1 OUT_OF_MEMORY, STAGE A.5{c2}, LAUNCH #4 "
          "A.5{c2}, STAGE B.4{c3}\n"
          "0 DONE A -> LAUNCH #5 B.4{c3}, REPLY c2 OK\n"
          "0 DONE B -> REPLY c3 OK\n");
}
END_TEST

START_TEST(two_of_many)
{
    begin();
    plans_fail_for("a2 c1");
    TOGETHER("a1", "a2", "b1", "c1", "c2", "d1");
    for (int i = 0; i < 5; i++)
        done_next();
    tells(
        "0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
        "0 SUBMIT y1 -> STAGE B.1{y1}\n"
        "0 SUBMIT a1 -> nothing\n"
        "0 SUBMIT a2 -> nothing\n"
        "0 SUBMIT b1 -> nothing\n"
        "0 SUBMIT c1 -> nothing\n"
        "0 SUBMIT c2 -> nothing\n"
        "0 SUBMIT d1 -> nothing\n"
        "0 DONE A -> LAUNCH #2 B.1{y1}, REPLY x1 OK, STAGE A.2{a1 b1 c1 d1 a2 c2}, STAGE A.3{a1 b1 c1}, STAGE A.4{a1}\n"
        "0 DONE B -> LAUNCH #3 A.4{a1}, REPLY y1 OK, STAGE B.2{b1 c1}, STAGE B.3{b1}\n"
        "0 DONE A -> LAUNCH #4 B.3{b1}, REPLY a1 OK, STAGE A.5{c1 d1}, STAGE A.6{c1}\n"
        "0 DONE B -> REPLY b1 OK, STAGE A.7{c1}, REPLY c1 OUT_OF_MEMORY, STAGE A.8{d1}, LAUNCH #5 A.8{d1}, STAGE "
        "B.4{a2 c2}, STAGE B.5{a2}\n"
        "0 DONE A -> REPLY d1 OK, STAGE A.9{a2}, REPLY a2 OUT_OF_MEMORY, STAGE A.10{c2}, LAUNCH #6 A.10{c2}\n");
}
END_TEST

/* Each is answered by itself, and costs a plan of its own and no more once it is known. */
START_TEST(none_of_them_can_be_planned)
{
    begin();
    plans_fail_for("a1 b1 c1 d1 e1 f1");
    TOGETHER("a1", "b1", "c1", "d1", "e1", "f1");
    done_next();
    done_next();
    tells(
        "0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
        "0 SUBMIT y1 -> STAGE B.1{y1}\n"
        "0 SUBMIT a1 -> nothing\n"
        "0 SUBMIT b1 -> nothing\n"
        "0 SUBMIT c1 -> nothing\n"
        "0 SUBMIT d1 -> nothing\n"
        "0 SUBMIT e1 -> nothing\n"
        "0 SUBMIT f1 -> nothing\n"
        "0 DONE A -> LAUNCH #2 B.1{y1}, REPLY x1 OK, STAGE A.2{a1 b1 c1 d1 e1 f1}, STAGE A.3{a1 b1 c1}, STAGE A.4{a1}\n"
        "0 DONE B -> REPLY y1 OK, STAGE A.5{a1}, REPLY a1 OUT_OF_MEMORY, STAGE A.6{b1}, REPLY b1 OUT_OF_MEMORY, STAGE "
        "A.7{c1}, REPLY c1 OUT_OF_MEMORY, STAGE A.8{d1}, REPLY d1 OUT_OF_MEMORY, STAGE A.9{e1}, REPLY e1 "
        "OUT_OF_MEMORY, STAGE A.10{f1}, REPLY f1 OUT_OF_MEMORY\n");
}
END_TEST

/* Nobody's fault: they are too many for one plan, not for several. Launches grow again when there is room. */
START_TEST(too_many_for_one_plan)
{
    begin();
    plans_hold(3);
    TOGETHER("a1", "b1", "c1", "d1", "e1", "f1", "g1", "h1");
    for (int i = 0; i < 3; i++)
        done_next();
    plans_hold(8);
    for (int i = 0; i < 8; i++)
        submit((const char[]){(char)('a' + i), '2', '\0'});
    for (int i = 0; i < 4; i++)
        done_next();
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT y1 -> STAGE B.1{y1}\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT c1 -> nothing\n"
          "0 SUBMIT d1 -> nothing\n"
          "0 SUBMIT e1 -> nothing\n"
          "0 SUBMIT f1 -> nothing\n"
          "0 SUBMIT g1 -> nothing\n"
          "0 SUBMIT h1 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{y1}, REPLY x1 OK, STAGE A.2{a1 b1 c1 d1 e1 f1 g1 h1}, STAGE A.3{a1 b1 c1 d1}, "
          "STAGE A.4{a1 b1}\n"
          "0 DONE B -> LAUNCH #3 A.4{a1 b1}, REPLY y1 OK, STAGE B.2{c1 d1 e1 f1}, STAGE B.3{c1 d1}\n"
          "0 DONE A -> LAUNCH #4 B.3{c1 d1}, REPLY a1 OK, REPLY b1 OK, STAGE A.5{e1 f1 g1 h1}, STAGE A.6{e1 f1}\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 SUBMIT b2 -> nothing\n"
          "0 SUBMIT c2 -> nothing\n"
          "0 SUBMIT d2 -> nothing\n"
          "0 SUBMIT e2 -> nothing\n"
          "0 SUBMIT f2 -> nothing\n"
          "0 SUBMIT g2 -> nothing\n"
          "0 SUBMIT h2 -> nothing\n"
          "0 DONE B -> LAUNCH #5 A.6{e1 f1}, REPLY c1 OK, REPLY d1 OK, STAGE B.4{g1 h1 a2 b2}\n"
          "0 DONE A -> LAUNCH #6 B.4{g1 h1 a2 b2}, REPLY e1 OK, REPLY f1 OK, STAGE A.7{c2 d2 e2 f2 g2 h2}\n"
          "0 DONE B -> LAUNCH #7 A.7{c2 d2 e2 f2 g2 h2}, REPLY g1 OK, REPLY h1 OK, REPLY a2 OK, REPLY b2 OK\n"
          "0 DONE A -> REPLY c2 OK, REPLY d2 OK, REPLY e2 OK, REPLY f2 OK, REPLY g2 OK, REPLY h2 OK\n");
}
END_TEST

/* What goes back keeps its place: before what its client brought later, and that client is charged once. */
START_TEST(what_goes_back_keeps_its_place)
{
    begin(.batch_jobs_max = 4);
    plans_by_hand();
    submit("x1");
    planned("A.1");
    submit("y1");
    planned("B.1");
    submit("a1", .load_us = 100);
    submit("a2", .load_us = 100);
    submit("b1", .load_us = 100);
    submit("b2", .load_us = 100);
    done("A");
    submit("a3", .load_us = 100);
    submit("c1", .load_us = 100);
    cannot_plan("A.2", MLA_OUT_OF_MEMORY);
    planned("A.3");
    done("B");
    at(200);
    done("A");
    planned("A.4");
    at(600);
    done("A");
    tells("0 SUBMIT x1 -> STAGE A.1{x1}\n"
          "0 PLANNED A.1 -> LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT y1 -> STAGE B.1{y1}\n"
          "0 PLANNED B.1 -> nothing\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT a2 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 SUBMIT b2 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{y1}, REPLY x1 OK, STAGE A.2{a1 b1 a2 b2}\n"
          "0 SUBMIT a3 -> nothing\n"
          "0 SUBMIT c1 -> nothing\n"
          "0 PLANNED A.2 OUT_OF_MEMORY -> STAGE A.3{a1 b1}\n"
          "0 PLANNED A.3 -> nothing\n"
          "0 DONE B -> LAUNCH #3 A.3{a1 b1}, REPLY y1 OK, SET_TIMER 200\n"
          "200 DONE A -> REPLY a1 OK, REPLY b1 OK, STAGE A.4{a2 b2 a3 c1}\n"
          "200 PLANNED A.4 -> LAUNCH #4 A.4{a2 b2 a3 c1}\n"
          "600 DONE A -> REPLY a2 OK, REPLY b2 OK, REPLY a3 OK, REPLY c1 OK\n");
}
END_TEST

/* A part of a long job goes back: it is the next one of that job, and none is left out or run twice. */
START_TEST(parts_go_back_too)
{
    begin(.launch_max_ns = 2000000);
    plans_hold(1);
    submit("x1", .load_us = 100);
    submit("a1", .load_us = 900, .parts = 3);
    submit("b1", .load_us = 900, .parts = 2);
    for (int i = 0; i < 6; i++)
        done_next();
    tells("0 SUBMIT x1 -> STAGE A.1{x1}, LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT a1 -> SET_TIMER 100\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 DONE A -> REPLY x1 OK, STAGE A.2{a1/1 b1/1}, STAGE A.3{a1/1}, LAUNCH #2 A.3{a1/1}, SET_TIMER 14\n"
          "0 DONE A -> STAGE A.4{b1/1 a1/2}, STAGE A.5{b1/1}, LAUNCH #3 A.5{b1/1}\n"
          "0 DONE A -> STAGE A.6{a1/2 b1/2}, STAGE A.7{a1/2}, LAUNCH #4 A.7{a1/2}\n"
          "0 DONE A -> STAGE A.8{b1/2 a1/3}, STAGE A.9{b1/2}, LAUNCH #5 A.9{b1/2}\n"
          "0 DONE A -> REPLY b1 OK, STAGE A.10{a1/3}, LAUNCH #6 A.10{a1/3}\n"
          "0 DONE A -> REPLY a1 OK\n");
}
END_TEST

/* What runs holds what it needs: it is planned again when that has ended, and no other before it. */
START_TEST(a_job_that_fits_when_nothing_runs)
{
    begin(.max_running = 2);
    plans_by_hand();
    submit("x1");
    planned("A.1");
    submit("a1");
    submit("b1");
    cannot_plan("B.1", MLA_OUT_OF_MEMORY);
    submit("c1");
    done("A");
    planned("A.2");
    planned("B.2");
    done("A");
    done("B");
    tells("0 SUBMIT x1 -> STAGE A.1{x1}\n"
          "0 PLANNED A.1 -> LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT a1 -> STAGE B.1{a1}\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 PLANNED B.1 OUT_OF_MEMORY -> nothing\n"
          "0 SUBMIT c1 -> nothing\n"
          "0 DONE A -> REPLY x1 OK, STAGE A.2{a1}\n"
          "0 PLANNED A.2 -> LAUNCH #2 A.2{a1}, STAGE B.2{b1 c1}\n"
          "0 PLANNED B.2 -> LAUNCH #3 B.2{b1 c1}\n"
          "0 DONE A -> REPLY a1 OK\n"
          "0 DONE B -> REPLY b1 OK, REPLY c1 OK\n");
}
END_TEST

/* The second part cannot be planned while the first one runs, nor behind it: others follow. */
START_TEST(a_later_part_is_the_culprit)
{
    begin(.max_running = 2, .launch_max_ns = 2000000);
    plans_by_hand();
    submit("a1", .load_us = 900, .parts = 3);
    planned("A.1");
    submit("b1", .load_us = 900);
    at(900);
    timer();
    cannot_plan("B.1", MLA_OUT_OF_MEMORY);
    cannot_plan("B.2", MLA_OUT_OF_MEMORY);
    at(1000);
    done("A");
    cannot_plan("A.2", MLA_OUT_OF_MEMORY);
    planned("A.3");
    tells("0 SUBMIT a1 -> STAGE A.1{a1/1}\n"
          "0 PLANNED A.1 -> LAUNCH #1 A.1{a1/1}, SET_TIMER 900\n"
          "0 SUBMIT b1 -> nothing\n"
          "900 TIMER -> STAGE B.1{a1/2 b1}\n"
          "900 PLANNED B.1 OUT_OF_MEMORY -> STAGE B.2{a1/2}\n"
          "900 PLANNED B.2 OUT_OF_MEMORY -> nothing\n"
          "1000 DONE A -> STAGE A.2{a1/2}\n"
          "1000 PLANNED A.2 OUT_OF_MEMORY -> REPLY a1 OUT_OF_MEMORY, STAGE A.3{b1}\n"
          "1000 PLANNED A.3 -> LAUNCH #2 A.3{b1}\n");
}
END_TEST

/* Between two plans anything may happen to those that have gone back. */
START_TEST(what_has_gone_back_can_end)
{
    begin();
    plans_by_hand();
    submit("x1");
    planned("A.1");
    submit("y1");
    planned("B.1");
    submit("a1");
    submit("b1", .timeout_us = 50);
    submit("c1");
    submit("d1", .uses = "cache");
    done("A");
    cannot_plan("A.2", MLA_OUT_OF_MEMORY); /* a1 and b1 stay */
    cancel("c1");
    peer_gone("d");
    unregister("cache");
    at(60);
    timer(); /* b1 */
    planned("A.4");
    done("B");
    done("A");
    tells("0 SUBMIT x1 -> STAGE A.1{x1}\n"
          "0 PLANNED A.1 -> LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT y1 -> STAGE B.1{y1}\n"
          "0 PLANNED B.1 -> nothing\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT b1 -> SET_TIMER 50\n"
          "0 SUBMIT c1 -> nothing\n"
          "0 SUBMIT d1 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{y1}, REPLY x1 OK, STAGE A.2{a1 b1 c1 d1}\n"
          "0 PLANNED A.2 OUT_OF_MEMORY -> STAGE A.3{a1 b1}\n"
          "0 CANCEL c1 -> REPLY c1 CANCELLED\n"
          "0 PEER_GONE d -> REPLY d1 DISCONNECTED (gone)\n"
          "0 UNREGISTER cache -> RELEASE cache\n"
          "60 TIMER -> REPLY b1 TIMED_OUT, STAGE A.4{a1}\n"
          "60 PLANNED A.4 -> nothing\n"
          "60 DONE B -> LAUNCH #3 A.4{a1}, REPLY y1 OK\n"
          "60 DONE A -> REPLY a1 OK\n");
}
END_TEST

START_TEST(the_device_is_lost_between_two_plans)
{
    begin();
    plans_by_hand();
    submit("x1");
    planned("A.1");
    submit("y1");
    planned("B.1");
    submit("a1");
    submit("b1");
    done("A");
    cannot_plan("A.2", MLA_OUT_OF_MEMORY);
    device_lost();
    tells("0 SUBMIT x1 -> STAGE A.1{x1}\n"
          "0 PLANNED A.1 -> LAUNCH #1 A.1{x1}\n"
          "0 SUBMIT y1 -> STAGE B.1{y1}\n"
          "0 PLANNED B.1 -> nothing\n"
          "0 SUBMIT a1 -> nothing\n"
          "0 SUBMIT b1 -> nothing\n"
          "0 DONE A -> LAUNCH #2 B.1{y1}, REPLY x1 OK, STAGE A.2{a1 b1}\n"
          "0 PLANNED A.2 OUT_OF_MEMORY -> STAGE A.3{a1}\n"
          "0 FATAL -> REPLY y1 DEVICE_LOST, REPLY a1 DEVICE_LOST, REPLY b1 DEVICE_LOST, EXIT DEVICE_LOST\n");
}
END_TEST

MLA_SUITE(sched_plans)
{
    TCase *tc = mla_tcase(suite, "plans that fail");
    tcase_add_test(tc, the_first_is_the_culprit);
    tcase_add_test(tc, the_last_is_the_culprit);
    tcase_add_test(tc, one_in_the_middle);
    tcase_add_test(tc, two_of_many);
    tcase_add_test(tc, none_of_them_can_be_planned);
    tcase_add_test(tc, too_many_for_one_plan);
    tcase_add_test(tc, what_goes_back_keeps_its_place);
    tcase_add_test(tc, parts_go_back_too);
    tcase_add_test(tc, a_job_that_fits_when_nothing_runs);
    tcase_add_test(tc, a_later_part_is_the_culprit);
    tcase_add_test(tc, what_has_gone_back_can_end);
    tcase_add_test(tc, the_device_is_lost_between_two_plans);
}
