/* The device thread: takes requests in order, polls watched words, runs batches on the pool, reports events. */
#ifndef MLA_DAEMON_BACKEND_CPU_DEVICE_H
#define MLA_DAEMON_BACKEND_CPU_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/backend/backend.h"
#include "daemon/backend/cpu/item.h"
#include "daemon/backend/cpu/pool.h"
#include "daemon/util/ring.h"

#define CPU_RING_RECORDS 1024u /* requests, and events, that may wait */

struct cpu_device {
    struct mla_ring requests; /* struct be_request *, loop to device */
    struct mla_ring events;   /* struct be_event, device to loop */
    struct be_request *request_storage[CPU_RING_RECORDS];
    struct be_event *event_storage;
    int wake_fd;  /* eventfd: a request waits, or the pool has finished */
    int event_fd; /* eventfd: events wait */
    _Atomic bool stop;
    _Atomic uint64_t progress;
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
    struct be_request **watches;
    size_t n_watches;
    size_t cap_watches;
    uint64_t active_ns; /* when something happened last */
};

/* 0, or -errno with nothing left behind. */
int cpu_device_open(struct cpu_device *device, uint32_t threads, uint64_t workspace_bytes);
void cpu_device_close(struct cpu_device *device);

/* Loop's thread. 0, or -EAGAIN while the ring is full. */
int cpu_device_submit(struct cpu_device *device, struct be_request *request);

#endif
