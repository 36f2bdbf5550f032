/* Memory that the worker shares: sealed memfds for the CPU backend, device memory through libmla-cuda for the CUDA one.
 * host is what this process fills and reads: the memfd itself, or a copy of device memory. */
#ifndef MLA_QUICKSTART_MEMORY_H
#define MLA_QUICKSTART_MEMORY_H

#include <mla/mla.h>

struct shared {
    struct mla_memory host;
    uint64_t device; /* address; 0: none */
};

struct memory {
    const char *name;
    double accuracy; /* of an element of O, in units of its row's root mean square, beyond the rounding of its type */
    /* 0, or -1 with a message on stderr. bytes are zero. */
    int (*create)(uint64_t bytes, struct shared *memory);
    enum mla_status (*share)(struct mla_client *client, const struct shared *memory, enum mla_access access,
                             const char *label, uint64_t timeout_us, mla_region_id *region);
    int (*push)(const struct shared *memory); /* host to where the daemon reads */
    int (*pull)(const struct shared *memory);
    void (*drop)(struct shared *memory); /* nothing when all zero */
};

extern const struct memory memory_memfd;

/* NULL with a message on stderr: this build or this machine has none. */
const struct memory *memory_cuda(void);

#endif
