/* The client's recovery in virtual time: stories told event by event, and the fates of jobs. */
#include "client/recover.h"

#include "tests/support/check_main.h"

#define MS UINT64_C(1000000)

static const struct mlac_recover_config config = {
    .limit_ns = 60000 * MS, .first_ns = 2 * MS, .last_ns = 1000 * MS, .greet_ns = 10000 * MS, .seed = 7};

static struct mlac_recover r;
static uint64_t now;

static enum mlac_recover_act on(enum mlac_recover_kind kind, enum mla_status status)
{
    return mlac_recover_step(&r, &(struct mlac_recover_event){.kind = kind, .now_ns = now, .status = status});
}

static enum mlac_recover_act greeted(uint64_t boot, uint64_t client)
{
    return mlac_recover_step(
        &r, &(struct mlac_recover_event){.kind = MLAC_ON_GREETED, .now_ns = now, .boot = boot, .client = client});
}

static enum mlac_recover_act due(void)
{
    ck_assert_uint_ne(r.wake_ns, UINT64_MAX);
    now = r.wake_ns;
    return on(MLAC_ON_DUE, MLA_OK);
}

static void begin(const struct mlac_recover_config *c)
{
    now = 1000 * MS;
    mlac_recover_init(&r, c);
    mlac_recover_up(&r, now, 1, 11);
    now += 5000 * MS;
}

static void to_greet(void)
{
    ck_assert_int_eq(due(), MLAC_DO_CONNECT);
    ck_assert_int_eq(on(MLAC_ON_CONNECTED, MLA_OK), MLAC_DO_GREET);
}

/* ---- stories ---- */

START_TEST(another_daemon_is_not_asked_about_the_old_connection)
{
    begin(&config);
    ck_assert_int_eq(on(MLAC_ON_LOST, MLA_DISCONNECTED), MLAC_DO_HANG_UP);
    to_greet();
    ck_assert_int_eq(greeted(2, 12), MLAC_DO_RESTORE);
    ck_assert(r.restarted);
    ck_assert_int_eq(on(MLAC_ON_RESTORED, MLA_OK), MLAC_DO_RESTORE);
    ck_assert_int_eq(on(MLAC_ON_COMPLETE, MLA_OK), MLAC_DO_GO);
    ck_assert_int_eq(r.state, MLAC_RECOVER_UP);
    ck_assert_uint_eq(r.wake_ns, UINT64_MAX);
}
END_TEST

START_TEST(the_same_daemon_lets_go_first)
{
    begin(&config);
    on(MLAC_ON_LOST, MLA_DISCONNECTED);
    to_greet();
    ck_assert_int_eq(greeted(1, 12), MLAC_DO_ASK);
    ck_assert(!r.restarted);
    ck_assert_uint_eq(r.fence_client, 11);
    for (unsigned i = 0; i < 5; i++) {
        ck_assert_int_eq(on(MLAC_ON_PRESENT, MLA_OK), MLAC_DO_REST);
        ck_assert_int_eq(on(MLAC_ON_DUE, MLA_OK), MLAC_DO_REST); /* before its time */
        ck_assert_int_eq(due(), MLAC_DO_ASK);
    }
    ck_assert_int_eq(on(MLAC_ON_GONE, MLA_OK), MLAC_DO_RESTORE);
    ck_assert_int_eq(on(MLAC_ON_COMPLETE, MLA_OK), MLAC_DO_GO);
    /* Cut again: now it is the second connection that has to go. */
    on(MLAC_ON_LOST, MLA_DISCONNECTED);
    to_greet();
    ck_assert_int_eq(greeted(1, 13), MLAC_DO_ASK);
    ck_assert_uint_eq(r.fence_client, 12);
}
END_TEST

/* A connection that had not got as far as registering has nothing to let go of; the one before still has. */
START_TEST(cut_again_at_every_point)
{
    begin(&config);
    on(MLAC_ON_LOST, MLA_DISCONNECTED);
    to_greet();
    ck_assert_int_eq(on(MLAC_ON_LOST, MLA_DISCONNECTED), MLAC_DO_HANG_UP); /* while it greets */
    to_greet();
    ck_assert_int_eq(greeted(1, 12), MLAC_DO_ASK);
    ck_assert_int_eq(on(MLAC_ON_LOST, MLA_DISCONNECTED), MLAC_DO_HANG_UP); /* while it asks */
    to_greet();
    ck_assert_int_eq(greeted(1, 13), MLAC_DO_ASK);
    ck_assert_uint_eq(r.fence_client, 11);
    ck_assert_int_eq(on(MLAC_ON_GONE, MLA_OK), MLAC_DO_RESTORE);
    ck_assert_int_eq(on(MLAC_ON_LOST, MLA_DISCONNECTED), MLAC_DO_HANG_UP); /* while it registers */
    to_greet();
    ck_assert_int_eq(greeted(1, 14), MLAC_DO_ASK);
    ck_assert_uint_eq(r.fence_client, 13);
    /* The daemon dies while it is asked: the next one has none of this. */
    ck_assert_int_eq(on(MLAC_ON_LOST, MLA_DISCONNECTED), MLAC_DO_HANG_UP);
    to_greet();
    ck_assert_int_eq(greeted(2, 15), MLAC_DO_RESTORE);
    ck_assert_uint_eq(r.fence_client, 0);
}
END_TEST

START_TEST(pauses_double_up_to_a_cap_with_jitter)
{
    uint64_t longest = config.first_ns;
    begin(&config);
    on(MLAC_ON_LOST, MLA_DISCONNECTED);
    for (unsigned i = 0; i < 20; i++) {
        ck_assert_uint_ge(r.wake_ns - now, longest / 2);
        ck_assert_uint_le(r.wake_ns - now, longest);
        ck_assert_int_eq(due(), MLAC_DO_CONNECT);
        ck_assert_int_eq(on(MLAC_ON_FAILED, MLA_DISCONNECTED), MLAC_DO_HANG_UP);
        longest = 2 * longest < config.last_ns ? 2 * longest : config.last_ns;
    }
}
END_TEST

/* A thousand clients of one daemon do not come back in one moment. */
START_TEST(clients_come_apart)
{
    enum { N = 1000, SLOTS = 10 };
    unsigned at[SLOTS] = {0};
    for (unsigned i = 0; i < N; i++) {
        struct mlac_recover_config c = config;
        c.seed = 1000 + i;
        begin(&c);
        on(MLAC_ON_LOST, MLA_DISCONNECTED);
        for (unsigned k = 0; k < 12; k++) {
            due();
            on(MLAC_ON_FAILED, MLA_DISCONNECTED);
        }
        uint64_t pause = r.wake_ns - now;
        at[(pause - config.last_ns / 2) * SLOTS / (config.last_ns / 2 + 1)]++;
    }
    for (unsigned i = 0; i < SLOTS; i++) {
        ck_assert_uint_gt(at[i], N / SLOTS / 2);
        ck_assert_uint_lt(at[i], N / SLOTS * 2);
    }
}
END_TEST

/* Back-off outlives a connection that did not last: what ends it at once may do so again. */
START_TEST(short_lives_do_not_reset_the_back_off)
{
    begin(&config);
    on(MLAC_ON_LOST, MLA_DISCONNECTED);
    for (unsigned i = 0; i < 12; i++) {
        to_greet();
        ck_assert_int_eq(greeted(2 + i, 20 + i), MLAC_DO_RESTORE);
        ck_assert_int_eq(on(MLAC_ON_COMPLETE, MLA_OK), MLAC_DO_GO);
        now += 3 * MS;
        ck_assert_int_eq(on(MLAC_ON_LOST, MLA_DISCONNECTED), MLAC_DO_HANG_UP);
    }
    ck_assert_uint_ge(r.wake_ns - now, config.last_ns / 2);
    to_greet();
    greeted(50, 50);
    on(MLAC_ON_COMPLETE, MLA_OK);
    now += config.last_ns;
    on(MLAC_ON_LOST, MLA_DISCONNECTED);
    ck_assert_uint_le(r.wake_ns - now, config.first_ns);
}
END_TEST

START_TEST(gives_up_at_its_limit)
{
    begin(&config);
    uint64_t lost = now;
    on(MLAC_ON_LOST, MLA_DISCONNECTED);
    enum mlac_recover_act act;
    unsigned n = 0;
    while ((act = due()) == MLAC_DO_CONNECT) {
        ck_assert_uint_lt(++n, 200);
        ck_assert_uint_lt(now, lost + config.limit_ns);
        if (on(MLAC_ON_FAILED, MLA_OVERLOADED) != MLAC_DO_HANG_UP)
            break;
    }
    ck_assert_int_eq(act, MLAC_DO_GIVE_UP);
    ck_assert_uint_eq(now, lost + config.limit_ns);
    ck_assert_int_eq(r.why, MLA_OVERLOADED);
    ck_assert_int_eq(on(MLAC_ON_DUE, MLA_OK), MLAC_DO_REST);
    ck_assert_int_eq(on(MLAC_ON_LOST, MLA_OK), MLAC_DO_REST);
}
END_TEST

START_TEST(gives_up_in_every_phase)
{
    for (unsigned phase = 0; phase < 3; phase++) {
        begin(&config);
        uint64_t lost = now;
        on(MLAC_ON_LOST, MLA_DISCONNECTED);
        to_greet();
        if (phase == 0) { /* HELLO is never answered: other sockets are tried until the end */
            enum mlac_recover_act act;
            while ((act = due()) != MLAC_DO_GIVE_UP)
                if (act == MLAC_DO_CONNECT)
                    ck_assert_int_eq(on(MLAC_ON_CONNECTED, MLA_OK), MLAC_DO_GREET);
        } else if (phase == 1) { /* it never lets go */
            enum mlac_recover_act act = greeted(1, 12);
            while (act != MLAC_DO_GIVE_UP) {
                ck_assert_int_eq(act, MLAC_DO_ASK);
                on(MLAC_ON_PRESENT, MLA_OK);
                act = due();
            }
        } else { /* a registration is never answered */
            greeted(2, 12);
            ck_assert_int_eq(due(), MLAC_DO_GIVE_UP);
        }
        ck_assert_uint_eq(now, lost + config.limit_ns);
    }
}
END_TEST

START_TEST(for_ever_means_for_ever)
{
    struct mlac_recover_config c = config;
    c.limit_ns = UINT64_MAX;
    begin(&c);
    on(MLAC_ON_LOST, MLA_DISCONNECTED);
    for (unsigned i = 0; i < 100000; i++) {
        ck_assert_int_eq(due(), MLAC_DO_CONNECT);
        ck_assert_int_eq(on(MLAC_ON_FAILED, MLA_DISCONNECTED), MLAC_DO_HANG_UP);
    }
    to_greet();
    ck_assert_int_eq(greeted(1, 12), MLAC_DO_ASK);
    ck_assert_int_eq(on(MLAC_ON_GONE, MLA_OK), MLAC_DO_RESTORE);
    ck_assert_uint_eq(r.wake_ns, UINT64_MAX);
}
END_TEST

/* What another attempt would not change ends it; what passes does not. */
START_TEST(refusals_of_a_connection)
{
    static const enum mla_status final[] = {MLA_PERMISSION_DENIED, MLA_VERSION_MISMATCH, MLA_WRONG_DEVICE,
                                            MLA_UNSUPPORTED, MLA_PROTOCOL_ERROR};
    static const enum mla_status passing[] = {MLA_DISCONNECTED,  MLA_DRAINING,     MLA_OVERLOADED,
                                              MLA_OUT_OF_MEMORY, MLA_SLOW_PEER,    MLA_DEVICE_LOST,
                                              MLA_INTERNAL,      MLA_SYSTEM_ERROR, MLA_TIMED_OUT};
    for (size_t i = 0; i < sizeof(final) / sizeof(final[0]); i++) {
        begin(&config);
        ck_assert_int_eq(on(MLAC_ON_LOST, final[i]), MLAC_DO_GIVE_UP);
        begin(&config);
        on(MLAC_ON_LOST, MLA_DISCONNECTED);
        to_greet();
        ck_assert_int_eq(on(MLAC_ON_FAILED, final[i]), MLAC_DO_GIVE_UP);
        ck_assert_int_eq(r.why, final[i]);
    }
    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++) {
        begin(&config);
        ck_assert_int_eq(on(MLAC_ON_LOST, passing[i]), MLAC_DO_HANG_UP);
        to_greet();
        ck_assert_int_eq(on(MLAC_ON_FAILED, passing[i]), MLAC_DO_HANG_UP);
    }
}
END_TEST

START_TEST(refusals_of_an_object)
{
    begin(&config);
    on(MLAC_ON_LOST, MLA_DISCONNECTED);
    to_greet();
    ck_assert_int_eq(greeted(2, 12), MLAC_DO_RESTORE);
    /* The quota may still be another's, whose connection ends as this one did. */
    ck_assert_int_eq(on(MLAC_ON_REFUSED, MLA_QUOTA), MLAC_DO_REST);
    ck_assert_int_eq(due(), MLAC_DO_RESTORE);
    ck_assert_int_eq(on(MLAC_ON_RESTORED, MLA_OK), MLAC_DO_RESTORE);
    /* What is wrong stays wrong. */
    ck_assert_int_eq(on(MLAC_ON_REFUSED, MLA_BAD_HANDLE), MLAC_DO_SKIP);
    ck_assert_int_eq(on(MLAC_ON_REFUSED, MLA_ALREADY_EXISTS), MLAC_DO_SKIP);
    /* Until the limit, at which the handle ends rather than the object. */
    unsigned n = 0;
    enum mlac_recover_act act;
    do {
        ck_assert_uint_lt(++n, 1000);
        ck_assert_int_eq(on(MLAC_ON_REFUSED, MLA_OUT_OF_MEMORY), MLAC_DO_REST);
        act = due();
    } while (act == MLAC_DO_RESTORE);
    ck_assert_int_eq(act, MLAC_DO_GIVE_UP);
    /* A daemon that drains makes room for the next one. */
    begin(&config);
    on(MLAC_ON_LOST, MLA_DISCONNECTED);
    to_greet();
    greeted(2, 12);
    ck_assert_int_eq(on(MLAC_ON_REFUSED, MLA_DRAINING), MLAC_DO_HANG_UP);
    to_greet();
    ck_assert_int_eq(greeted(2, 13), MLAC_DO_ASK); /* it had begun to register */
    ck_assert_uint_eq(r.fence_client, 12);
}
END_TEST

/* ---- jobs ---- */

START_TEST(fates_of_jobs)
{
    enum mla_status status = MLA_OK;
    struct mlac_job_facts f = {.sent = true, .ends = 1, .expire_ns = UINT64_MAX};
    ck_assert_int_eq(mlac_job_cut(&f, &status), MLAC_KEEP);
    f.ends = MLAC_TRIES_MAX - 1;
    ck_assert_int_eq(mlac_job_cut(&f, &status), MLAC_KEEP);
    f.ends = MLAC_TRIES_MAX; /* it may be what ends them */
    ck_assert_int_eq(mlac_job_cut(&f, &status), MLAC_ANSWER);
    ck_assert_int_eq(status, MLA_DISCONNECTED);
    f = (struct mlac_job_facts){.ordered = true, .sent = true, .ends = 1, .expire_ns = UINT64_MAX};
    ck_assert_int_eq(mlac_job_cut(&f, &status), MLAC_ANSWER);
    ck_assert_int_eq(status, MLA_DISCONNECTED);
    f = (struct mlac_job_facts){.device_lost = true, .sent = true, .ends = 1, .expire_ns = UINT64_MAX};
    ck_assert_int_eq(mlac_job_cut(&f, &status), MLAC_ANSWER);
    ck_assert_int_eq(status, MLA_DEVICE_LOST);

    /* Cancelled, or late: said only when it is known that nobody touches its memory. */
    f = (struct mlac_job_facts){.sent = true, .cancelled = true, .ends = 1, .expire_ns = UINT64_MAX};
    ck_assert_int_eq(mlac_job_due(&f, false, 5, &status), MLAC_KEEP);
    ck_assert_int_eq(mlac_job_due(&f, true, 5, &status), MLAC_ANSWER);
    ck_assert_int_eq(status, MLA_CANCELLED);
    f.sent = false;
    ck_assert_int_eq(mlac_job_due(&f, false, 5, &status), MLAC_ANSWER);
    ck_assert_int_eq(status, MLA_CANCELLED);
    f = (struct mlac_job_facts){.sent = true, .ends = 1, .expire_ns = 10};
    ck_assert_int_eq(mlac_job_due(&f, true, 9, &status), MLAC_KEEP);
    ck_assert_int_eq(mlac_job_due(&f, true, 10, &status), MLAC_ANSWER);
    ck_assert_int_eq(status, MLA_TIMED_OUT);
    ck_assert_int_eq(mlac_job_due(&f, false, 10, &status), MLAC_ANSWER);
    ck_assert_int_eq(status, MLA_DISCONNECTED);
    f.sent = false;
    ck_assert_int_eq(mlac_job_due(&f, false, 10, &status), MLAC_ANSWER);
    ck_assert_int_eq(status, MLA_TIMED_OUT);
}
END_TEST

MLA_SUITE(recover)
{
    TCase *tc = mla_tcase(suite, "stories");
    tcase_add_test(tc, another_daemon_is_not_asked_about_the_old_connection);
    tcase_add_test(tc, the_same_daemon_lets_go_first);
    tcase_add_test(tc, cut_again_at_every_point);
    tcase_add_test(tc, pauses_double_up_to_a_cap_with_jitter);
    tcase_add_test(tc, clients_come_apart);
    tcase_add_test(tc, short_lives_do_not_reset_the_back_off);
    tcase_add_test(tc, gives_up_at_its_limit);
    tcase_add_test(tc, gives_up_in_every_phase);
    tcase_add_test(tc, for_ever_means_for_ever);
    tcase_add_test(tc, refusals_of_a_connection);
    tcase_add_test(tc, refusals_of_an_object);
    tc = mla_tcase(suite, "jobs");
    tcase_add_test(tc, fates_of_jobs);
}
