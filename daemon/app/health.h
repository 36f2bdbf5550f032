/* Whether a daemon that takes work is as well as it should be: conditions, each judged once a second by what has
 * happened since the look before. A condition counts as there when enough of the last looks found it, and as over when
 * a row of looks did not, so a state neither flickers nor hangs on. Looks are counted, and of a launch that runs the
 * time by which looks were late does not count: a daemon that was stopped, or whose machine slept, has missed looks,
 * not found something bad in each. Pure: no clock, no log.
 *
 * No condition can be brought about by a client's bad requests alone; overloaded is what all clients together want. */
#ifndef MLA_DAEMON_APP_HEALTH_H
#define MLA_DAEMON_APP_HEALTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEALTH_LOOK_MS UINT64_C(1000)       /* from look to look */
#define HEALTH_LOOK_NS UINT64_C(1000000000) /* the same */

/* X(name, of the last window looks, at least raise found it, clear looks without it end it, what it means) */
#define HEALTH_REASON_LIST(X)                                                                                          \
    X(device_stalled, 5, 5, 10, "the device thread does not advance: a call of the driver does not return")            \
    X(launch_overdue, 1, 1, 10, "a launch runs far longer than it should")                                             \
    X(device_lag, 10, 3, 10, "the device thread begins late with launches")                                            \
    X(loop_lag, 10, 3, 10, "the event loop keeps clients waiting")                                                     \
    X(predictions, 60, 30, 60, "launches take many times longer or shorter than the planner's costs say")              \
    X(overloaded, 30, 27, 10, "work is refused for lack of room, for half a minute now")                               \
    X(job_errors, 60, 3, 60, "jobs end with errors of the daemon or the device")                                       \
    X(descriptors, 1, 1, 10, "connections wait, as no descriptors are left")

enum health_reason {
#define HEALTH_ENUM(name, window, raise, clear, text) HEALTH_##name,
    HEALTH_REASON_LIST(HEALTH_ENUM)
#undef HEALTH_ENUM
        HEALTH_REASONS
};

/* Bounds of a look. */
#define HEALTH_LOOP_LAG_NS   UINT64_C(250000000)
#define HEALTH_DEVICE_LAG_NS UINT64_C(250000000)
#define HEALTH_OVERDUE_NS    UINT64_C(10000000000) /* beyond HEALTH_OVERDUE_TIMES what was predicted */
#define HEALTH_OVERDUE_TIMES 8u
#define HEALTH_RATIO         8u /* launches against predictions, either way, in looks with enough of either: */
#define HEALTH_RATIO_NS      UINT64_C(50000000) /* of a few short launches the waking up is most of what is measured */

/* What is seen at one moment. */
struct health_look {
    uint64_t device_progress; /* of the device thread: be_progress() */
    uint64_t late_ns;         /* how late this look is */
    uint64_t turn_max_ns;     /* longest turn of the loop since the look before, or late_ns */
    uint64_t device_lag_ns;   /* latest beginning of a launch since the look before */
    uint64_t running_ns;      /* how long the launch that runs has been running; 0: none */
    uint64_t running_predicted_ns;
    /* Since the start: */
    uint64_t predicted_ns, measured_ns; /* of launches that ended */
    uint64_t refused;                   /* requests, OVERLOADED */
    uint64_t errors;                    /* jobs and steps that ended INTERNAL or OUT_OF_MEMORY */
    uint64_t accept_pauses;
};

struct health {
    struct health_look before;
    uint64_t found[HEALTH_REASONS];  /* of the last 64 looks, a bit each; the latest is bit 0 */
    uint64_t raised[HEALTH_REASONS]; /* times, since the start */
    uint64_t late_ns;                /* looks, since about when the launch that runs began */
    uint32_t now;                    /* bits of the conditions that are there */
};

void health_start(struct health *h, const struct health_look *first);
/* The next look. True when the set of conditions that are there has changed. */
bool health_step(struct health *h, const struct health_look *look);
bool health_is(const struct health *h, enum health_reason reason);
const char *health_name(enum health_reason reason);
const char *health_meaning(enum health_reason reason);
/* "name: meaning; name: meaning" of the conditions that are there, or "name, name"; cut where there is no room, "" for
 * none. */
void health_text(const struct health *h, char *out, size_t bytes);
void health_names(const struct health *h, char *out, size_t bytes);

#endif
