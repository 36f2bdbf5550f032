/* The port between the loop and a device thread: nothing gets lost between who looks by itself and who sleeps, and who
 * looks is not woken. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "daemon/backend/port.h"
#include "daemon/util/clock.h"
#include "tests/support/check_main.h"
#include "tests/support/prng.h"

#define ROUNDS  20000u
#define LOST_NS (20 * MLA_NS_PER_S) /* nobody wakes whom, ever */

static struct be_port port;
static struct be_request requests[ROUNDS];

static bool readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, ms) == 1;
}

static void setup(void)
{
    ck_assert_int_eq(be_port_open(&port), 0);
}

static void teardown(void)
{
    be_port_close(&port);
}

static void report(unsigned i)
{
    be_port_report(&port, &(struct be_event){.kind = BE_DONE, .request = &requests[i]});
}

START_TEST(who_looks_is_not_woken)
{
    struct be_event event;
    report(0);
    ck_assert(readable(port.event_fd, 0));
    be_port_spin(&port, true);
    ck_assert(!readable(port.event_fd, 0)); /* what it was told is taken back: it looks */
    ck_assert_uint_eq(be_port_poll(&port, &event, 1), 1);
    ck_assert_ptr_eq(event.request, &requests[0]);
    report(1);
    report(2);
    ck_assert(!readable(port.event_fd, 0));
    ck_assert_uint_eq(be_port_poll(&port, &event, 1), 1); /* the second is set aside */
    be_port_spin(&port, false);
    ck_assert(readable(port.event_fd, 0));
    ck_assert_uint_eq(be_port_poll(&port, &event, 1), 1);
    ck_assert_ptr_eq(event.request, &requests[2]);
    ck_assert(!readable(port.event_fd, 0));
    be_port_spin(&port, true);
    be_port_spin(&port, false); /* nothing is left */
    ck_assert(!readable(port.event_fd, 0));
    report(3);
    ck_assert(readable(port.event_fd, 0));
}
END_TEST

START_TEST(a_thread_that_looks_is_not_woken)
{
    struct be_request *request;
    ck_assert_int_eq(be_port_submit(&port, &requests[0]), 0);
    ck_assert(!readable(port.wake_fd, 0));
    uint64_t from = mla_now_ns();
    be_port_pause(&port, LOST_NS); /* there is one: no pause */
    ck_assert_uint_lt(mla_now_ns() - from, LOST_NS);
    ck_assert(be_port_take(&port, &request));
    ck_assert_ptr_eq(request, &requests[0]);
}
END_TEST

/* Who cannot take requests does not run in circles for those that wait, and ends its nap for everything else. */
START_TEST(a_nap_is_not_for_requests)
{
    const uint64_t nap_ns = 20 * MLA_NS_PER_MS;
    struct be_request *request;
    ck_assert_int_eq(be_port_submit(&port, &requests[0]), 0);
    uint64_t from = mla_now_ns();
    be_port_nap(&port, nap_ns);
    ck_assert_uint_ge(mla_now_ns() - from, nap_ns);
    ck_assert_int_eq(be_port_submit(&port, &requests[1]), 0);
    ck_assert(!readable(port.wake_fd, 0));
    be_port_stop(&port);
    from = mla_now_ns();
    be_port_nap(&port, LOST_NS);
    ck_assert_uint_lt(mla_now_ns() - from, LOST_NS);
    for (unsigned i = 0; i < 2; i++) {
        ck_assert(be_port_take(&port, &request));
        ck_assert_ptr_eq(request, &requests[i]);
    }
}
END_TEST

/* ---- two threads that sleep and look by turns ---- */

static void *device(void *arg)
{
    struct prng prng = {*(const uint64_t *)arg + 1};
    struct be_request *request;
    for (unsigned i = 0; i < ROUNDS;) {
        if (be_port_take(&port, &request)) {
            be_port_done(&port, request, NULL);
            i++;
        } else if (prng_below(&prng, 4) == 0) {
            be_port_pause(&port, LOST_NS);
        }
    }
    return NULL;
}

/* The loop sends up to so many at once, then looks, or sleeps until it is woken, or begins or ends to look in between.
 */
START_TEST(nothing_is_lost_between_sleep_and_sight)
{
    uint64_t seed = (uint64_t)_i;
    struct prng prng = {seed};
    struct be_event events[3];
    unsigned sent = 0, seen = 0;
    bool spins = false;
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, device, &seed), 0);
    while (seen < ROUNDS) {
        for (uint32_t n = prng_below(&prng, 3); n > 0 && sent < ROUNDS && sent - seen < 8; n--)
            ck_assert_int_eq(be_port_submit(&port, &requests[sent++]), 0);
        if (prng_below(&prng, 3) == 0) {
            spins = !spins;
            be_port_spin(&port, spins);
        }
        if (!spins && sent > seen && !readable(port.event_fd, (int)(LOST_NS / MLA_NS_PER_MS)))
            ck_abort_msg("no event although %u are in flight", sent - seen);
        size_t n = be_port_poll(&port, events, 1 + prng_below(&prng, 3));
        for (size_t i = 0; i < n; i++)
            if (events[i].request != &requests[seen++])
                ck_abort_msg("event %u is another's", seen);
    }
    pthread_join(thread, NULL);
    ck_assert_uint_eq(be_port_poll(&port, events, 3), 0);
}
END_TEST

MLA_SUITE(be_port)
{
    TCase *tc = mla_tcase_timeout(suite, "port", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, who_looks_is_not_woken);
    tcase_add_test(tc, a_thread_that_looks_is_not_woken);
    tcase_add_test(tc, a_nap_is_not_for_requests);
    tcase_add_loop_test(tc, nothing_is_lost_between_sleep_and_sight, 0, 4);
}
