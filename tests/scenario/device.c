#include "tests/scenario/device.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define NS        1000
#define LIVE_MAX  8192
#define TIMES_MAX 65536
#define NEVER     UINT64_MAX

struct sim_job {
    struct sched_job job; /* first */
    struct device_client *client;
    bool used;
};

static struct {
    struct device_run *run;
    struct sched sched;
    struct sched_peer peers[DEVICE_CLIENTS];
    struct sim_job jobs[LIVE_MAX];
    uint64_t due_us[DEVICE_CLIENTS][256]; /* when each place of a client sends next */
    uint32_t n_places[DEVICE_CLIENTS];
    uint32_t *times[DEVICE_CLIENTS];
    struct sched_batch *on_device[SCHED_BATCHES];
    uint64_t ends_us[SCHED_BATCHES];
    uint32_t n_on_device;
    uint64_t now_us, free_us, timer_us;
    uint32_t live;
} sim;

static uint64_t load_of(const struct sched_batch *batch)
{
    uint64_t us = 0;
    list_for_each (node, &batch->jobs)
        us += sched_part_at(node)->job->load_ns / NS;
    return us;
}

static void launch(struct sched_batch *batch, uint64_t there)
{
    struct device_run *run = sim.run;
    uint64_t us = (load_of(batch) + run->fixed_us) * (100 + run->slower_percent) / 100;
    uint64_t begin = sim.free_us > there ? sim.free_us : there;
    if (sim.n_on_device == SCHED_BATCHES)
        ck_abort_msg("more launches than slots");
    sim.free_us = begin + us;
    sim.on_device[sim.n_on_device] = batch;
    sim.ends_us[sim.n_on_device++] = sim.free_us;
    run->busy_us += us;
    run->launches++;
    run->longest_us = us > run->longest_us ? us : run->longest_us;
}

static void launch_and_tell(struct sched_batch *batch)
{
    const struct device_run *run = sim.run;
    bool hiccup = run->hiccup_every != 0 && run->launches % run->hiccup_every == run->hiccup_every - 1 &&
                  (run->hiccups == 0 || run->launches < run->hiccups);
    uint64_t there = sim.now_us + run->launch_us + (hiccup ? run->hiccup_us : 0);
    launch(batch, there);
    if (run->launch_us != 0)
        sched_step(&sim.sched,
                   &(struct sched_event){
                       .kind = SCHED_SUBMITTED, .now_ns = sim.now_us * NS, .batch = batch, .at_ns = there * NS});
}

static void place_again(struct device_client *c, uint64_t at_us)
{
    size_t i = (size_t)(c - sim.run->clients);
    if (c->period_us == 0)
        sim.due_us[i][sim.n_places[i]++] = at_us;
}

static void reply(struct sim_job *j, const struct sched_action *a)
{
    struct device_client *c = j->client;
    uint64_t again_us = sim.now_us + c->think_us;
    if (a->code == MLA_OK) {
        if (c->answered == TIMES_MAX)
            ck_abort_msg("too many answers");
        if (j->job.received_ns / NS >= sim.run->warm_us)
            sim.times[c - sim.run->clients][c->answered++] = (uint32_t)((j->job.ended_ns - j->job.received_ns) / NS);
        if (sim.now_us >= sim.run->warm_us && sim.now_us <= sim.run->until_us)
            c->served_us += c->load_us * (c->parts > 1 ? c->parts : 1);
    } else {
        if (a->code != MLA_OVERLOADED || a->retry_after_us == 0)
            ck_abort_msg("an answer of code %d", (int)a->code);
        c->refused++;
        again_us += a->retry_after_us;
    }
    memset(j, 0, sizeof(*j));
    sim.live--;
    place_again(c, again_us);
}

static void carry_out(void)
{
    struct sched_action a;
    while (sched_next(&sim.sched, &a)) {
        if (a.kind == SCHED_STAGE)
            sched_step(&sim.sched, &(struct sched_event){.kind = SCHED_PLANNED,
                                                         .now_ns = sim.now_us * NS,
                                                         .batch = a.batch,
                                                         .predicted_ns = (load_of(a.batch) + sim.run->fixed_us) * NS,
                                                         .generation = a.generation});
        else if (a.kind == SCHED_LAUNCH)
            launch_and_tell(a.batch);
        else if (a.kind == SCHED_REPLY)
            reply((struct sim_job *)(void *)a.job, &a);
        else if (a.kind == SCHED_SET_TIMER)
            sim.timer_us = (a.at_ns + NS - 1) / NS + sim.run->timer_late_us;
    }
}

static void give(struct sched_event event)
{
    event.now_ns = sim.now_us * NS;
    sched_step(&sim.sched, &event);
    carry_out();
}

static void submit(size_t i)
{
    struct device_client *c = &sim.run->clients[i];
    struct sim_job *j = sim.jobs;
    while (j->used)
        if (++j == sim.jobs + LIVE_MAX)
            ck_abort_msg("too many jobs");
    *j = (struct sim_job){.client = c, .used = true};
    j->job.peer = &sim.peers[i];
    j->job.load_ns = c->load_us * NS;
    j->job.n_parts = c->parts;
    j->job.priority = c->priority;
    j->job.compat = c->compat;
    j->job.seqs = 1;
    sim.live++;
    give((struct sched_event){.kind = SCHED_SUBMIT, .job = &j->job});
}

/* The next time at which a place of the client sends; its index in *place. */
static uint64_t next_of(size_t i, uint32_t *place)
{
    uint64_t first = NEVER;
    for (uint32_t k = 0; k < sim.n_places[i]; k++)
        if (sim.due_us[i][k] < first) {
            first = sim.due_us[i][k];
            *place = k;
        }
    uint64_t stop = sim.run->clients[i].stop_us ? sim.run->clients[i].stop_us : sim.run->until_us;
    return first < stop ? first : NEVER;
}

static void send_due(size_t i, uint32_t place)
{
    struct device_client *c = &sim.run->clients[i];
    if (c->period_us)
        sim.due_us[i][place] += c->period_us;
    else
        sim.due_us[i][place] = sim.due_us[i][--sim.n_places[i]];
    submit(i);
}

/* Whatever is next: the end of a launch, a client that sends, the timer. False: nothing is. */
static bool step(void)
{
    uint64_t at = sim.n_on_device ? sim.ends_us[0] + sim.run->hear_us : NEVER;
    size_t who = DEVICE_CLIENTS;
    uint32_t place = 0;
    bool timer = sim.timer_us && sim.timer_us < at;
    at = timer ? sim.timer_us : at;
    for (size_t i = 0; i < sim.run->n_clients; i++) {
        uint32_t k = 0;
        uint64_t us = next_of(i, &k);
        if (us < at) {
            at = us;
            who = i;
            place = k;
        }
    }
    if (at == NEVER)
        return false;
    sim.now_us = at > sim.now_us ? at : sim.now_us;
    if (who < DEVICE_CLIENTS) {
        send_due(who, place);
    } else if (timer) {
        sim.timer_us = 0;
        give((struct sched_event){.kind = SCHED_TIMER});
    } else {
        struct sched_batch *batch = sim.on_device[0];
        uint64_t ended_us = sim.ends_us[0];
        sim.n_on_device--;
        memmove(sim.on_device, sim.on_device + 1, sizeof(sim.on_device) - sizeof(sim.on_device[0]));
        memmove(sim.ends_us, sim.ends_us + 1, sizeof(sim.ends_us) - sizeof(sim.ends_us[0]));
        give((struct sched_event){.kind = SCHED_BATCH_DONE, .batch = batch, .at_ns = ended_us * NS});
    }
    return true;
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void sum_up(size_t i)
{
    struct device_client *c = &sim.run->clients[i];
    qsort(sim.times[i], c->answered, sizeof(uint32_t), by_size);
    if (c->answered > 0) {
        c->p50_us = sim.times[i][c->answered / 2];
        c->p99_us = sim.times[i][(uint64_t)c->answered * 99 / 100];
        c->max_us = sim.times[i][c->answered - 1];
    }
    free(sim.times[i]);
}

void device_run(struct device_run *run)
{
    memset(&sim, 0, sizeof(sim));
    sim.run = run;
    sched_init(&sim.sched, &run->config);
    for (size_t i = 0; i < run->n_clients; i++) {
        struct device_client *c = &run->clients[i];
        sim.peers[i].weight = c->weight;
        sim.times[i] = calloc(TIMES_MAX, sizeof(uint32_t));
        ck_assert_ptr_nonnull(sim.times[i]);
        sim.n_places[i] = c->in_flight > 0 ? c->in_flight : 1;
        ck_assert_uint_le(sim.n_places[i], 256);
        for (uint32_t k = 0; k < sim.n_places[i]; k++)
            sim.due_us[i][k] = c->start_us;
    }
    while (step())
        ;
    ck_assert_uint_eq(sim.live, 0); /* whatever was accepted has been answered */
    run->ended_us = sim.now_us;
    for (size_t i = 0; i < run->n_clients; i++)
        sum_up(i);
}
