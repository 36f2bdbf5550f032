/* What the service manager is told: sd_notify(3) by its documented protocol, one datagram of NAME=value lines to the
 * socket that NOTIFY_SOCKET names. Not libsystemd, whose Debian package has no archive: the portable build needs glibc
 * only. Without NOTIFY_SOCKET everything here does nothing. */
#ifndef MLA_UTIL_NOTIFY_H
#define MLA_UTIL_NOTIFY_H

#include <stdint.h>

#define MLA_NOTIFY_BYTES 512 /* of one message; a longer one is cut */

/* Sends the lines, formatted as by printf ("READY=1\nSTATUS=..."). Blank characters in values are the caller's to keep
 * out. 0 sent, 1 nobody asked, -errno. Never blocks for long: the manager's queue is deep, and a full one is -EAGAIN.
 */
int mla_notify(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* How often WATCHDOG=1 must come at least (WATCHDOG_USEC, if WATCHDOG_PID is this process or is not set); 0: never. */
uint64_t mla_notify_watchdog_us(void);

#endif
