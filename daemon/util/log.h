/* key=value log lines on stderr, one write(2) each:
 *
 *     mla_log(MLA_LOG_INFO, "peer_gone", "peer=%" PRIu64 " uid=%u name=%s", id, uid, name);
 *     time=2026-03-01T10:00:00.123Z level=info event=peer_gone peer=7 uid=1000 name="two words"
 *
 * The event is a string literal and so is the format: "key=<conversions>" pairs with one space between them. A value is
 * quoted and escaped when it is empty or holds blanks, quotes, '=' or bytes outside printable ASCII, so a hostile
 * string cannot forge a pair or a line. Conversions: d i u x X o c s p e f g m with flags, width, precision ('*' too)
 * and hh h l ll z j t; no n, no L. A NULL string prints as "-". Lines above MLA_LOG_LINE_BYTES end in "...".
 *
 * When stderr is the journal's stream, lines go to the journal with a field for each pair (journal.h), or, where its
 * socket cannot be reached, to stderr, time and level giving way to the "<N>" priority prefix of sd-daemon(3).
 *
 * Each call site may write a burst of lines per window; what is beyond is counted, and the next line that the site is
 * allowed ends in suppressed=N. Arguments of lines that are not written are not evaluated. Any thread; errno is kept.
 */
#ifndef MLA_UTIL_LOG_H
#define MLA_UTIL_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MLA_LOG_LINE_BYTES 1024

/* Priorities of syslog(3). */
enum mla_log_level { MLA_LOG_ERROR = 3, MLA_LOG_WARNING = 4, MLA_LOG_NOTICE = 5, MLA_LOG_INFO = 6, MLA_LOG_DEBUG = 7 };

enum mla_log_style { MLA_LOG_STYLE_TERMINAL, MLA_LOG_STYLE_JOURNAL };

/* State of one call site; zero-initialised by mla_log(). */
struct mla_log_site {
    _Atomic uint64_t window_start_ns;
    _Atomic uint32_t written;    /* in this window */
    _Atomic uint32_t suppressed; /* since the last line written */
};

#define mla_log(level, event, ...)                                                                                     \
    do {                                                                                                               \
        static struct mla_log_site mla_log_site_;                                                                      \
        if (mla_log_admit(&mla_log_site_, (level)))                                                                    \
            mla_log_write(&mla_log_site_, (level), "event=" event " " __VA_ARGS__);                                    \
    } while (0)

/* Chooses the style from JOURNAL_STREAM. Without it: stderr, terminal style, level info, 10 lines per second. */
void mla_log_init(void);

/* Lines with a level number above this are not written. */
void mla_log_set_level(enum mla_log_level level);

/* "error", "warning", "notice", "info", "debug" to the level; -EINVAL for anything else. */
int mla_log_level_parse(const char *name, enum mla_log_level *level);

/* Where lines go and how they begin. fd stays the caller's. */
void mla_log_set_output(int fd, enum mla_log_style style);

/* Lines a call site may write per window. */
void mla_log_set_rate(uint32_t burst, uint64_t window_ns);

/* Parts of mla_log(), not called by themselves. */
bool mla_log_admit(struct mla_log_site *site, enum mla_log_level level);
void mla_log_write(struct mla_log_site *site, enum mla_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
