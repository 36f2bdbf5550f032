/* Lines of the log as entries of systemd's journal, with a field for each pair: the journal's documented native
 * protocol (one datagram of NAME=value lines to /run/systemd/journal/socket), without libsystemd as in notify.h.
 *
 *     event=client_in client=01 name="two words"   becomes
 *     MESSAGE=event=client_in client=01 name="two words"  PRIORITY=6  SYSLOG_IDENTIFIER=mlad
 *     MLAD_EVENT=client_in  MLAD_CLIENT=01  MLAD_NAME=two words
 */
#ifndef MLA_UTIL_JOURNAL_H
#define MLA_UTIL_JOURNAL_H

#include <stddef.h>

/* Connects. A descriptor, or -errno: there is no journal. */
int mla_journal_open(const char *path);

/* Writes the entry for a line of n bytes as mla_log() makes them, without its newline, into out; returns its length, or
 * 0 when it does not fit. */
size_t mla_journal_entry(int priority, const char *line, size_t n, char *out, size_t cap);

/* 0, or -errno: the line has to go elsewhere. */
int mla_journal_send(int fd, int priority, const char *line, size_t n);

#endif
