#include "daemon/util/journal.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A line is in it twice, with a prefix for each of its pairs. */
#define ENTRY_BYTES 8192

int mla_journal_open(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(to.sun_path))
        return -ENAMETOOLONG;
    memcpy(to.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)&to, sizeof(to)) != 0) {
        int error = errno;
        close(fd);
        return -error;
    }
    return fd;
}

struct entry {
    char *out;
    size_t cap, used;
    bool full;
};

static void put(struct entry *e, const char *bytes, size_t n)
{
    e->full |= n > e->cap - e->used;
    if (e->full)
        return;
    memcpy(e->out + e->used, bytes, n);
    e->used += n;
}

static void put_char(struct entry *e, char c)
{
    put(e, &c, 1);
}

/* The value at p; returns what is behind it. Escapes of bytes that do not print stay. */
static const char *put_value(struct entry *e, const char *p, const char *end)
{
    if (p == end || *p != '"') {
        const char *from = p;
        while (p != end && *p != ' ')
            p++;
        put(e, from, (size_t)(p - from));
        return p;
    }
    for (p++; p != end && *p != '"'; p++) {
        if (*p == '\\' && p + 1 != end && p[1] != 'x')
            p++;
        put_char(e, *p);
    }
    return p == end ? p : p + 1;
}

size_t mla_journal_entry(int priority, const char *line, size_t n, char *out, size_t cap)
{
    struct entry e = {.out = out, .cap = cap};
    const char *p = line, *end = line + n;
    char head[64];
    put(&e, "MESSAGE=", 8);
    put(&e, line, n);
    put(&e, head, (size_t)snprintf(head, sizeof(head), "\nPRIORITY=%d\nSYSLOG_IDENTIFIER=mlad\n", priority));
    while (p != end) {
        size_t key = 0;
        while (p + key != end && p[key] != '=' && p[key] != ' ')
            key++;
        if (key != 0 && p + key != end && p[key] == '=') {
            put(&e, "MLAD_", 5);
            for (size_t i = 0; i < key; i++)
                put_char(&e, isalnum((unsigned char)p[i]) ? (char)toupper((unsigned char)p[i]) : '_');
            put_char(&e, '=');
            p = put_value(&e, p + key + 1, end);
            put_char(&e, '\n');
        } else { /* not a pair */
            while (p != end && *p != ' ')
                p++;
        }
        while (p != end && *p == ' ')
            p++;
    }
    return e.full ? 0 : e.used;
}

int mla_journal_send(int fd, int priority, const char *line, size_t n)
{
    char out[ENTRY_BYTES];
    size_t length = mla_journal_entry(priority, line, n, out, sizeof(out));
    if (length == 0)
        return -E2BIG;
    ssize_t sent;
    do {
        sent = send(fd, out, length, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)length ? 0 : sent < 0 ? -errno : -EMSGSIZE;
}
