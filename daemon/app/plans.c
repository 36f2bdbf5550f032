/* Plans that were made lately. The layers of a step, and workers that decode shapes of the same lengths, ask for the
 * same plan again and again, which is the better part of what a launch costs the loop. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/app/state.h"

#define KEPT_ITEMS_MAX 16384u /* larger ones are made in the batch's own buffers, and not kept */
#define BUFFER_BYTES   4096u  /* the least that a buffer takes: those of small launches never grow */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* False: it was empty. */
static bool free_buffer(struct app *app, struct app_buffer *buffer)
{
    bool any = buffer->memory != NULL;
    if (any)
        be_host_free(&app->be, buffer->memory);
    *buffer = (struct app_buffer){0};
    return any;
}

static bool free_buffers(struct app *app, struct app_plan_buffers *buffers)
{
    bool any = free_buffer(app, &buffers->tiles);
    any |= free_buffer(app, &buffers->items);
    any |= free_buffer(app, &buffers->reduces);
    return any;
}

bool app_batch_forget(struct app *app, struct app_batch *b)
{
    bool any = free_buffers(app, &b->large);
    any |= free_buffer(app, &b->jobs);
    any |= free_buffer(app, &b->seqs);
    any |= free_buffer(app, &b->status);
    return any;
}

/* Plans and buffers of launches and jobs that nobody uses go before anybody is refused. False: there were none. */
static bool forget_idle(struct app *app)
{
    bool any = host_pool_forget(app);
    app->plan_room = (struct app_plan_room){0}; /* each takes what it needs, no more */
    for (unsigned i = 0; i < SCHED_BATCHES; i++)
        if (app->batches[i].sched != NULL && app->batches[i].sched->n_jobs == 0)
            any |= app_batch_forget(app, &app->batches[i]);
    for (unsigned i = 0; i < APP_PLANS; i++) {
        struct app_plan *p = &app->plans[i];
        if (p->uses == 0 && free_buffers(app, &p->buffers)) {
            p->id = 0;
            any = true;
        }
    }
    return any;
}

void *app_host_alloc(struct app *app, size_t bytes, uint64_t *address)
{
    void *memory = be_host_alloc(&app->be, bytes, address);
    return memory != NULL || !forget_idle(app) ? memory : be_host_alloc(&app->be, bytes, address);
}

bool app_grow_device(struct app *app, struct app_buffer *buffer, size_t bytes)
{
    if (bytes == 0)
        bytes = 1;
    if (buffer->bytes >= bytes)
        return true;
    size_t cap = larger(bytes + bytes / 2, BUFFER_BYTES);
    free_buffer(app, buffer);
    buffer->memory = app_host_alloc(app, cap, &buffer->address);
    if (buffer->memory == NULL) {
        cap = bytes;
        buffer->memory = app_host_alloc(app, cap, &buffer->address);
    }
    buffer->bytes = buffer->memory == NULL ? 0 : cap;
    return buffer->memory != NULL;
}

bool app_grow_host(void *pointer_to_array, size_t *cap, size_t n, size_t size)
{
    if (*cap >= n && n > 0)
        return true;
    size_t want = larger(n + n / 2, BUFFER_BYTES / size);
    void *grown = realloc(*(void **)pointer_to_array, want * size);
    if (grown == NULL)
        return false;
    *(void **)pointer_to_array = grown;
    *cap = want;
    return true;
}

/* ---- which plan ---- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

static uint64_t hash_of(const struct plan_request *r)
{
    uint64_t hash = mix(mix(r->heads, r->n_jobs), r->n_seqs);
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        const struct plan_job *job = &r->jobs[j];
        hash = mix(hash, (uint64_t)job->n_seqs << 32 | job->mask << 1 | job->batch_invariant);
        hash = mix(mix(hash, job->skip_rows), job->n_rows);
    }
    for (uint32_t s = 0; s < r->n_seqs; s++)
        hash = mix(hash, (uint64_t)r->seqs[s].q_len << 32 | r->seqs[s].kv_len);
    return hash;
}

static bool same_job(const struct plan_job *a, const struct plan_job *b)
{
    return a->first_seq == b->first_seq && a->n_seqs == b->n_seqs && a->mask == b->mask &&
           a->batch_invariant == b->batch_invariant && a->skip_rows == b->skip_rows && a->n_rows == b->n_rows;
}

/* Kernels, costs and workspace follow from the jobs. */
static bool is_of(const struct app_plan *p, uint64_t hash, const struct plan_request *r)
{
    if (p->id == 0 || p->hash != hash || p->heads != r->heads || p->policy != r->policy || p->n_jobs != r->n_jobs ||
        p->n_seqs != r->n_seqs)
        return false;
    for (uint32_t j = 0; j < r->n_jobs; j++)
        if (!same_job(&p->jobs[j], &r->jobs[j]))
            return false;
    return r->n_seqs == 0 || memcmp(p->seqs, r->seqs, r->n_seqs * sizeof(*r->seqs)) == 0;
}

/* ---- making one ---- */

/* To the room if there is memory for it. */
static bool grow(struct app *app, struct app_buffer *buffer, size_t bytes, size_t room_bytes)
{
    return (room_bytes > bytes && app_grow_device(app, buffer, room_bytes)) || app_grow_device(app, buffer, bytes);
}

static int build(struct app *app, struct app_batch *scratch_of, const struct plan_request *request,
                 struct app_plan_buffers *to, const struct app_plan_room *room, struct plan *plan)
{
    if (!grow(app, &to->tiles, plan->capacity.tiles * sizeof(*plan->tiles), room->tiles_bytes) ||
        !grow(app, &to->items, plan->capacity.items * sizeof(*plan->items), room->items_bytes) ||
        !grow(app, &to->reduces, plan->capacity.reduces * sizeof(*plan->reduces), room->reduces_bytes) ||
        !app_grow_host(&scratch_of->scratch, &scratch_of->scratch_bytes, plan->capacity.scratch_bytes, 1))
        return -ENOMEM;
    plan->tiles = to->tiles.memory;
    plan->items = to->items.memory;
    plan->reduces = to->reduces.memory;
    plan->scratch = scratch_of->scratch;
    return plan_build(request, plan);
}

/* Batches in use are few, so there is always one. */
static struct app_plan *oldest(struct app *app)
{
    struct app_plan *p = NULL;
    for (unsigned i = 0; i < APP_PLANS; i++)
        if (app->plans[i].uses == 0 && (p == NULL || app->plans[i].used_at < p->used_at))
            p = &app->plans[i];
    return p;
}

static struct app_plan_room room_for(struct app *app, const struct plan_request *r, const struct plan *plan)
{
    struct app_plan_room *room = &app->plan_room;
    room->tiles_bytes = larger(room->tiles_bytes, plan->capacity.tiles * sizeof(*plan->tiles));
    room->items_bytes = larger(room->items_bytes, plan->capacity.items * sizeof(*plan->items));
    room->reduces_bytes = larger(room->reduces_bytes, plan->capacity.reduces * sizeof(*plan->reduces));
    room->n_jobs = (uint32_t)larger(room->n_jobs, r->n_jobs);
    room->n_seqs = (uint32_t)larger(room->n_seqs, r->n_seqs);
    return *room;
}

static bool note(struct app_plan *p, uint64_t hash, const struct plan_request *r, const struct app_plan_room *room)
{
    if (!app_grow_host(&p->jobs, &p->jobs_cap, room->n_jobs, sizeof(*p->jobs)) ||
        !app_grow_host(&p->seqs, &p->seqs_cap, room->n_seqs, sizeof(*p->seqs)))
        return false;
    memcpy(p->jobs, r->jobs, r->n_jobs * sizeof(*p->jobs));
    if (r->n_seqs > 0)
        memcpy(p->seqs, r->seqs, r->n_seqs * sizeof(*p->seqs));
    p->hash = hash;
    p->heads = r->heads;
    p->policy = r->policy;
    p->n_jobs = r->n_jobs;
    p->n_seqs = r->n_seqs;
    p->resident_units = r->device.resident_units;
    return true;
}

static void take(struct app *app, struct app_batch *b, struct app_plan *p)
{
    p->used_at = ++app->n_plan_uses;
    p->uses++;
    b->kept = p;
    b->plan = p->plan;
    b->resident_units = p->resident_units;
}

int plans_get(struct app *app, struct app_batch *b, struct plan_request *request)
{
    uint64_t hash = hash_of(request);
    for (unsigned i = 0; i < APP_PLANS; i++) {
        if (is_of(&app->plans[i], hash, request)) {
            take(app, b, &app->plans[i]);
            return 0;
        }
    }
    be_fit(&app->be, request);
    struct plan_capacity capacity;
    int r = be_workspace_for(&app->be, request, &request->workspace_bytes_max);
    if (r == 0)
        r = plan_bound(request, &capacity);
    if (r != 0)
        return r;
    if (capacity.items > KEPT_ITEMS_MAX) {
        b->resident_units = request->device.resident_units;
        b->plan.capacity = capacity;
        return build(app, b, request, &b->large, &(struct app_plan_room){0}, &b->plan);
    }
    struct app_plan *p = oldest(app);
    p->id = 0;
    p->plan.capacity = capacity;
    p->uses++; /* its arrays are not idle in the making */
    struct app_plan_room room = room_for(app, request, &p->plan);
    r = note(p, hash, request, &room) ? build(app, b, request, &p->buffers, &room, &p->plan) : -ENOMEM;
    p->uses--;
    if (r != 0)
        return r;
    p->id = ++app->n_plans;
    take(app, b, p);
    return 0;
}

void plans_let_go(struct app_batch *b)
{
    if (b->kept != NULL)
        b->kept->uses--;
    b->kept = NULL;
}

void plans_free(struct app *app)
{
    for (unsigned i = 0; i < APP_PLANS; i++) {
        free_buffers(app, &app->plans[i].buffers);
        free(app->plans[i].jobs);
        free(app->plans[i].seqs);
    }
    memset(app->plans, 0, sizeof(app->plans));
    for (unsigned i = 0; i <= SCHED_BATCHES; i++)
        free_buffers(app, i < SCHED_BATCHES ? &app->batches[i].large : &app->probe.large);
}
