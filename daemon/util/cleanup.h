/* Scope-bound ownership. A variable declared with MLA_AUTO_FREE or MLA_AUTO_FD is freed or closed when it leaves its
 * scope; initialise it (NULL, -1) where it is declared. Hand the value on with mla_steal_ptr() or mla_steal_fd():
 *
 *     MLA_AUTO_FD int fd = memfd_create("region", MFD_CLOEXEC);
 *     if (fd < 0)
 *         return -errno;
 *     ...
 *     region->fd = mla_steal_fd(&fd);
 *
 * errno is kept by both cleanups, so that "return -errno" may stand behind a failing call. */
#ifndef MLA_UTIL_CLEANUP_H
#define MLA_UTIL_CLEANUP_H

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* fn takes a pointer to the variable. */
#define MLA_CLEANUP(fn) __attribute__((cleanup(fn)))
#define MLA_AUTO_FREE   MLA_CLEANUP(mla_cleanup_free)
#define MLA_AUTO_FD     MLA_CLEANUP(mla_cleanup_fd)

/* Yields the value of the pointer variable at (pp) and leaves NULL there. */
#define mla_steal_ptr(pp)                                                                                              \
    __extension__({                                                                                                    \
        __typeof__(*(pp)) mla_stolen_ = *(pp);                                                                         \
        *(pp) = NULL;                                                                                                  \
        mla_stolen_;                                                                                                   \
    })

static inline int mla_steal_fd(int *fd)
{
    int stolen = *fd;
    *fd = -1;
    return stolen;
}

static inline void mla_cleanup_free(void *pointer_to_variable)
{
    int saved = errno;
    free(*(void **)pointer_to_variable);
    errno = saved;
}

static inline void mla_cleanup_fd(const int *fd)
{
    if (*fd >= 0) {
        int saved = errno;
        close(*fd);
        errno = saved;
    }
}

#endif
