#include "daemon/util/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/util/clock.h"
#include "daemon/util/journal.h"

#define JOURNAL_PATH "/run/systemd/journal/socket"

static _Atomic int threshold = MLA_LOG_INFO;
static _Atomic int output_fd = STDERR_FILENO;
static _Atomic int output_style = MLA_LOG_STYLE_TERMINAL;
static _Atomic int journal_fd = -1;
static _Atomic uint32_t rate_burst = 10;
static _Atomic uint64_t rate_window_ns = MLA_NS_PER_S;

static const struct {
    enum mla_log_level level;
    const char *name;
} levels[] = {
    {MLA_LOG_ERROR, "error"}, {MLA_LOG_WARNING, "warning"}, {MLA_LOG_NOTICE, "notice"},
    {MLA_LOG_INFO, "info"},   {MLA_LOG_DEBUG, "debug"},
};
#define N_LEVELS (sizeof(levels) / sizeof(levels[0]))

void mla_log_init(void)
{
    /* systemd sets JOURNAL_STREAM to "device:inode" of the stream; a redirected stderr has other numbers. */
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat st;
    char own[64];
    if (stream == NULL || fstat(STDERR_FILENO, &st) != 0)
        return;
    snprintf(own, sizeof(own), "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    if (strcmp(own, stream) != 0)
        return;
    atomic_store(&output_style, MLA_LOG_STYLE_JOURNAL);
    atomic_store(&journal_fd, mla_journal_open(JOURNAL_PATH));
}

void mla_log_set_level(enum mla_log_level level)
{
    atomic_store(&threshold, (int)level);
}

int mla_log_level_parse(const char *name, enum mla_log_level *level)
{
    for (size_t i = 0; i < N_LEVELS; i++) {
        if (strcmp(name, levels[i].name) == 0) {
            *level = levels[i].level;
            return 0;
        }
    }
    return -EINVAL;
}

void mla_log_set_output(int fd, enum mla_log_style style)
{
    atomic_store(&output_fd, fd);
    atomic_store(&output_style, (int)style);
}

void mla_log_set_rate(uint32_t burst, uint64_t window_ns)
{
    atomic_store(&rate_burst, burst);
    atomic_store(&rate_window_ns, window_ns);
}

bool mla_log_admit(struct mla_log_site *site, enum mla_log_level level)
{
    if ((int)level > atomic_load_explicit(&threshold, memory_order_relaxed))
        return false;
    uint64_t now = mla_now_ns();
    uint64_t start = atomic_load(&site->window_start_ns);
    /* Only the thread that moves the window resets the count; lines of others may fall on either side of that. A start
     * ahead of now is another thread's newer window, not an old one. */
    if ((start == 0 || (now > start && now - start >= atomic_load(&rate_window_ns))) &&
        atomic_compare_exchange_strong(&site->window_start_ns, &start, now))
        atomic_store(&site->written, 0);
    if (atomic_fetch_add(&site->written, 1) < atomic_load(&rate_burst))
        return true;
    atomic_fetch_sub(&site->written, 1);
    atomic_fetch_add(&site->suppressed, 1);
    return false;
}

struct text {
    char *data;
    size_t room; /* bytes that may be written */
    size_t used;
    bool cut;
};

static void put(struct text *t, const char *bytes, size_t n)
{
    if (n > t->room - t->used) {
        n = t->room - t->used;
        t->cut = true;
    }
    memcpy(t->data + t->used, bytes, n);
    t->used += n;
}

static void put_string(struct text *t, const char *s)
{
    put(t, s, strlen(s));
}

static void put_value(struct text *t, const char *value, size_t n)
{
    bool plain = n > 0;
    for (size_t i = 0; i < n && plain; i++)
        plain = value[i] > ' ' && value[i] < 0x7f && value[i] != '"' && value[i] != '\\' && value[i] != '=';
    if (plain) {
        put(t, value, n);
        return;
    }
    put(t, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)value[i];
        if (c == '"' || c == '\\')
            put(t, (const char[]){'\\', (char)c}, 2);
        else if (c >= ' ' && c < 0x7f)
            put(t, &value[i], 1);
        else
            put(t, (const char[]){'\\', 'x', "0123456789abcdef"[c >> 4], "0123456789abcdef"[c & 15]}, 4);
    }
    put(t, "\"", 1);
}

/* Length modifiers: the rank of an integer argument. */
enum rank { RANK_INT, RANK_LONG, RANK_LLONG, RANK_SIZE, RANK_MAX, RANK_PTRDIFF };

/* A va_list behind a pointer type that may be passed on whatever va_list is. */
struct args {
    va_list list;
};

static intmax_t next_integer(struct args *a, enum rank rank)
{
    switch (rank) {
    case RANK_LONG:
        return va_arg(a->list, long);
    case RANK_LLONG:
        return va_arg(a->list, long long);
    case RANK_SIZE:
        return (intmax_t)va_arg(a->list, size_t);
    case RANK_MAX:
        return va_arg(a->list, intmax_t);
    case RANK_PTRDIFF:
        return va_arg(a->list, ptrdiff_t);
    case RANK_INT:
        break;
    }
    return va_arg(a->list, int);
}

/* Formats are rebuilt here one conversion at a time, from literals that the compiler checked at the call. */
#pragma GCC diagnostic ignored "-Wformat-nonliteral"

/* Appends one conversion, *f just behind its '%'; moves *f behind it. */
static void put_conversion(struct text *t, const char **f, struct args *a, int saved_errno)
{
    char spec[48] = "%";
    size_t n = 1;
    enum rank rank = RANK_INT;
    const char *p = *f;
    for (; *p != '\0' && strchr("-+ #0123456789.*", *p) != NULL && n < sizeof(spec) - 16; p++) {
        if (*p == '*')
            n += (size_t)snprintf(spec + n, sizeof(spec) - n, "%d", va_arg(a->list, int));
        else
            spec[n++] = *p;
    }
    for (; *p != '\0' && strchr("hlzjt", *p) != NULL && n < sizeof(spec) - 3; p++) {
        spec[n++] = *p;
        if (*p == 'l')
            rank = rank == RANK_LONG ? RANK_LLONG : RANK_LONG;
        else if (*p != 'h')
            rank = *p == 'z' ? RANK_SIZE : *p == 'j' ? RANK_MAX : RANK_PTRDIFF;
    }
    char conversion = *p;
    *f = conversion != '\0' ? p + 1 : p;
    spec[n] = conversion;
    char *out = t->data + t->used;
    size_t room = t->room - t->used;
    int length = 0;
    switch (conversion) {
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
        intmax_t value = next_integer(a, rank);
        if (rank == RANK_INT)
            length = snprintf(out, room, spec, (int)value);
        else if (rank == RANK_LLONG)
            length = snprintf(out, room, spec, (long long)value);
        else /* all the others are 64 bits wide, as long is */
            length = snprintf(out, room, spec, (long)value);
        break;
    }
    case 'c':
        length = snprintf(out, room, spec, va_arg(a->list, int));
        break;
    case 's': {
        const char *s = va_arg(a->list, const char *);
        length = snprintf(out, room, spec, s != NULL ? s : "-");
        break;
    }
    case 'p':
        length = snprintf(out, room, spec, va_arg(a->list, void *));
        break;
    case 'e':
    case 'f':
    case 'g':
        length = snprintf(out, room, spec, va_arg(a->list, double));
        break;
    case 'm': {
        char text[128];
        spec[n] = 's';
        length = snprintf(out, room, spec, strerror_r(saved_errno, text, sizeof(text)));
        break;
    }
    default: /* "%%", and what the contract excludes */
        put(t, &conversion, conversion != '\0');
        return;
    }
    if (length >= 0 && (size_t)length >= room) { /* the last byte went to the NUL */
        t->cut = true;
        length = room > 0 ? (int)room - 1 : 0;
    }
    t->used += length > 0 ? (size_t)length : 0;
}

/* "key=value key=value": keys are copied, values formatted apart so that they can be quoted whole. */
static void put_pairs(struct text *line, const char *fmt, struct args *a, int saved_errno)
{
    const char *f = fmt;
    while (*f != '\0') {
        size_t key = strcspn(f, "=% ");
        put(line, f, key);
        f += key;
        bool has_value = *f == '=' || *f == '%';
        if (*f == '=')
            put(line, f++, 1);
        if (has_value) {
            char buf[MLA_LOG_LINE_BYTES];
            struct text value = {.data = buf, .room = sizeof(buf)};
            while (*f != '\0' && *f != ' ') {
                if (*f == '%') {
                    f++;
                    put_conversion(&value, &f, a, saved_errno);
                } else {
                    put(&value, f++, 1);
                }
            }
            line->cut |= value.cut;
            put_value(line, value.data, value.used);
        }
        for (; *f == ' '; f++)
            if (f[1] != '\0')
                put(line, f, 1);
    }
}

/* Returns the length of what only a stream needs. */
static size_t put_prefix(struct text *t, enum mla_log_level level)
{
    char buf[64];
    if (atomic_load(&output_style) == MLA_LOG_STYLE_JOURNAL) {
        snprintf(buf, sizeof(buf), "<%d>", (int)level);
        put_string(t, buf);
        return strlen(buf);
    }
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(buf, sizeof(buf), "time=%FT%T", &tm);
    put(t, buf, n);
    snprintf(buf, sizeof(buf), ".%03ldZ level=", now.tv_nsec / 1000000);
    put_string(t, buf);
    for (size_t i = 0; i < N_LEVELS; i++)
        if (levels[i].level == level)
            put_string(t, levels[i].name);
    put(t, " ", 1);
    return 0;
}

void mla_log_write(struct mla_log_site *site, enum mla_log_level level, const char *fmt, ...)
{
    int saved = errno;
    uint32_t suppressed = atomic_exchange(&site->suppressed, 0);
    char buf[MLA_LOG_LINE_BYTES];
    char tail[64] = "\n";
    if (suppressed > 0)
        snprintf(tail, sizeof(tail), " suppressed=%u\n", suppressed);
    /* Room is kept for the mark of a cut line and for the tail. */
    struct text line = {.data = buf, .room = sizeof(buf) - sizeof("...") - strlen(tail)};
    size_t prefix = put_prefix(&line, level);
    struct args args;
    va_start(args.list, fmt);
    put_pairs(&line, fmt, &args, saved);
    va_end(args.list);
    line.room = sizeof(buf);
    if (line.cut)
        put_string(&line, "...");
    put_string(&line, tail);
    if (prefix > 0 && atomic_load(&journal_fd) >= 0 &&
        mla_journal_send(atomic_load(&journal_fd), (int)level, line.data + prefix, line.used - prefix - 1) == 0) {
        errno = saved;
        return;
    }
    /* A lost or partial line is not worth an error: there is nowhere left to report it. */
    ssize_t rc;
    do {
        rc = write(atomic_load(&output_fd), line.data, line.used);
    } while (rc < 0 && errno == EINTR);
    errno = saved;
}
