#include "daemon/backend/null/null.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/backend/memfd.h"
#include "daemon/util/clock.h"
#include "daemon/util/log.h"

#define EVENTS_MAX    1024u
#define EVENTS_OF_ONE 2u /* a LAUNCH: SUBMITTED and BATCH_DONE */

struct backend {
    struct be_facts facts;
    int event_fd;
    struct be_event events[EVENTS_MAX];
    size_t first, n;
    bool spins;    /* null_spin() */
    bool signaled; /* the descriptor is readable */
    uint64_t progress;
};

static int null_open(const struct be_config *config, struct backend **out, struct mla_error *err)
{
    struct backend *be = calloc(1, sizeof *be);
    if (!be)
        return mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "no memory for the null backend");
    be->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (be->event_fd < 0) {
        int rc =
            mla_error_set(err, MLA_NO_DESCRIPTORS, NULL, "the null backend has no descriptor: %s", strerror(errno));
        free(be);
        return rc;
    }
    plan_device_preset("h200", &be->facts.device, &be->facts.costs);
    if (config->costs)
        be->facts.costs = *config->costs;
    be->facts.name = "null";
    strcpy(be->facts.gpu_uuid, "NULL-00000000000000000000000000000000");
    strcpy(be->facts.device_name, "nothing, planned for as an H200");
    be->facts.isolation = "host";
    be->facts.features = MLA_FEATURE_DECODE | MLA_FEATURE_MEMFD | MLA_FEATURE_SUSPEND | MLA_FEATURE_PUBLISH;
    be->facts.tile_rows = MLA_ABI_TILE_ROWS;
    be->facts.workspace_bytes = config->workspace_bytes;
    mla_log(MLA_LOG_WARNING, "null_backend", "text=%s", "nothing is computed: this backend is for measuring");
    *out = be;
    return 0;
}

static void null_close(struct backend *be)
{
    close(be->event_fd);
    free(be);
}

static const struct be_facts *null_facts(const struct backend *be)
{
    return &be->facts;
}

static int null_event_fd(const struct backend *be)
{
    return be->event_fd;
}

/* The descriptor is readable from the first event on until the last is taken: two calls of the kernel for any number of
 * requests. */
static void wake(struct backend *be)
{
    uint64_t one = 1;
    if (be->spins || be->signaled)
        return;
    be->signaled = true;
    while (write(be->event_fd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

static void calm(struct backend *be)
{
    uint64_t count;
    while (be->signaled && read(be->event_fd, &count, sizeof count) < 0 && errno == EINTR)
        continue;
    be->signaled = false;
}

static void report(struct backend *be, const struct be_event *event)
{
    be->events[(be->first + be->n) % EVENTS_MAX] = *event;
    be->n++;
    wake(be);
}

static size_t null_poll(struct backend *be, struct be_event *out, size_t cap)
{
    size_t n = 0;
    for (; n < cap && be->n > 0; n++, be->n--) {
        out[n] = be->events[be->first];
        be->first = (be->first + 1) % EVENTS_MAX;
    }
    if (be->n == 0)
        calm(be);
    return n;
}

static void null_spin(struct backend *be, bool spins)
{
    be->spins = spins;
    if (spins)
        calm(be);
    else if (be->n > 0)
        wake(be);
}

static void map(struct be_region *region, struct mla_error *err)
{
    void *host;
    if (region->kind != MLA_REGION_MEMFD || region->sync) {
        mla_error_set(err, MLA_UNSUPPORTED, "kind", "the null backend maps memfds only, and no sync pages");
        return;
    }
    if (be_memfd_map(region, &host, err) != 0)
        return;
    region->host = region->impl = host;
    region->address = (uint64_t)(uintptr_t)host;
}

static void unmap(struct be_region *region)
{
    if (region->impl)
        munmap(region->impl, region->size);
    region->host = region->impl = NULL;
    region->address = 0;
}

/* Status words that were asked for say OK; a done word cannot have been, without sync pages. */
static void launch(struct backend *be, struct be_request *request)
{
    struct be_batch *batch = request->batch;
    batch->started_ns = batch->taken_ns = batch->submitted_ns = mla_now_ns();
    report(be, &(struct be_event){.kind = BE_SUBMITTED, .request = request});
    for (uint32_t j = 0; j < batch->n_jobs; j++)
        if (batch->jobs[j].user_status != 0)
            memset((void *)(uintptr_t)batch->jobs[j].user_status, 0, batch->jobs[j].n_seqs * sizeof(uint64_t));
    batch->ended_ns = mla_now_ns();
    report(be, &(struct be_event){.kind = BE_BATCH_DONE, .request = request});
}

static int null_submit(struct backend *be, struct be_request *request)
{
    struct be_event event = {.kind = BE_DONE, .request = request};
    if (be->n + EVENTS_OF_ONE > EVENTS_MAX)
        return -EAGAIN;
    be->progress++;
    switch (request->op) {
    case BE_LAUNCH:
        launch(be, request);
        return 0;
    case BE_MAP:
        map(request->region, &event.error);
        break;
    case BE_UNMAP:
        unmap(request->region);
        break;
    case BE_WATCH: /* of no sync page: the job fails rather than wait for ever */
        event.kind = BE_READY;
        event.aborted = true;
        break;
    case BE_UNWATCH:
    case BE_ABORT:
    case BE_STEP: /* not offered, so never submitted; the same below */
    case BE_STEP_END:
    case BE_MIRROR:
        break;
    }
    report(be, &event);
    return 0;
}

static void *null_host_alloc(struct backend *be, size_t bytes, uint64_t *address)
{
    (void)be;
    if (bytes > SIZE_MAX - 63)
        return NULL;
    size_t rounded = bytes == 0 ? 64 : (bytes + 63) & ~(size_t)63;
    void *memory = aligned_alloc(64, rounded);
    if (memory)
        memset(memory, 0, rounded);
    if (memory && address)
        *address = (uint64_t)(uintptr_t)memory;
    return memory;
}

static void null_host_free(struct backend *be, void *memory)
{
    (void)be;
    free(memory);
}

static uint64_t null_progress(const struct backend *be)
{
    return be->progress + mla_now_ns() / MLA_NS_PER_S; /* no thread that could hang */
}

const struct be_ops be_null_ops = {
    .name = "null",
    .open = null_open,
    .close = null_close,
    .facts = null_facts,
    .event_fd = null_event_fd,
    .spin = null_spin,
    .poll = null_poll,
    .submit = null_submit,
    .host_alloc = null_host_alloc,
    .host_free = null_host_free,
    .progress = null_progress,
};
