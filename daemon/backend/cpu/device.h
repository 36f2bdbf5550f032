/* The device thread: takes requests in order, polls watched words, runs batches on the pool, reports events. */
#ifndef MLA_DAEMON_BACKEND_CPU_DEVICE_H
#define MLA_DAEMON_BACKEND_CPU_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/backend/backend.h"
#include "daemon/backend/cpu/item.h"
#include "daemon/backend/cpu/pool.h"
#include "daemon/backend/port.h"
#include "daemon/backend/steps.h"
#include "daemon/backend/watch.h"

struct cpu_device {
    struct be_port port;
    pthread_t thread;
    bool started;

    struct cpu_pool pool;
    struct cpu_scratch *scratch; /* one per thread of the pool */
    uint32_t n_scratch;
    void *workspace;
    uint64_t workspace_bytes;

    /* device thread only */
    struct be_request **held; /* [held_at, held_at + n_held): taken from the ring in this order, wait for the batch */
    size_t held_at;
    size_t n_held;
    size_t cap_held;
    struct be_watches watches;
    struct be_steps steps;
};

/* facts: of its backend, complete. 0, or -errno with nothing left behind. */
int cpu_device_open(struct cpu_device *device, const struct be_facts *facts, uint32_t threads,
                    uint64_t workspace_bytes);
void cpu_device_close(struct cpu_device *device);

#endif
