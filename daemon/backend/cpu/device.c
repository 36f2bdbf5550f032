#include "daemon/backend/cpu/device.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/backend/cpu/launch.h"
#include "daemon/backend/cpu/memory.h"
#include "daemon/util/clock.h"

#define SPIN_NS        (50 * MLA_NS_PER_US) /* words are polled without a pause that long after something happened */
#define PAUSE_LEAST_NS (50 * MLA_NS_PER_US)

static void word_came(void *device, struct be_request *watch, bool aborted)
{
    struct cpu_device *d = device;
    struct be_event event = {.kind = BE_READY, .request = watch, .aborted = aborted};
    be_port_report(&d->port, &event);
}

static void step_ended(void *device, struct be_request *step, enum mla_status code)
{
    struct cpu_device *d = device;
    struct mla_error error = {.code = code};
    be_port_done(&d->port, step, &error);
}

static void poll_words(struct cpu_device *d)
{
    be_watches_poll(&d->watches, word_came, d);
    if (d->steps.n != 0 && be_steps_poll(&d->steps, mla_now_ns()))
        d->port.active_ns = mla_now_ns();
}

static void watch(struct cpu_device *d, struct be_request *request)
{
    /* Without memory reported as aborted: the job fails, and nothing waits for ever. */
    if (be_watches_add(&d->watches, request) != 0)
        word_came(d, request, true);
}

static void unwatch(struct cpu_device *d, struct be_request *request)
{
    be_watches_remove(&d->watches, request->unwatch);
    be_port_done(&d->port, request, NULL);
}

static void map(struct cpu_device *d, struct be_request *request)
{
    struct mla_error error = {.code = MLA_OK};
    cpu_map(request->region, &error);
    be_port_done(&d->port, request, &error);
}

static void abort_job(struct cpu_device *d, struct be_request *request)
{
    uint64_t *status = (uint64_t *)(uintptr_t)request->abort.user_status;
    for (uint32_t s = 0; status && s < request->abort.n_seqs; s++)
        __atomic_store_n(&status[s], (uint64_t)request->abort.code << 32, __ATOMIC_RELAXED);
    if (request->abort.word)
        __atomic_store_n(request->abort.word, request->abort.value, __ATOMIC_RELEASE);
    be_port_done(&d->port, request, NULL);
}

/* Time until the next look at the words: 0 to look again at once. */
static uint64_t next_pause_ns(const struct cpu_device *d, bool running)
{
    if (d->watches.n == 0 && d->steps.n == 0)
        return BE_PORT_IDLE_NS;
    return be_port_pause_ns(mla_now_ns() - d->port.active_ns, running ? 0 : SPIN_NS, PAUSE_LEAST_NS);
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
    return request->op == BE_MAP || request->op == BE_WATCH || request->op == BE_UNWATCH || request->op == BE_STEP ||
           request->op == BE_STEP_END || (request->op == BE_ABORT && abort_is_apart(d, batch, request));
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
        be_port_done(&d->port, request, NULL);
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
    case BE_STEP:
        be_steps_begin(&d->steps, request);
        break;
    case BE_STEP_END:
        be_steps_end(&d->steps, request);
        be_port_done(&d->port, request, NULL);
        break;
    case BE_LAUNCH:
    case BE_MIRROR: /* not offered, so never submitted */
        break;
    }
}

static void run_on_pool(struct cpu_device *d, struct cpu_launch *launch, cpu_pool_fn fn)
{
    atomic_store_explicit(&launch->next, 0, memory_order_relaxed);
    cpu_pool_start(&d->pool, fn, launch);
    while (!cpu_pool_ended(&d->pool)) {
        be_port_beat(&d->port);
        struct be_request *request;
        if (room_to_hold(d) && be_port_take(&d->port, &request)) {
            if (beside_a_batch(d, launch->batch, request))
                run_small(d, request);
            else
                d->held[d->held_at + d->n_held++] = request;
            continue;
        }
        poll_words(d);
        be_port_pause(&d->port, next_pause_ns(d, true));
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
    batch->started_ns = batch->taken_ns = batch->submitted_ns = mla_now_ns();
    struct be_event event = {.kind = BE_SUBMITTED, .request = request};
    bool of_steps = be_steps_own(&d->steps, request);
    if (!of_steps)
        be_port_report(&d->port, &event);
    if (batch->plan->n_items != 0)
        run_on_pool(d, &launch, cpu_launch_items);
    if (batch->plan->n_reduces != 0)
        run_on_pool(d, &launch, cpu_launch_reduces);
    cpu_launch_finish(batch);
    batch->ended_ns = mla_now_ns();
    event.kind = BE_BATCH_DONE;
    if (of_steps)
        be_steps_launch_ended(&d->steps, request);
    else
        be_port_report(&d->port, &event);
}

/* The next request, which stays where it is; NULL: none. */
static struct be_request *next_request(struct cpu_device *d)
{
    struct be_request *request;
    if (d->n_held == 0 && room_to_hold(d) && be_port_take(&d->port, &request))
        d->held[d->held_at + d->n_held++] = request;
    return d->n_held > 0 ? d->held[d->held_at] : NULL;
}

static void run(struct cpu_device *d, struct be_request *request)
{
    d->held_at++;
    if (--d->n_held == 0)
        d->held_at = 0;
    d->port.active_ns = mla_now_ns();
    if (request->op == BE_LAUNCH) {
        be_steps_others_begin(&d->steps, request->batch);
        run_batch(d, request);
    } else {
        run_small(d, request);
    }
}

/* Steps and batches take turns; other requests wait for neither. They run first, since those behind them that may run
 * beside a batch must not overtake them: an UNWATCH its WATCH, say. */
static bool run_something(struct cpu_device *d)
{
    struct be_request *request = next_request(d);
    bool launch = request && request->op == BE_LAUNCH;
    struct be_steps_others others = {.waiting = launch};
    if (request && !launch)
        run(d, request);
    struct be_request *step = d->steps.n_ready != 0 ? be_steps_launch(&d->steps, mla_now_ns(), &others) : NULL;
    if (step)
        run_batch(d, step);
    else if (launch)
        run(d, request);
    return request || step;
}

static void *device_main(void *argument)
{
    struct cpu_device *d = argument;
    pthread_setname_np(pthread_self(), "mlad-device");
    while (!be_port_stopping(&d->port)) {
        be_port_beat(&d->port);
        poll_words(d);
        if (run_something(d))
            continue;
        uint64_t pause = next_pause_ns(d, false);
        if (pause != 0)
            be_port_pause(&d->port, pause);
    }
    return NULL;
}

static int open_memory(struct cpu_device *d, uint32_t threads)
{
    d->scratch = calloc(threads, sizeof *d->scratch);
    if (!d->scratch)
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
    int rc = be_port_open(&d->port);
    if (rc == 0)
        rc = cpu_pool_open(&d->pool, threads, d->port.wake_fd);
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

int cpu_device_open(struct cpu_device *d, const struct be_facts *facts, uint32_t threads, uint64_t workspace_bytes)
{
    memset(d, 0, sizeof *d);
    d->workspace_bytes = workspace_bytes;
    be_steps_init(&d->steps, facts, NULL, NULL, step_ended, d);
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
        be_port_stop(&d->port);
        pthread_join(d->thread, NULL);
        d->started = false;
    }
    cpu_pool_close(&d->pool);
    for (uint32_t i = 0; i < d->n_scratch; i++)
        cpu_scratch_close(&d->scratch[i]);
    if (d->workspace)
        munmap(d->workspace, d->workspace_bytes);
    be_port_close(&d->port);
    be_watches_free(&d->watches);
    be_steps_free(&d->steps);
    free(d->scratch);
    free(d->held);
}
