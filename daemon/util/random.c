#include "daemon/util/random.h"

#include <errno.h>
#include <sys/random.h>

int mla_random_bytes(void *buf, size_t bytes)
{
    unsigned char *p = buf;
    while (bytes > 0) {
        ssize_t n = getrandom(p, bytes, 0);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        p += n;
        bytes -= (size_t)n;
    }
    return 0;
}

int mla_random_id(uint64_t *id)
{
    uint64_t value;
    do {
        int rc = mla_random_bytes(&value, sizeof(value));
        if (rc)
            return rc;
    } while (value == 0);
    *id = value;
    return 0;
}
