/* TEMPLATE_OPEN and TEMPLATE_CLOSE, and what a template's layers name. */
#include "daemon/app/template.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/util/clock.h"

struct app_template *template_find(struct app_client *client, uint64_t id)
{
    struct app_template *t;
    HASH_FIND(hh, client->templates, &id, sizeof(id), t);
    return t;
}

static int refuse(struct mla_error *err, enum mla_status code, const char *field, uint64_t value, uint64_t limit,
                  const char *text)
{
    mla_error_set(err, code, field, "%s", text);
    err->value = value;
    err->limit = limit;
    return (int)code;
}

static int no_memory(struct mla_error *err)
{
    return refuse(err, MLA_OUT_OF_MEMORY, NULL, 0, 0, "no memory for the template");
}

/* ---- looking up ---- */

/* What one plan for all layers takes. */
static int same_shape(const struct app_template *t, uint32_t i, const struct app_job *job, uint32_t entries_per_seq,
                      struct mla_error *err)
{
    const struct mla_decode_request *a = &t->requests[0], *b = &t->requests[i];
    const struct {
        const char *field;
        uint64_t first, now;
    } shape[] = {{"table_set", a->table_set, b->table_set},
                 {"heads", a->heads, b->heads},
                 {"out_type", a->out_type, b->out_type},
                 {"mask", a->mask, b->mask},
                 {"batch_invariant", a->batch_invariant, b->batch_invariant},
                 {"priority", a->priority, b->priority},
                 {"table_entries_per_seq", entries_per_seq, job->table_entries_per_seq}};
    for (size_t k = 0; k < sizeof(shape) / sizeof(shape[0]); k++)
        if (shape[k].first != shape[k].now)
            return refuse(err, MLA_INVALID_ARGUMENT, shape[k].field, shape[k].now, shape[k].first,
                          "the layers of a template have it in common");
    return 0;
}

static int take_pins(struct app_template *t, const struct app_job *job, struct mla_error *err)
{
    for (uint32_t i = 0; i < job->sched.n_pins; i++) {
        uint32_t k = 0;
        while (k < t->n_pins && t->pins[k] != job->pins[i])
            k++;
        if (k < t->n_pins)
            continue;
        if (t->n_pins == t->pins_cap) {
            uint32_t cap = 2 * t->pins_cap + 16;
            struct sched_object **grown = realloc(t->pins, cap * sizeof(struct sched_object *));
            if (grown == NULL)
                return no_memory(err);
            t->pins = grown;
            t->pins_cap = cap;
        }
        t->pins[t->n_pins++] = job->pins[i];
    }
    return 0;
}

static int resolve_layer(struct app_template *t, uint32_t i, uint64_t table_set, struct app_job *job,
                         uint32_t *entries_per_seq, struct mla_error *err)
{
    struct mla_decode_request d = t->requests[i];
    d.table_set = table_set;
    memset(job, 0, sizeof(*job));
    int r = decode_check(t->client, &d, job, err);
    if (r != 0)
        return r;
    if (i == 0)
        *entries_per_seq = job->table_entries_per_seq;
    r = same_shape(t, i, job, *entries_per_seq, err);
    if (r == 0)
        r = take_pins(t, job, err);
    t->tables = job->tables;
    t->layers[i] = (struct be_layer){.ready = (uint64_t *)(uintptr_t)job->ready_word,
                                     .done = job->done_word,
                                     .ready_value = job->ready_value,
                                     .done_value = job->done_value,
                                     .job = job->abi};
    if (i == 0)
        t->step.compat = (uint64_t)d.heads | (uint64_t)d.out_type << 16 | (uint64_t)job->cache->layout << 24;
    return r;
}

static int charge(struct app_template *t, uint64_t bytes, const char *field, struct mla_error *err)
{
    struct app_client *client = t->client;
    uint64_t most = client->app->config->max_queued_bytes;
    if (bytes > most || client->queued_bytes > most - bytes)
        return (int)client_over_quota(client, err, field, client->queued_bytes + bytes, most,
                                      "over the client's quota of queued bytes");
    client->queued_bytes += bytes;
    t->bytes += bytes;
    return 0;
}

/* Room for the sequences of the set, in all that has some per sequence. */
static int reserve(struct app_template *t, struct mla_error *err)
{
    uint32_t n = t->tables->n_seqs;
    if (t->status != NULL && n <= t->cap_seqs)
        return 0;
    uint64_t per_seq = sizeof(*t->seqs) + sizeof(*t->plan_seqs) + t->n_layers * sizeof(uint64_t);
    int r = charge(t, (n - t->cap_seqs) * per_seq, "table_set", err);
    if (r != 0)
        return r;
    struct mla_abi_seq *seqs = realloc(t->seqs, n * sizeof(*seqs) + 1);
    if (seqs != NULL)
        t->seqs = seqs;
    struct plan_seq *plan_seqs = realloc(t->plan_seqs, n * sizeof(*plan_seqs) + 1);
    if (plan_seqs != NULL)
        t->plan_seqs = plan_seqs;
    if (seqs == NULL || plan_seqs == NULL)
        return no_memory(err);
    struct be *be = &t->client->app->be;
    be_host_free(be, t->status);
    t->status_bytes = (uint64_t)t->n_layers * n * sizeof(uint64_t);
    t->status = app_host_alloc(t->client->app, t->status_bytes, &t->status_address);
    if (t->status == NULL)
        return refuse(err, MLA_OUT_OF_MEMORY, "table_set", 0, 0, "no device-readable memory for status words");
    t->cap_seqs = n;
    return 0;
}

static void describe(struct app_template *t, uint32_t entries_per_seq)
{
    const struct app *app = t->client->app;
    const struct app_table_set *set = t->tables;
    uint32_t token = 0;
    uint64_t entry = 0;
    for (uint32_t s = 0; s < set->n_seqs; s++) {
        t->seqs[s] = (struct mla_abi_seq){.q_len = set->q_len[s],
                                          .kv_len_max = set->kv_len_max[s],
                                          .first_token = token,
                                          .table_first = entries_per_seq > 0 ? (uint64_t)s * entries_per_seq : entry};
        t->plan_seqs[s] = (struct plan_seq){set->q_len[s], set->kv_len_max[s]};
        token += set->q_len[s];
        entry += (set->kv_len_max[s] + set->tokens_per_entry - 1) / set->tokens_per_entry;
    }
    for (uint32_t i = 0; i < t->n_layers; i++)
        t->layers[i].job.status = t->status_address + (uint64_t)i * set->n_seqs * sizeof(uint64_t);
    t->plan_job = (struct plan_job){
        .n_seqs = set->n_seqs, .mask = t->requests[0].mask, .batch_invariant = t->requests[0].batch_invariant};
    t->step.plan = batch_request(app);
    t->step.plan.heads = t->requests[0].heads;
    t->step.plan.jobs = &t->plan_job;
    t->step.plan.seqs = t->plan_seqs;
    t->step.plan.n_jobs = 1;
    t->step.plan.n_seqs = set->n_seqs;
    be_fit(&app->be, &t->step.plan);
    t->step.compat |= batch_kernels(app, &t->step.plan);
}

static int fits_device(struct app_template *t, struct mla_error *err)
{
    const struct app *app = t->client->app;
    const struct be_facts *facts = be_facts(&app->be);
    struct plan_capacity capacity;
    uint64_t most;
    if (plan_bound(&t->step.plan, &capacity) != 0)
        return refuse(err, MLA_TOO_LARGE, "table_set", 0, 0, "a layer cannot be planned");
    if (be_workspace_for(&app->be, &t->step.plan, &most) != 0)
        return refuse(err, MLA_TOO_LARGE, "table_set", be_scratch_bytes(&app->be, &t->step.plan),
                      facts->workspace_bytes + facts->scratch_bytes,
                      "a layer's records and page tables do not fit the workspace");
    uint64_t partials = plan_least_partial_bytes(&t->step.plan, batch_part_max_ns(app));
    if (partials <= most)
        return 0;
    return refuse(err, MLA_TOO_LARGE, "table_set", partials, most,
                  "the partial results of a layer's contexts do not fit the workspace");
}

/* No launch is to be longer than others may have to wait. */
static void cut(struct app_template *t)
{
    const struct app *app = t->client->app;
    uint64_t load_ns;
    t->step.part_max_ns = batch_part_max_ns(app);
    t->step.n_parts = plan_parts(&t->step.plan, t->step.part_max_ns, &load_ns);
    t->step.part_load_ns = (load_ns + t->step.n_parts - 1) / t->step.n_parts;
    t->step.launch_max_ns = app->config->max_launch_us * MLA_NS_PER_US;
}

/* Status words of all layers, and the time that checking them takes, grow with this. */
static int bounded(const struct app_template *t, uint64_t table_set, struct mla_error *err)
{
    const struct app_table_set *set;
    HASH_FIND(hh, t->client->table_sets, &table_set, sizeof(table_set), set);
    uint64_t n = set == NULL ? 0 : (uint64_t)t->n_layers * set->n_seqs;
    if (n <= MLA_LAYER_SEQS_MAX)
        return 0;
    return refuse(err, MLA_TOO_LARGE, "table_set", n, MLA_LAYER_SEQS_MAX,
                  "the template's layers times the sequences of the set are too many");
}

static int resolve(struct app_template *t, uint64_t table_set, struct mla_error *err)
{
    struct app *app = t->client->app;
    struct app_job *job = malloc(sizeof(*job));
    uint32_t entries_per_seq = 0;
    int r = job == NULL ? no_memory(err) : 0;
    t->generation = 0;
    t->n_pins = 0;
    if (r == 0)
        r = bounded(t, table_set, err);
    for (uint32_t i = 0; r == 0 && i < t->n_layers; i++) {
        r = resolve_layer(t, i, table_set, job, &entries_per_seq, err);
        if (r != 0)
            err->index = i;
    }
    free(job);
    if (r == 0)
        r = reserve(t, err);
    if (r != 0)
        return r;
    describe(t, entries_per_seq);
    r = fits_device(t, err);
    if (r != 0)
        return r;
    cut(t);
    t->step.layers = t->layers;
    t->step.n_layers = t->n_layers;
    t->step.seqs = t->seqs;
    t->step.shape = ++app->last_shape;
    t->tables_serial = t->tables->serial;
    t->generation = app->memory_generation;
    return 0;
}

/* The set's pages may have been copied since. */
static void renew_tables(struct app_template *t)
{
    if (t->tables->pages == NULL)
        return;
    uint64_t address = mirror_address(t->tables);
    for (uint32_t i = 0; i < t->n_layers && t->layers[i].job.table != address; i++)
        t->layers[i].job.table = address;
}

int template_resolve(struct app_template *t, uint64_t table_set, struct mla_error *err)
{
    struct app_table_set *set;
    HASH_FIND(hh, t->client->table_sets, &table_set, sizeof(table_set), set);
    if (t->generation == t->client->app->memory_generation && set != NULL && set == t->tables &&
        set->serial == t->tables_serial) {
        renew_tables(t);
        return 0;
    }
    return resolve(t, table_set, err);
}

/* ---- opening ---- */

static int compare_words(const void *a, const void *b)
{
    const uint64_t *x = *(uint64_t *const *)a, *y = *(uint64_t *const *)b;
    return x < y ? -1 : x > y;
}

/* Layers run one after the other, each on words of its own. */
static int words_apart(const struct app_template *t, struct mla_error *err)
{
    const size_t n_words = 2 * (size_t)t->n_layers;
    uint64_t **words = malloc(n_words * sizeof(uint64_t *));
    if (words == NULL)
        return no_memory(err);
    for (size_t i = 0; i < t->n_layers; i++) {
        words[2 * i] = t->layers[i].ready;
        words[2 * i + 1] = t->layers[i].done;
    }
    qsort(words, n_words, sizeof(uint64_t *), compare_words);
    int r = 0;
    for (size_t i = 1; r == 0 && i < n_words; i++)
        if (words[i] == words[i - 1])
            r = refuse(err, MLA_OVERLAP, "layers", 0, 0, "two layers name the same word");
    free(words);
    return r;
}

static int fill(struct app_template *t, const struct mla_template_open_request *r, struct mla_error *err)
{
    t->n_layers = (uint32_t)r->n_layers;
    int rc = charge(t, sizeof(*t) + r->n_layers * (sizeof(*t->requests) + sizeof(*t->layers) + sizeof(*t->aborts)),
                    "layers", err);
    if (rc != 0)
        return rc;
    t->requests = malloc(r->n_layers * sizeof(*t->requests));
    t->layers = calloc(r->n_layers, sizeof(*t->layers));
    t->aborts = calloc(r->n_layers, sizeof(*t->aborts));
    if (t->requests == NULL || t->layers == NULL || t->aborts == NULL)
        return no_memory(err);
    memcpy(t->requests, r->layers, r->n_layers * sizeof(*t->requests));
    for (uint32_t i = 0; i < t->n_layers; i++) {
        if (t->requests[i].n_visible > 0) {
            rc = refuse(err, MLA_UNSUPPORTED, "visible", t->requests[i].n_visible, 0,
                        "a template's counts are in a region: visible_ref");
            err->index = i;
            return rc;
        }
    }
    rc = resolve(t, t->requests[0].table_set, err);
    return rc == 0 ? words_apart(t, err) : rc;
}

static void template_free(struct app_template *t)
{
    struct app_client *client = t->client;
    be_host_free(&client->app->be, t->status);
    client->queued_bytes -= t->bytes;
    client->n_templates--;
    free(t->requests);
    free(t->layers);
    free(t->aborts);
    free(t->pins);
    free(t->seqs);
    free(t->plan_seqs);
    free(t);
}

static void open_template(struct app_client *client, const struct mla_template_open_request *r, struct mla_error *err)
{
    struct app_template *t = NULL;
    if (client->app->health == MLA_HEALTH_DRAINING) {
        mla_error_set(err, MLA_DRAINING, NULL, "%s", mla_status_text(MLA_DRAINING));
    } else if (template_find(client, r->id) != NULL) {
        refuse(err, MLA_ALREADY_EXISTS, "id", r->id, 0, "a template of that id is open");
    } else if (client->n_templates >= TEMPLATES_MAX) {
        client_over_quota(client, err, "id", client->n_templates + 1u, TEMPLATES_MAX,
                          "the client has as many templates as it may");
    } else if ((t = calloc(1, sizeof(*t))) == NULL) {
        no_memory(err);
    } else {
        t->id = r->id;
        t->client = client;
        client->n_templates++;
        if (fill(t, r, err) == 0)
            HASH_ADD(hh, client->templates, id, sizeof(t->id), t);
        else
            template_free(t);
    }
}

static bool offered(struct app_client *client, const struct net_request *request)
{
    uint16_t type = request->message->type;
    if (be_facts(&client->app->be)->features & MLA_FEATURE_STEP)
        return true;
    struct mla_error err;
    mla_error_set(&err, MLA_UNSUPPORTED, NULL, "this daemon does not offer %s (see HELLO's features)",
                  mla_wire_type_name(type));
    app_reply_status(client, type, request->request_id, &err);
    return false;
}

void template_open(struct app_client *client, const struct net_request *request)
{
    struct mla_error err = {0};
    if (!offered(client, request))
        return;
    open_template(client, &request->message->template_open, &err);
    app_reply_status(client, MLA_MSG_TEMPLATE_OPEN, request->request_id, err.code == MLA_OK ? NULL : &err);
}

/* ---- closing ---- */

void template_leave(struct app_template *t)
{
    HASH_DELETE(hh, t->client->templates, t);
    if (!t->running)
        template_free(t);
}

void template_close(struct app_client *client, const struct net_request *request)
{
    struct mla_error err = {0};
    uint64_t id = request->message->template_close.id;
    if (!offered(client, request))
        return;
    struct app_template *t = template_find(client, id);
    if (t == NULL)
        refuse(&err, MLA_NOT_FOUND, "id", id, 0, "no template of that id is open; a step that failed ends its own");
    else if (t->running)
        refuse(&err, MLA_BUSY, "id", id, 0, "a step of the template is in flight");
    else
        template_leave(t);
    app_reply_status(client, MLA_MSG_TEMPLATE_CLOSE, request->request_id, err.code == MLA_OK ? NULL : &err);
}

void template_client_gone(struct app_client *client)
{
    struct app_template *t, *next;
    HASH_ITER (hh, client->templates, t, next) {
        if (t->running)
            step_end(t, MLA_DISCONNECTED, 0);
        else
            template_leave(t);
    }
}
