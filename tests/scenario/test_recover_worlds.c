/* The client's recovery in random worlds: daemons die, restart, freeze and cut connections, in virtual time; and every
 * job is answered once, and never sent while an earlier sending of it may still write. */
#include "client/recover.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/prng.h"

#define MS UINT64_C(1000000)

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

#define JOBS    16u
#define CLIENTS 64u /* connections of one world, at most */
#define OBJECTS 3u

struct job {
    struct mlac_job_facts facts;
    bool in_use, at_daemon;
    unsigned answers;
    uint64_t conn;     /* it was sent on last */
    uint64_t ends_at;  /* the daemon that runs it is done with its memory then */
    uint64_t ran_boot; /* that daemon */
};

/* One client, and daemons that come and go. The daemon of a boot runs each job for a while; a cut connection's jobs run
 * on, a dead daemon's do not. */
struct world {
    struct prng p;
    uint64_t boot; /* 0: no daemon */
    uint64_t next_boot, next_client;
    uint64_t change_at;
    bool frozen;
    bool connected;
    uint64_t client; /* of the connection */
    uint64_t busy_until[CLIENTS];
    uint64_t busy_boot[CLIENTS];
    unsigned made; /* objects of this connection */
    struct job jobs[JOBS];
    enum { NOTHING, HELLO, FENCE, OBJECT } asked; /* what the daemon has not answered */
    uint64_t answer_at;
    unsigned submitted, answered, ok, ups, restarts;
};

static struct world w;

static void answer(struct job *j, enum mla_status status)
{
    ck_assert(j->in_use);
    ck_assert_uint_eq(j->answers++, 0);
    /* Any answer but DISCONNECTED: nothing of it is running anywhere. */
    if (status != MLA_DISCONNECTED && j->ran_boot == w.boot && w.boot)
        ck_assert_uint_ge(now, j->ends_at);
    w.answered++;
    w.ok += status == MLA_OK;
    j->in_use = false;
}

static void send_jobs(void)
{
    for (struct job *j = w.jobs; j < w.jobs + JOBS; j++) {
        enum mla_status status;
        if (!j->in_use || j->at_daemon)
            continue;
        if (mlac_job_due(&j->facts, true, now, &status) == MLAC_ANSWER) {
            answer(j, status);
            continue;
        }
        /* Never a second time while the first may still write. */
        if (j->ran_boot == w.boot)
            ck_assert_uint_ge(now, j->ends_at);
        j->facts.sent = j->at_daemon = true;
        j->conn = w.client;
        j->ran_boot = w.boot;
        j->ends_at = now + prng_below(&w.p, 50) * MS;
        if (w.busy_until[w.client] < j->ends_at)
            w.busy_until[w.client] = j->ends_at;
    }
}

static void ask(int what)
{
    w.asked = (unsigned)what;
    w.answer_at = now + prng_below(&w.p, 2000) * 1000;
}

static void carry_out(enum mlac_recover_act act)
{
    for (;;) {
        switch (act) {
        case MLAC_DO_CONNECT:
            if (!w.boot) {
                act = on(MLAC_ON_FAILED, MLA_DISCONNECTED);
                continue;
            }
            w.connected = true;
            w.client = 0;
            act = on(MLAC_ON_CONNECTED, MLA_OK);
            continue;
        case MLAC_DO_GREET:
            ask(HELLO);
            return;
        case MLAC_DO_ASK:
            ck_assert_uint_eq(r.fence_boot, w.boot);
            ask(FENCE);
            return;
        case MLAC_DO_SKIP:
        case MLAC_DO_RESTORE:
            ck_assert(w.connected);
            /* Whatever this daemon had of this client is over. */
            for (unsigned i = 1; i < CLIENTS; i++)
                if (i != w.client && w.busy_boot[i] == w.boot)
                    ck_assert_uint_ge(now, w.busy_until[i]);
            if (w.made == OBJECTS) {
                act = on(MLAC_ON_COMPLETE, MLA_OK);
                continue;
            }
            ask(OBJECT);
            return;
        case MLAC_DO_GO:
            ck_assert_uint_eq(w.made, OBJECTS);
            w.ups++;
            w.restarts += r.restarted;
            send_jobs();
            return;
        case MLAC_DO_HANG_UP:
            w.connected = false;
            w.asked = NOTHING;
            return;
        default:
            return;
        }
    }
}

static void lose(void)
{
    if (!w.connected)
        return;
    bool up = r.state == MLAC_RECOVER_UP;
    w.connected = false;
    w.asked = NOTHING;
    w.made = 0;
    for (struct job *j = w.jobs; up && j < w.jobs + JOBS; j++) {
        enum mla_status status;
        if (!j->in_use)
            continue;
        j->facts.ends += j->at_daemon;
        j->at_daemon = false;
        if (mlac_job_cut(&j->facts, &status) == MLAC_ANSWER)
            answer(j, status);
    }
    carry_out(on(MLAC_ON_LOST, MLA_DISCONNECTED));
}

static void daemon_answers(void)
{
    int what = (int)w.asked;
    w.asked = NOTHING;
    if (what == HELLO) {
        w.client = ++w.next_client;
        ck_assert_uint_lt(w.client, CLIENTS);
        w.busy_boot[w.client] = w.boot;
        w.made = 0;
        carry_out(greeted(w.boot, w.client));
    } else if (what == FENCE) {
        bool busy = now < w.busy_until[r.fence_client];
        carry_out(on(busy ? MLAC_ON_PRESENT : MLAC_ON_GONE, MLA_OK));
    } else if (prng_below(&w.p, 10) == 0) {
        carry_out(on(MLAC_ON_REFUSED, MLA_QUOTA));
    } else {
        w.made++;
        carry_out(on(MLAC_ON_RESTORED, MLA_OK));
    }
}

static void world_changes(void)
{
    uint32_t what = prng_below(&w.p, 4);
    w.change_at = now + (1 + prng_below(&w.p, 300)) * MS;
    if (w.frozen) {
        w.frozen = false;
    } else if (!w.boot) {
        w.boot = ++w.next_boot;
    } else if (what == 0) { /* killed: what it ran ends with it */
        w.boot = 0;
        lose();
    } else if (what == 1) {
        w.frozen = true;
    } else {
        lose(); /* cut: its jobs run on */
    }
}

static void submit(void)
{
    struct job *j = &w.jobs[prng_below(&w.p, JOBS)];
    if (j->in_use)
        return;
    *j = (struct job){.in_use = true, .facts = {.expire_ns = UINT64_MAX}};
    j->facts.ordered = prng_below(&w.p, 8) == 0;
    if (prng_below(&w.p, 4) == 0)
        j->facts.expire_ns = now + prng_below(&w.p, 200) * MS;
    if (j->facts.ordered && r.state != MLAC_RECOVER_UP) {
        j->in_use = false; /* refused: it was not sent */
        return;
    }
    w.submitted++;
    if (r.state == MLAC_RECOVER_UP)
        send_jobs();
}

static void job_events(void)
{
    for (struct job *j = w.jobs; j < w.jobs + JOBS; j++) {
        enum mla_status status;
        if (!j->in_use)
            continue;
        if (j->at_daemon && !w.frozen && now >= j->ends_at) {
            j->at_daemon = false;
            answer(j, MLA_OK);
        } else if (!j->at_daemon && r.state != MLAC_RECOVER_UP) {
            bool clear = r.state == MLAC_RECOVER_RESTORE;
            if (mlac_job_due(&j->facts, clear, now, &status) == MLAC_ANSWER)
                answer(j, status);
        }
    }
}

static unsigned total_ups, total_restarts, total_ok, total_answered;

static void run_world(uint64_t seed)
{
    memset(&w, 0, sizeof(w));
    w.p.state = seed;
    const struct mlac_recover_config c = {
        .limit_ns = UINT64_MAX, .first_ns = 2 * MS, .last_ns = 50 * MS, .greet_ns = 10000 * MS, .seed = seed};
    w.boot = w.next_boot = 1;
    w.client = w.next_client = 1;
    w.busy_boot[1] = 1;
    w.connected = true;
    w.made = OBJECTS;
    now = MS;
    mlac_recover_init(&r, &c);
    mlac_recover_up(&r, now, 1, 1);
    w.change_at = now + 20 * MS;
    for (unsigned i = 0; i < 6000; i++) {
        now += 500000;
        bool calm = i >= 4000 || w.next_client > CLIENTS - 20; /* and then all is answered */
        if (!calm && now >= w.change_at)
            world_changes();
        if (calm) {
            w.frozen = false;
            if (!w.boot)
                w.boot = ++w.next_boot;
        }
        if (w.asked != NOTHING && !w.frozen && now >= w.answer_at)
            daemon_answers();
        if (now >= r.wake_ns)
            carry_out(on(MLAC_ON_DUE, MLA_OK));
        if (i < 4000)
            submit();
        job_events();
    }
    ck_assert_int_eq(r.state, MLAC_RECOVER_UP);
    ck_assert_uint_eq(w.answered, w.submitted);
    total_ups += w.ups;
    total_restarts += w.restarts;
    total_ok += w.ok;
    total_answered += w.answered;
}

START_TEST(random_worlds)
{
    const char *fixed = getenv("MLA_TEST_SEED");
    uint64_t first = fixed ? strtoull(fixed, NULL, 10) : 1;
    for (uint64_t seed = first; seed < first + (fixed ? 1 : 300); seed++)
        run_world(seed);
    if (fixed)
        return;
    /* The worlds are what they should be: many reconnects, to the same daemon and to others. */
    ck_assert_uint_gt(total_ups, 1000);
    ck_assert_uint_gt(total_restarts, 300);
    ck_assert_uint_gt(total_ups - total_restarts, 300);
    ck_assert_uint_gt(total_ok * 10, total_answered * 6);
    ck_assert_uint_lt(total_ok, total_answered);
}
END_TEST

MLA_SUITE(recover_worlds)
{
    TCase *tc = mla_tcase(suite, "random");
    tcase_add_test(tc, random_worlds);
}
