#include "tests/scenario/story.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOBS_MAX    4096
#define OBJECTS_MAX 16
#define PINS_MAX    4

struct actor { /* the record comes first, so that a pointer to it is one to this */
    struct sched_job job;
    char name[16];
    struct sched_object *pins[PINS_MAX];
};

struct thing {
    struct sched_object object;
    char name[16];
};

static struct {
    struct sched sched;
    struct actor jobs[JOBS_MAX];
    size_t n_jobs;
    struct thing objects[OBJECTS_MAX];
    size_t n_objects;
    struct sched_peer peers[26];
    uint64_t now_us;
    bool by_hand;
    uint32_t plan_most; /* jobs that can be planned together; 0: any number */
    char culprits[128]; /* names of jobs that cannot be planned, one blank behind each */
    size_t n_actions;   /* of the line being written */
    char text[1 << 18];
    size_t length;
} st;

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(st.text + st.length, sizeof(st.text) - st.length, format, args);
    va_end(args);
    ck_assert_msg(n >= 0 && (size_t)n < sizeof(st.text) - st.length, "the story is too long");
    st.length += (size_t)n;
}

static const char *code_name(enum mla_status code)
{
    switch (code) {
#define NAME(name, number, meaning)                                                                                    \
    case MLA_##name:                                                                                                   \
        return #name;
        MLA_STATUS_LIST(NAME)
#undef NAME
    }
    return "?";
}

static struct actor *actor_named(const char *name)
{
    for (size_t i = 0; i < st.n_jobs; i++)
        if (strcmp(st.jobs[i].name, name) == 0)
            return &st.jobs[i];
    ck_abort_msg("no job %s", name);
}

static struct thing *thing_named(const char *name)
{
    for (size_t i = 0; i < st.n_objects; i++)
        if (strcmp(st.objects[i].name, name) == 0)
            return &st.objects[i];
    ck_assert(st.n_objects < OBJECTS_MAX);
    struct thing *t = &st.objects[st.n_objects++];
    snprintf(t->name, sizeof(t->name), "%s", name);
    return t;
}

static struct sched_batch *slot_named(const char *name)
{
    ck_assert(name[0] >= 'A' && name[0] < 'A' + SCHED_BATCHES);
    return &st.sched.batches[name[0] - 'A'];
}

const struct sched_job *job_named(const char *name)
{
    return &actor_named(name)->job;
}

const struct sched_peer *peer_named(const char *name)
{
    return &st.peers[name[0] - 'a'];
}

static void say_batch(const struct sched_batch *batch, uint32_t generation)
{
    say("%c.%u{", (char)('A' + (batch - st.sched.batches)), generation);
    uint32_t n = 0;
    list_for_each (node, &batch->jobs) {
        const struct sched_part *part = sched_part_at(node);
        say("%s%s", n++ ? " " : "", ((const struct actor *)(const void *)part->job)->name);
        if (part->job->n_parts > 1)
            say("/%u", part->index + 1);
    }
    say("}");
    ck_assert_uint_eq(n, batch->n_jobs);
    ck_assert_uint_eq(generation, batch->generation);
}

static void say_action(const struct sched_action *a)
{
    const char *job = a->job ? ((const struct actor *)(const void *)a->job)->name : "";
    say(st.n_actions++ ? ", " : " -> ");
    switch (a->kind) {
    case SCHED_WATCH:
        say("WATCH %s", job);
        break;
    case SCHED_UNWATCH:
        say("UNWATCH %s", job);
        break;
    case SCHED_STAGE:
        say("STAGE ");
        say_batch(a->batch, a->generation);
        break;
    case SCHED_LAUNCH:
        say("LAUNCH #%llu ", (unsigned long long)a->batch->number);
        say_batch(a->batch, a->generation);
        break;
    case SCHED_REPLY:
        ck_assert_ptr_nonnull(a->job);
        say("REPLY %s %s%s", job, code_name(a->code), a->job->peer_gone ? " (gone)" : "");
        ck_assert_int_eq(a->code, a->job->code);
        if (a->retry_after_us)
            say(" retry after %llu", (unsigned long long)a->retry_after_us);
        break;
    case SCHED_RELEASE:
        say("RELEASE %s", ((const struct thing *)(const void *)a->object)->name);
        break;
    case SCHED_SET_TIMER:
        say("SET_TIMER %llu", (unsigned long long)(a->at_ns / 1000));
        break;
    case SCHED_EXIT:
        say("EXIT %s", code_name(a->code));
        break;
    }
}

static uint64_t predicted(const struct sched_batch *batch)
{
    uint64_t ns = 0;
    list_for_each (node, &batch->jobs)
        ns += sched_part_at(node)->job->load_ns;
    return ns;
}

static bool can_plan(struct sched_batch *batch)
{
    if (st.plan_most > 0 && batch->n_jobs > st.plan_most)
        return false;
    list_for_each (node, &batch->jobs) {
        char name[24];
        snprintf(name, sizeof(name), "%s ", ((const struct actor *)(const void *)sched_part_at(node)->job)->name);
        if (strstr(st.culprits, name) != NULL)
            return false;
    }
    return true;
}

static void carry_out(void)
{
    struct sched_action a;
    st.n_actions = 0;
    while (sched_next(&st.sched, &a)) {
        say_action(&a);
        if (a.kind == SCHED_STAGE && !st.by_hand)
            sched_step(&st.sched, &(struct sched_event){.kind = SCHED_PLANNED,
                                                        .now_ns = st.now_us * 1000,
                                                        .batch = a.batch,
                                                        .code = can_plan(a.batch) ? MLA_OK : MLA_OUT_OF_MEMORY,
                                                        .predicted_ns = predicted(a.batch),
                                                        .generation = a.generation});
    }
    say(st.n_actions ? "\n" : " -> nothing\n");
}

static void give(struct sched_event event)
{
    event.now_ns = st.now_us * 1000;
    sched_step(&st.sched, &event);
    carry_out();
}

__attribute__((format(printf, 1, 2))) static void line(const char *format, ...)
{
    char text[128];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    say("%llu %s", (unsigned long long)st.now_us, text);
}

void story_begin(const struct sched_config *config)
{
    memset(&st, 0, sizeof(st));
    struct sched_config c = *config;
    c.max_in_flight = c.max_in_flight ? c.max_in_flight : 100;
    c.max_running = c.max_running ? c.max_running : 1;
    c.batch_jobs_max = c.batch_jobs_max ? c.batch_jobs_max : 8;
    c.batch_seqs_max = c.batch_seqs_max ? c.batch_seqs_max : 64;
    sched_init(&st.sched, &c);
}

void at(uint64_t us)
{
    ck_assert(us >= st.now_us);
    st.now_us = us;
}

void weight(const char *peer, uint32_t weight)
{
    sched_peer_weigh(&st.sched, &st.peers[peer[0] - 'a'], weight);
}

void plans_fail_for(const char *jobs)
{
    snprintf(st.culprits, sizeof(st.culprits), "%s ", jobs);
}

void plans_hold(uint32_t jobs)
{
    st.plan_most = jobs;
}

void plans_by_hand(void)
{
    st.by_hand = true;
}

void story_submit(const struct story_job *job)
{
    ck_assert(st.n_jobs < JOBS_MAX);
    struct actor *a = &st.jobs[st.n_jobs++];
    snprintf(a->name, sizeof(a->name), "%s", job->name);
    a->job.peer = &st.peers[job->name[0] - 'a'];
    a->job.compat = job->compat;
    a->job.cost = job->cost;
    a->job.load_ns = job->load_us * 1000;
    a->job.n_parts = job->parts;
    a->job.priority = job->priority;
    a->job.seqs = job->seqs ? job->seqs : 1;
    a->job.has_ready = job->ready_word;
    a->job.pins = a->pins;
    if (job->timeout_us || job->overdue)
        a->job.deadline_ns = (st.now_us + job->timeout_us) * 1000;
    char names[64];
    snprintf(names, sizeof(names), "%s", job->uses ? job->uses : "");
    char *rest = names;
    for (char *name; (name = strtok_r(rest, " ", &rest));) {
        ck_assert(a->job.n_pins < PINS_MAX);
        a->pins[a->job.n_pins++] = &thing_named(name)->object;
    }
    line("SUBMIT %s", job->name);
    give((struct sched_event){.kind = SCHED_SUBMIT, .job = &a->job, .code = job->refused});
}

void ready(const char *job)
{
    line("READY %s", job);
    give((struct sched_event){.kind = SCHED_READY, .job = &actor_named(job)->job});
}

void ready_aborted(const char *job)
{
    line("READY %s aborted", job);
    give((struct sched_event){.kind = SCHED_READY, .job = &actor_named(job)->job, .aborted = true});
}

void cancel(const char *job)
{
    line("CANCEL %s", job);
    give((struct sched_event){.kind = SCHED_CANCEL, .job = &actor_named(job)->job});
}

void timer(void)
{
    line("TIMER");
    give((struct sched_event){.kind = SCHED_TIMER});
}

void submitted(const char *slot)
{
    line("SUBMITTED %s", slot);
    give((struct sched_event){.kind = SCHED_SUBMITTED, .batch = slot_named(slot)});
}

void done(const char *slot)
{
    line("DONE %s", slot);
    give((struct sched_event){.kind = SCHED_BATCH_DONE, .batch = slot_named(slot)});
}

void done_next(void)
{
    const struct sched_batch *first = NULL;
    for (int i = 0; i < SCHED_BATCHES; i++) {
        const struct sched_batch *b = &st.sched.batches[i];
        if (b->state == SCHED_SLOT_RUNNING && (!first || b->number < first->number))
            first = b;
    }
    ck_assert_ptr_nonnull(first);
    done((const char[]){(char)('A' + (first - st.sched.batches)), 0});
}

void failed(const char *slot, enum mla_status code)
{
    line("DONE %s %s", slot, code_name(code));
    give((struct sched_event){.kind = SCHED_BATCH_DONE, .batch = slot_named(slot), .code = code});
}

static void plan_answer(const char *slot, enum mla_status code)
{
    ck_assert(slot[1] == '.');
    give((struct sched_event){.kind = SCHED_PLANNED,
                              .batch = slot_named(slot),
                              .generation = (uint32_t)strtoul(slot + 2, NULL, 10),
                              .predicted_ns = predicted(slot_named(slot)),
                              .code = code});
}

void planned(const char *slot_and_generation)
{
    line("PLANNED %s", slot_and_generation);
    plan_answer(slot_and_generation, MLA_OK);
}

void cannot_plan(const char *slot_and_generation, enum mla_status code)
{
    line("PLANNED %s %s", slot_and_generation, code_name(code));
    plan_answer(slot_and_generation, code);
}

void device_lost(void)
{
    line("FATAL");
    give((struct sched_event){.kind = SCHED_FATAL});
}

void peer_gone(const char *peer)
{
    line("PEER_GONE %s", peer);
    give((struct sched_event){.kind = SCHED_PEER_GONE, .peer = &st.peers[peer[0] - 'a']});
}

void unregister(const char *object)
{
    line("UNREGISTER %s", object);
    give((struct sched_event){.kind = SCHED_UNREGISTER, .object = &thing_named(object)->object});
}

void pin(const char *object)
{
    sched_pin(&thing_named(object)->object);
}

void unpin(const char *object)
{
    line("unpin %s", object);
    sched_unpin(&st.sched, &thing_named(object)->object);
    carry_out();
}

void drain(uint64_t deadline_us)
{
    if (deadline_us)
        line("DRAIN until %llu", (unsigned long long)deadline_us);
    else
        line("DRAIN");
    give((struct sched_event){.kind = SCHED_DRAIN, .deadline_ns = deadline_us * 1000});
}

void tells(const char *golden)
{
    bool equal = strcmp(st.text, golden) == 0;
    if (!equal)
        fprintf(stderr, "--- the story was\n%s--- and should be\n%s---\n", st.text, golden);
    ck_assert_msg(equal, "another story than the golden one (both are on stderr)");
    st.length = 0;
    st.text[0] = 0;
}
