#include "daemon/util/notify.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int send_to(const char *path, const char *text, size_t n)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || path[1] == '\0' || length >= sizeof(to.sun_path))
        return -EAFNOSUPPORT;
    memcpy(to.sun_path, path, length);
    if (path[0] == '@') /* an abstract name: no zero behind it */
        to.sun_path[0] = '\0';
    else
        length++;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    ssize_t sent = sendto(fd, text, n, MSG_NOSIGNAL, (const struct sockaddr *)&to,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
    int result = sent == (ssize_t)n ? 0 : sent < 0 ? -errno : -EMSGSIZE;
    close(fd);
    return result;
}

int mla_notify(const char *format, ...)
{
    const char *path = getenv("NOTIFY_SOCKET");
    char text[MLA_NOTIFY_BYTES];
    if (path == NULL)
        return 1;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (n < 0)
        return -EINVAL;
    return send_to(path, text, (size_t)n < sizeof(text) ? (size_t)n : sizeof(text) - 1);
}

static uint64_t number(const char *text)
{
    char *end;
    if (text == NULL || *text < '0' || *text > '9')
        return 0;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    return errno != 0 || *end != '\0' ? 0 : v;
}

uint64_t mla_notify_watchdog_us(void)
{
    const char *pid = getenv("WATCHDOG_PID");
    if (pid != NULL && number(pid) != (uint64_t)getpid())
        return 0;
    return number(getenv("WATCHDOG_USEC"));
}
