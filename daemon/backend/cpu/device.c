#include "daemon/backend/cpu/device.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/backend/cpu/launch.h"
#include "daemon/backend/cpu/memory.h"
#include "daemon/util/clock.h"

/* Words are polled without a pause for a short while after something happened, then with pauses that grow with the time
 * nothing has happened: what comes often is seen at once, and a daemon without work costs no CPU. */
#define SPIN_NS        (50 * MLA_NS_PER_US)
#define PAUSE_LEAST_NS (50 * MLA_NS_PER_US)
#define PAUSE_MOST_NS  (1 * MLA_NS_PER_MS)
#define IDLE_NS        (500 * MLA_NS_PER_MS) /* without words to poll; keeps the progress counter alive */
#define ABORT_DISTANCE (INT64_C(1) << 61)    /* an abort value is 2^62 beyond; anything that far is one */

static void add_one(int fd)
{
    uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

static void beat(struct cpu_device *d)
{
    atomic_fetch_add_explicit(&d->progress, 1, memory_order_relaxed);
}

static void pause_for(struct cpu_device *d, uint64_t ns)
{
    struct pollfd p = {.fd = d->wake_fd, .events = POLLIN};
    struct timespec t = {.tv_sec = (time_t)(ns / MLA_NS_PER_S), .tv_nsec = (long)(ns % MLA_NS_PER_S)};
    if (ppoll(&p, 1, &t, NULL) > 0) {
        uint64_t count;
        if (read(d->wake_fd, &count, sizeof count) < 0)
            return;
    }
}

/* Waits while the loop does not take events; only a closing backend drops one. */
static void report(struct cpu_device *d, const struct be_event *event)
{
    while (!mla_ring_push(&d->events, event)) {
        if (atomic_load_explicit(&d->stop, memory_order_acquire))
            return;
        add_one(d->event_fd);
        beat(d);
        /* Not pause_for(), which would take a wake-up that others wait for. */
        struct timespec t = {.tv_nsec = (long)PAUSE_MOST_NS};
        nanosleep(&t, NULL);
    }
    add_one(d->event_fd);
    d->active_ns = mla_now_ns();
}

static void report_done(struct cpu_device *d, struct be_request *request, const struct mla_error *error)
{
    struct be_event event = {.kind = BE_DONE, .request = request};
    if (error)
        event.error = *error;
    report(d, &event);
}

/* Reports and forgets the watches whose word has come, in the order they were set. */
static void poll_words(struct cpu_device *d)
{
    size_t kept = 0;
    for (size_t i = 0; i < d->n_watches; i++) {
        struct be_request *w = d->watches[i];
        int64_t distance = (int64_t)(__atomic_load_n(w->watch.word, __ATOMIC_ACQUIRE) - w->watch.value);
        if (distance < 0) {
            d->watches[kept++] = w;
            continue;
        }
        struct be_event event = {.kind = BE_READY, .request = w, .aborted = distance >= ABORT_DISTANCE};
        report(d, &event);
    }
    d->n_watches = kept;
}

static void watch(struct cpu_device *d, struct be_request *request)
{
    if (d->n_watches == d->cap_watches) {
        size_t cap = d->cap_watches ? 2 * d->cap_watches : 64;
        struct be_request **grown = realloc(d->watches, cap * sizeof *grown);
        if (!grown) {
            /* Reported as aborted: the job fails, and nothing waits for ever. */
            struct be_event event = {.kind = BE_READY, .request = request, .aborted = true};
            report(d, &event);
            return;
        }
        d->watches = grown;
        d->cap_watches = cap;
    }
    d->watches[d->n_watches++] = request;
}

static void unwatch(struct cpu_device *d, struct be_request *request)
{
    for (size_t i = 0; i < d->n_watches; i++) {
        if (d->watches[i] == request->unwatch) {
            memmove(&d->watches[i], &d->watches[i + 1], (d->n_watches - i - 1) * sizeof *d->watches);
            d->n_watches--;
            break;
        }
    }
    report_done(d, request, NULL);
}

static void map(struct cpu_device *d, struct be_request *request)
{
    struct mla_error error = {.code = MLA_OK};
    cpu_map(request->region, &error);
    report_done(d, request, &error);
}

static void abort_job(struct cpu_device *d, struct be_request *request)
{
    uint64_t *status = (uint64_t *)(uintptr_t)request->abort.user_status;
    for (uint32_t s = 0; status && s < request->abort.n_seqs; s++)
        __atomic_store_n(&status[s], (uint64_t)request->abort.code << 32, __ATOMIC_RELAXED);
    if (request->abort.word)
        __atomic_store_n(request->abort.word, request->abort.value, __ATOMIC_RELEASE);
    report_done(d, request, NULL);
}

/* Time until the next look at the words: 0 to look again at once. */
static uint64_t next_pause_ns(const struct cpu_device *d, bool running)
{
    if (d->n_watches == 0)
        return IDLE_NS;
    uint64_t quiet = mla_now_ns() - d->active_ns;
    if (quiet < SPIN_NS && !running)
        return 0;
    uint64_t pause = quiet / 8;
    return pause < PAUSE_LEAST_NS ? PAUSE_LEAST_NS : pause > PAUSE_MOST_NS ? PAUSE_MOST_NS : pause;
}

static bool share_words(const struct mla_abi_job *job, const struct be_request *request)
{
    uint64_t begin = request->abort.user_status, end = begin + request->abort.n_seqs * sizeof(uint64_t);
    return job->user_status < end && begin < job->user_status + job->n_seqs * sizeof(uint64_t);
}

/* An ABORT must come behind what the batch, or one that waits behind it, writes to the same words. */
static bool abort_is_apart(const struct cpu_device *d, const struct be_batch *batch, const struct be_request *request)
{
    for (size_t i = 0; i < d->n_held; i++)
        if (d->held[d->held_at + i]->op == BE_LAUNCH)
            return false;
    for (uint32_t i = 0; i < batch->n_done; i++)
        if (batch->done[i].word == request->abort.word)
            return false;
    for (uint32_t j = 0; request->abort.user_status != 0 && j < batch->n_jobs; j++)
        if (batch->jobs[j].user_status != 0 && share_words(&batch->jobs[j], request))
            return false;
    return true;
}

/* What may start while a batch runs. The others wait: they end something that the batch may read, or must come behind
 * its done words. */
static bool beside_a_batch(const struct cpu_device *d, const struct be_batch *batch, const struct be_request *request)
{
    return request->op == BE_MAP || request->op == BE_WATCH || request->op == BE_UNWATCH ||
           (request->op == BE_ABORT && abort_is_apart(d, batch, request));
}

/* Room for one more held request, however many: what may run beside a batch must not wait behind them. False without
 * memory: the ring keeps its requests until the batch has ended. */
static bool room_to_hold(struct cpu_device *d)
{
    if (d->held_at + d->n_held < d->cap_held)
        return true;
    if (d->held_at > d->n_held) {
        memmove(d->held, d->held + d->held_at, d->n_held * sizeof *d->held);
        d->held_at = 0;
        return true;
    }
    size_t cap = d->cap_held ? 2 * d->cap_held : 64;
    struct be_request **grown = realloc(d->held, cap * sizeof *grown);
    if (!grown)
        return false;
    d->held = grown;
    d->cap_held = cap;
    return true;
}

static void run_small(struct cpu_device *d, struct be_request *request)
{
    switch (request->op) {
    case BE_MAP:
        map(d, request);
        break;
    case BE_UNMAP:
        cpu_unmap(request->region);
        report_done(d, request, NULL);
        break;
    case BE_WATCH:
        watch(d, request);
        break;
    case BE_UNWATCH:
        unwatch(d, request);
        break;
    case BE_ABORT:
        abort_job(d, request);
        break;
    case BE_LAUNCH:
        break;
    }
}

static void run_on_pool(struct cpu_device *d, struct cpu_launch *launch, cpu_pool_fn fn)
{
    atomic_store_explicit(&launch->next, 0, memory_order_relaxed);
    cpu_pool_start(&d->pool, fn, launch);
    while (!cpu_pool_ended(&d->pool)) {
        beat(d);
        struct be_request *request;
        if (room_to_hold(d) && mla_ring_pop(&d->requests, &request)) {
            if (beside_a_batch(d, launch->batch, request))
                run_small(d, request);
            else
                d->held[d->held_at + d->n_held++] = request;
            continue;
        }
        poll_words(d);
        pause_for(d, next_pause_ns(d, true));
    }
}

static void run_batch(struct cpu_device *d, struct be_request *request)
{
    struct be_batch *batch = request->batch;
    size_t partial_rows = batch->plan->partial_rows;
    struct cpu_launch launch = {
        .batch = batch,
        .partial_o = d->workspace,
        .partial_lse = (float *)d->workspace + partial_rows * MLA_ABI_V_DIM,
        .scratch = d->scratch,
    };
    batch->started_ns = mla_now_ns();
    struct be_event event = {.kind = BE_SUBMITTED, .request = request};
    report(d, &event);
    if (batch->plan->n_items != 0)
        run_on_pool(d, &launch, cpu_launch_items);
    if (batch->plan->n_reduces != 0)
        run_on_pool(d, &launch, cpu_launch_reduces);
    cpu_launch_finish(batch);
    batch->ended_ns = mla_now_ns();
    event.kind = BE_BATCH_DONE;
    report(d, &event);
}

static bool take(struct cpu_device *d, struct be_request **request)
{
    if (d->n_held > 0) {
        *request = d->held[d->held_at++];
        if (--d->n_held == 0)
            d->held_at = 0;
        return true;
    }
    return mla_ring_pop(&d->requests, request);
}

static void *device_main(void *argument)
{
    struct cpu_device *d = argument;
    pthread_setname_np(pthread_self(), "mlad-device");
    while (!atomic_load_explicit(&d->stop, memory_order_acquire)) {
        struct be_request *request;
        beat(d);
        if (take(d, &request)) {
            d->active_ns = mla_now_ns();
            if (request->op == BE_LAUNCH)
                run_batch(d, request);
            else
                run_small(d, request);
            continue;
        }
        poll_words(d);
        uint64_t pause = next_pause_ns(d, false);
        if (pause != 0)
            pause_for(d, pause);
    }
    return NULL;
}

int cpu_device_submit(struct cpu_device *d, struct be_request *request)
{
    if (!mla_ring_push(&d->requests, &request))
        return -EAGAIN;
    add_one(d->wake_fd);
    return 0;
}

static int open_memory(struct cpu_device *d, uint32_t threads)
{
    d->event_storage = calloc(CPU_RING_RECORDS, sizeof *d->event_storage);
    d->scratch = calloc(threads, sizeof *d->scratch);
    if (!d->event_storage || !d->scratch)
        return -ENOMEM;
    for (; d->n_scratch < threads; d->n_scratch++) {
        int rc = cpu_scratch_open(&d->scratch[d->n_scratch]);
        if (rc != 0)
            return rc;
    }
    if (d->workspace_bytes != 0) {
        void *w =
            mmap(NULL, d->workspace_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (w == MAP_FAILED)
            return -errno;
        d->workspace = w;
    }
    return 0;
}

static int open_threads(struct cpu_device *d, uint32_t threads)
{
    d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    d->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->wake_fd < 0 || d->event_fd < 0)
        return -errno;
    int rc = mla_ring_init(&d->requests, d->request_storage, sizeof d->request_storage[0], CPU_RING_RECORDS);
    if (rc == 0)
        rc = mla_ring_init(&d->events, d->event_storage, sizeof *d->event_storage, CPU_RING_RECORDS);
    if (rc == 0)
        rc = cpu_pool_open(&d->pool, threads, d->wake_fd);
    if (rc != 0)
        return rc;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&d->thread, NULL, device_main, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    d->started = rc == 0;
    return -rc;
}

int cpu_device_open(struct cpu_device *d, uint32_t threads, uint64_t workspace_bytes)
{
    memset(d, 0, sizeof *d);
    d->wake_fd = -1;
    d->event_fd = -1;
    d->workspace_bytes = workspace_bytes;
    int rc = open_memory(d, threads);
    if (rc == 0)
        rc = open_threads(d, threads);
    if (rc != 0)
        cpu_device_close(d);
    return rc;
}

void cpu_device_close(struct cpu_device *d)
{
    if (d->started) {
        atomic_store_explicit(&d->stop, true, memory_order_release);
        add_one(d->wake_fd);
        pthread_join(d->thread, NULL);
        d->started = false;
    }
    cpu_pool_close(&d->pool);
    for (uint32_t i = 0; i < d->n_scratch; i++)
        cpu_scratch_close(&d->scratch[i]);
    if (d->workspace)
        munmap(d->workspace, d->workspace_bytes);
    if (d->wake_fd >= 0)
        close(d->wake_fd);
    if (d->event_fd >= 0)
        close(d->event_fd);
    free(d->scratch);
    free(d->event_storage);
    free(d->watches);
    free(d->held);
}
