/* What stands between the loop and a device thread: the ring of requests, the ring of events, the two descriptors that
 * wake either side, the progress counter. Shared by all backends. */
#ifndef MLA_DAEMON_BACKEND_PORT_H
#define MLA_DAEMON_BACKEND_PORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/backend/backend.h"
#include "daemon/util/ring.h"

#define BE_PORT_RECORDS 1024u               /* requests, and events, that may wait */
#define BE_PORT_IDLE_NS UINT64_C(500000000) /* longest pause of a device thread: keeps the progress counter alive */

struct be_port {
    struct mla_ring requests; /* struct be_request *, loop to device */
    struct mla_ring events;   /* struct be_event, device to loop */
    struct be_request **request_storage;
    struct be_event *event_storage;
    int wake_fd;  /* eventfd of the device thread: a request waits, or something else that it should look at */
    int event_fd; /* eventfd of the loop: events wait */
    /* Who looks at its ring by itself is not woken, which costs a system call on either side. */
    _Atomic unsigned loop_looks;   /* be_port_spin() */
    _Atomic unsigned thread_rests; /* in be_port_pause() */
    _Atomic bool stop;
    _Atomic uint64_t progress;
    uint64_t active_ns; /* device thread: when something happened last */
    /* Loop: an event that be_port_poll() took from the ring only to learn that there are more. */
    struct be_event spare;
    bool has_spare;
};

/* 0, or -errno with nothing left behind. close() also for a port that is all zero. */
int be_port_open(struct be_port *port);
void be_port_close(struct be_port *port);

/* Loop's thread; the slots of struct be_ops of the same names. */
int be_port_submit(struct be_port *port, struct be_request *request);
size_t be_port_poll(struct be_port *port, struct be_event *out, size_t cap);
void be_port_spin(struct be_port *port, bool spins);
uint64_t be_port_progress(const struct be_port *port);

/* Tells the device thread to end. */
void be_port_stop(struct be_port *port);

/* Device thread. */
bool be_port_stopping(const struct be_port *port);
void be_port_beat(struct be_port *port);
bool be_port_take(struct be_port *port, struct be_request **request);
bool be_port_idle(const struct be_port *port); /* no request waits to be taken */

/* Waits while the loop does not take events; only a closing backend drops one. */
void be_port_report(struct be_port *port, const struct be_event *event);

/* BE_DONE of a request; error may be NULL. */
void be_port_done(struct be_port *port, struct be_request *request, const struct mla_error *error);

/* Until a request comes, the wake descriptor is written or that time is over. */
void be_port_pause(struct be_port *port, uint64_t ns);

/* The same while no request can be taken: none ends it. */
void be_port_nap(struct be_port *port, uint64_t ns);

/* How long to pause before the next look at what is polled when nothing has happened for quiet_ns: 0 for the first
 * spin_ns, then pauses that grow from least_ns to a millisecond, so that what comes often is seen at once and waiting
 * costs little CPU. */
uint64_t be_port_pause_ns(uint64_t quiet_ns, uint64_t spin_ns, uint64_t least_ns);

#endif
