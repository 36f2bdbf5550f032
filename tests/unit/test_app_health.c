/* Conditions of health in virtual time: a look a second, told what it sees. */
#include <string.h>

#include "daemon/app/health.h"
#include "tests/support/check_main.h"

static struct health h;
static struct health_look look; /* the next one */

static void setup(void)
{
    look = (struct health_look){.device_progress = 1};
    health_start(&h, &look);
}

/* A look at a daemon that is well, but for what the test has put into look. */
static bool well(void)
{
    look.device_progress++;
    return health_step(&h, &look);
}

static void well_for(unsigned looks)
{
    look.turn_max_ns = look.device_lag_ns = look.running_ns = look.running_predicted_ns = 0;
    for (unsigned i = 0; i < looks; i++)
        well();
}

/* Makes a look find the condition: what it takes at least. */
static void bring_about(enum health_reason reason)
{
    switch (reason) {
    case HEALTH_device_stalled:
        look.device_progress--;
        break;
    case HEALTH_launch_overdue:
        look.running_predicted_ns = 1000;
        look.running_ns = HEALTH_OVERDUE_NS + HEALTH_OVERDUE_TIMES * UINT64_C(1001);
        break;
    case HEALTH_device_lag:
        look.device_lag_ns = HEALTH_DEVICE_LAG_NS + 1;
        break;
    case HEALTH_loop_lag:
        look.turn_max_ns = HEALTH_LOOP_LAG_NS + 1;
        break;
    case HEALTH_predictions:
        look.predicted_ns += HEALTH_RATIO_NS;
        look.measured_ns += (HEALTH_RATIO_NS + 1) * HEALTH_RATIO;
        break;
    case HEALTH_overloaded:
        look.refused++;
        break;
    case HEALTH_job_errors:
        look.errors++;
        break;
    case HEALTH_descriptors:
        look.accept_pauses++;
        break;
    case HEALTH_REASONS:
        break;
    }
}

static void off(void)
{
    look.turn_max_ns = look.device_lag_ns = look.running_ns = look.running_predicted_ns = 0;
}

/* As many looks as it takes, in a row, with how many to spare, and how many good ones end it. */
static const struct {
    enum health_reason reason;
    unsigned raise, window, clear;
} rules[] = {
    {HEALTH_device_stalled, 5, 5, 10}, {HEALTH_launch_overdue, 1, 1, 10}, {HEALTH_device_lag, 3, 10, 10},
    {HEALTH_loop_lag, 3, 10, 10},      {HEALTH_predictions, 30, 60, 60},  {HEALTH_overloaded, 27, 30, 10},
    {HEALTH_job_errors, 3, 60, 60},    {HEALTH_descriptors, 1, 1, 10},
};
_Static_assert(sizeof(rules) / sizeof(rules[0]) == HEALTH_REASONS, "a row each");

START_TEST(comes_and_goes)
{
    enum health_reason reason = rules[_i].reason;
    well_for(100);
    ck_assert_uint_eq(h.now, 0);
    for (unsigned i = 1; i < rules[_i].raise; i++) {
        bring_about(reason);
        ck_assert(!well());
        off();
    }
    ck_assert_uint_eq(h.now, 0);
    bring_about(reason);
    ck_assert(well());
    off();
    ck_assert_uint_eq(h.now, 1u << reason);
    ck_assert(health_is(&h, reason));
    ck_assert_uint_eq(h.raised[reason], 1);

    /* It stays until there has been none of it for long enough. */
    for (unsigned i = 1; i < rules[_i].clear; i++)
        ck_assert(!well());
    bring_about(reason);
    ck_assert(!well());
    off();
    for (unsigned i = 1; i < rules[_i].clear; i++)
        ck_assert(!well());
    ck_assert(health_is(&h, reason));
    ck_assert(well());
    ck_assert_uint_eq(h.now, 0);
    ck_assert_uint_eq(h.raised[reason], 1);
    for (unsigned i = 0; i < HEALTH_REASONS; i++)
        ck_assert_uint_eq(h.raised[i], i == (unsigned)reason);
}
END_TEST

/* Not often enough within the window: never. */
START_TEST(now_and_then_is_nothing)
{
    enum health_reason reason = rules[_i].reason;
    if (rules[_i].raise == 1)
        return;
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < rules[_i].window; i++) {
            if (i < rules[_i].raise - 1)
                bring_about(reason);
            ck_assert(!well());
            off();
        }
    }
    ck_assert_uint_eq(h.now, 0);
}
END_TEST

/* Just what is allowed, for ever. */
START_TEST(bounds_are_inclusive)
{
    for (unsigned i = 0; i < 200; i++) {
        look.turn_max_ns = HEALTH_LOOP_LAG_NS;
        look.device_lag_ns = HEALTH_DEVICE_LAG_NS;
        look.running_predicted_ns = 1000;
        look.running_ns = HEALTH_OVERDUE_NS + HEALTH_OVERDUE_TIMES * UINT64_C(1000);
        look.predicted_ns += i % 2 == 0 ? HEALTH_RATIO_NS : HEALTH_RATIO_NS * HEALTH_RATIO;
        look.measured_ns += i % 2 == 0 ? HEALTH_RATIO_NS * HEALTH_RATIO : HEALTH_RATIO_NS;
        ck_assert(!well());
    }
}
END_TEST

/* Launches that take an eighth of what was predicted mislead as much; no launch at all does not. */
START_TEST(predictions_both_ways)
{
    for (unsigned i = 0; i < 30; i++) {
        look.predicted_ns += HEALTH_RATIO_NS;
        look.measured_ns += HEALTH_RATIO_NS / HEALTH_RATIO - 1;
        well();
    }
    ck_assert(health_is(&h, HEALTH_predictions));
    well_for(60);
    ck_assert_uint_eq(h.now, 0);
    look.predicted_ns = look.measured_ns = UINT64_MAX / 2;
    well_for(100);
    ck_assert_uint_eq(h.now, 0);
}
END_TEST

/* Few and short launches, whose ends are seen late, say nothing of the costs. */
START_TEST(little_work_is_not_judged)
{
    for (unsigned i = 0; i < 200; i++) {
        look.predicted_ns += i % 2 == 0 ? 1000 : HEALTH_RATIO_NS - 1;
        look.measured_ns += i % 2 == 0 ? HEALTH_RATIO_NS - 1 : 1000;
        ck_assert(!well());
    }
}
END_TEST

/* A device thread that is seen to advance only now and then still does. */
START_TEST(a_slow_device_thread_advances)
{
    for (unsigned i = 0; i < 200; i++) {
        look.device_progress -= i % 5 != 0;
        ck_assert(!well());
    }
}
END_TEST

/* The daemon is stopped while a launch runs: what it missed does not count, whether the launch began before the last
 * look, after it, or meanwhile, and what the launch takes from then on does. */
START_TEST(a_daemon_that_was_stopped)
{
    const uint64_t second = HEALTH_LOOK_NS, stopped = 1000 * second;
    well_for(3);
    look.running_ns = (_i == 0 ? 3 : 0) * second;
    ck_assert(!well());
    look.late_ns = stopped;
    look.running_ns = _i < 2 ? look.running_ns + stopped + second : stopped / 2;
    ck_assert(!well());
    look.late_ns = 0;
    uint64_t forgiven = _i < 2 ? stopped : look.running_ns;
    for (look.running_ns += second; look.running_ns <= forgiven + HEALTH_OVERDUE_NS; look.running_ns += second)
        ck_assert(!well());
    ck_assert(well());
    ck_assert(health_is(&h, HEALTH_launch_overdue));
    well_for(10);
    look.running_ns = second / 2; /* of the next launch nothing is forgiven */
    ck_assert_uint_eq(h.now, 0);
    ck_assert(!well());
    look.running_ns = HEALTH_OVERDUE_NS + second;
    ck_assert(well());
}
END_TEST

/* A loop that is a little late in each look hides nothing. */
START_TEST(a_late_loop_hides_no_launch)
{
    look.late_ns = HEALTH_LOOK_NS / 10;
    for (unsigned i = 0; i < 20 && !health_is(&h, HEALTH_launch_overdue); i++) {
        look.running_ns += HEALTH_LOOK_NS + look.late_ns;
        well();
    }
    ck_assert(health_is(&h, HEALTH_launch_overdue));
}
END_TEST

START_TEST(texts)
{
    char text[256], small[24], names[256];
    health_text(&h, text, sizeof(text));
    ck_assert_str_eq(text, "");
    health_names(&h, names, sizeof(names));
    ck_assert_str_eq(names, "");
    bring_about(HEALTH_descriptors);
    bring_about(HEALTH_launch_overdue);
    ck_assert(well());
    health_text(&h, text, sizeof(text));
    ck_assert_str_eq(text,
                     "launch_overdue: a launch runs far longer than it should; descriptors: connections wait, as no "
                     "descriptors are left");
    health_text(&h, small, sizeof(small));
    ck_assert_str_eq(small, "launch_overdue: a launc");
    health_names(&h, names, sizeof(names));
    ck_assert_str_eq(names, "launch_overdue, descriptors");
    h.now = (1u << HEALTH_REASONS) - 1;
    health_text(&h, text, sizeof(text));
    ck_assert_uint_eq(strlen(text), sizeof(text) - 1);
    health_names(&h, names, sizeof(names));
    ck_assert_uint_lt(strlen(names), 128);
    for (unsigned i = 0; i < HEALTH_REASONS; i++) {
        ck_assert_ptr_nonnull(strstr(names, health_name((enum health_reason)i)));
        ck_assert_uint_gt(strlen(health_meaning((enum health_reason)i)), 20);
    }
}
END_TEST

MLA_SUITE(app_health)
{
    TCase *tc = mla_tcase(suite, "health");
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_loop_test(tc, comes_and_goes, 0, HEALTH_REASONS);
    tcase_add_loop_test(tc, now_and_then_is_nothing, 0, HEALTH_REASONS);
    tcase_add_test(tc, bounds_are_inclusive);
    tcase_add_test(tc, predictions_both_ways);
    tcase_add_test(tc, little_work_is_not_judged);
    tcase_add_test(tc, a_slow_device_thread_advances);
    tcase_add_loop_test(tc, a_daemon_that_was_stopped, 0, 3);
    tcase_add_test(tc, a_late_loop_hides_no_launch);
    tcase_add_test(tc, texts);
}
