#include "daemon/backend/port.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "daemon/util/clock.h"

#define PAUSE_MOST_NS (1 * MLA_NS_PER_MS)

static void add_one(int fd)
{
    uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

static void drain(int fd)
{
    uint64_t count;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR)
        continue;
}

int be_port_open(struct be_port *p)
{
    memset(p, 0, sizeof *p);
    p->request_storage = calloc(BE_PORT_RECORDS, sizeof *p->request_storage);
    p->event_storage = calloc(BE_PORT_RECORDS, sizeof *p->event_storage);
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = 0;
    if (!p->request_storage || !p->event_storage)
        rc = -ENOMEM;
    else if (p->wake_fd < 0 || p->event_fd < 0)
        rc = -errno;
    if (rc == 0)
        rc = mla_ring_init(&p->requests, p->request_storage, sizeof *p->request_storage, BE_PORT_RECORDS);
    if (rc == 0)
        rc = mla_ring_init(&p->events, p->event_storage, sizeof *p->event_storage, BE_PORT_RECORDS);
    if (rc != 0)
        be_port_close(p);
    return rc;
}

void be_port_close(struct be_port *p)
{
    if (!p->request_storage && !p->event_storage)
        return;
    if (p->wake_fd >= 0)
        close(p->wake_fd);
    if (p->event_fd >= 0)
        close(p->event_fd);
    free(p->request_storage);
    free(p->event_storage);
    p->request_storage = NULL;
    p->event_storage = NULL;
}

/* After a push: whether the other side may be asleep. It says that it will be before it looks at the ring for the last
 * time (say()). Both change the flag, if only by nothing: whoever comes second sees what the first has done before, the
 * record in the ring or the flag. */
static bool must_wake(_Atomic unsigned *flag, unsigned asleep)
{
    return atomic_fetch_add_explicit(flag, 0, memory_order_acq_rel) == asleep;
}

static void say(_Atomic unsigned *flag, unsigned value)
{
    atomic_exchange_explicit(flag, value, memory_order_acq_rel);
}

int be_port_submit(struct be_port *p, struct be_request *request)
{
    if (!mla_ring_push(&p->requests, &request))
        return -EAGAIN;
    if (must_wake(&p->thread_rests, 1))
        add_one(p->wake_fd);
    return 0;
}

size_t be_port_poll(struct be_port *p, struct be_event *out, size_t cap)
{
    size_t n = 0;
    if (!atomic_load_explicit(&p->loop_looks, memory_order_relaxed))
        drain(p->event_fd);
    if (p->has_spare) {
        out[n++] = p->spare;
        p->has_spare = false;
    }
    while (n < cap && mla_ring_pop(&p->events, &out[n]))
        n++;
    /* When the caller's array is full, the descriptor stays readable only if something is left. */
    if (n == cap && mla_ring_pop(&p->events, &p->spare)) {
        p->has_spare = true;
        if (!atomic_load_explicit(&p->loop_looks, memory_order_relaxed))
            add_one(p->event_fd);
    }
    return n;
}

void be_port_spin(struct be_port *p, bool spins)
{
    say(&p->loop_looks, spins);
    if (spins)
        drain(p->event_fd); /* what comes of a report that began before is one wake-up too many */
    else if (p->has_spare || !mla_ring_empty(&p->events))
        add_one(p->event_fd);
}

uint64_t be_port_progress(const struct be_port *p)
{
    return atomic_load_explicit(&p->progress, memory_order_relaxed);
}

void be_port_stop(struct be_port *p)
{
    atomic_store_explicit(&p->stop, true, memory_order_release);
    add_one(p->wake_fd);
}

bool be_port_stopping(const struct be_port *p)
{
    return atomic_load_explicit(&p->stop, memory_order_acquire);
}

void be_port_beat(struct be_port *p)
{
    atomic_fetch_add_explicit(&p->progress, 1, memory_order_relaxed);
}

bool be_port_take(struct be_port *p, struct be_request **request)
{
    return mla_ring_pop(&p->requests, request);
}

bool be_port_idle(const struct be_port *p)
{
    return mla_ring_empty(&p->requests);
}

void be_port_report(struct be_port *p, const struct be_event *event)
{
    while (!mla_ring_push(&p->events, event)) {
        if (be_port_stopping(p))
            return;
        add_one(p->event_fd);
        be_port_beat(p);
        /* Not be_port_pause(), which would take a wake-up that others wait for. */
        struct timespec t = {.tv_nsec = (long)PAUSE_MOST_NS};
        nanosleep(&t, NULL);
    }
    if (must_wake(&p->loop_looks, 0))
        add_one(p->event_fd);
    p->active_ns = mla_now_ns();
}

void be_port_done(struct be_port *p, struct be_request *request, const struct mla_error *error)
{
    struct be_event event = {.kind = BE_DONE, .request = request};
    if (error)
        event.error = *error;
    be_port_report(p, &event);
}

/* Whether it was the descriptor that ended it. */
static bool wait_for_wake(struct be_port *p, uint64_t ns)
{
    struct pollfd poll_fd = {.fd = p->wake_fd, .events = POLLIN};
    struct timespec t = {.tv_sec = (time_t)(ns / MLA_NS_PER_S), .tv_nsec = (long)(ns % MLA_NS_PER_S)};
    return ppoll(&poll_fd, 1, &t, NULL) > 0;
}

void be_port_pause(struct be_port *p, uint64_t ns)
{
    say(&p->thread_rests, 1);
    bool woken = mla_ring_empty(&p->requests) && wait_for_wake(p, ns);
    say(&p->thread_rests, 0);
    if (woken)
        drain(p->wake_fd);
}

void be_port_nap(struct be_port *p, uint64_t ns)
{
    if (wait_for_wake(p, ns))
        drain(p->wake_fd);
}

uint64_t be_port_pause_ns(uint64_t quiet_ns, uint64_t spin_ns, uint64_t least_ns)
{
    if (quiet_ns < spin_ns)
        return 0;
    uint64_t pause = quiet_ns / 8;
    return pause < least_ns ? least_ns : pause > PAUSE_MOST_NS ? PAUSE_MOST_NS : pause;
}
