/* Table sets: the shape of a step, copied once into memory that items read. */
#include <stdlib.h>
#include <string.h>

#include "daemon/app/state.h"

static void set_free(struct app *app, struct app_table_set *set)
{
    if (set->pages != NULL)
        be_host_free(&app->be, set->pages);
    free(set->q_len);
    free(set->kv_len_max);
    free(set->corners);
    free(set);
}

static int too_large(struct mla_error *err, const char *field, uint64_t value, uint64_t limit, const char *text)
{
    int code = (int)mla_error_set(err, MLA_TOO_LARGE, field, "%s", text);
    err->value = value;
    err->limit = limit;
    return code;
}

/* Whether b lies on the inner side of the line from a to c, or on it: then it is no corner. Points are (s, q_len[s]);
 * side is 1 for the hull's upper line, -1 for its lower one. */
static bool is_inside(const struct app_table_set *set, uint32_t a, uint32_t b, uint32_t c, int side)
{
    int64_t ab = (int64_t)b - a, ac = (int64_t)c - a;
    int64_t up_b = (int64_t)set->q_len[b] - set->q_len[a], up_c = (int64_t)set->q_len[c] - set->q_len[a];
    return side * (up_b * ac - up_c * ab) <= 0;
}

/* Where a sequence's first and last rows lie in a tensor is linear in its number and its q_len, whatever the strides.
 * So those of all lie between those of the corners of the convex hull of (number, q_len), which are few. */
static int find_corners(struct app_table_set *set)
{
    uint32_t *corners = malloc(2 * (size_t)set->n_seqs * sizeof(*corners) + 1), n = 0;
    if (corners == NULL)
        return -1;
    for (int side = -1; side <= 1; side += 2) {
        uint32_t first = n;
        for (uint32_t s = 0; s < set->n_seqs; s++) {
            if (set->q_len[s] == 0)
                continue;
            while (n >= first + 2 && is_inside(set, corners[n - 2], corners[n - 1], s, side))
                n--;
            corners[n++] = s;
        }
    }
    uint32_t *fitting = realloc(corners, n * sizeof(*corners) + 1);
    set->corners = fitting == NULL ? corners : fitting;
    set->n_corners = n;
    return 0;
}

/* Sums and bounds over the sequences; what the codec could not see: that the entries are there. */
static int measure(struct app_table_set *set, uint64_t n_pages, struct mla_error *err)
{
    uint64_t entries = 0;
    for (uint32_t s = 0; s < set->n_seqs; s++) {
        uint32_t needed = (set->kv_len_max[s] + set->tokens_per_entry - 1) / set->tokens_per_entry;
        entries += needed;
        set->tokens += set->q_len[s];
        if (set->q_len[s] > set->max_q_len)
            set->max_q_len = set->q_len[s];
        if (set->q_len[s] > 0)
            set->n_seqs_used = s + 1;
        if (needed > set->max_entries)
            set->max_entries = needed;
        if (n_pages > 0 && set->entries_per_seq > 0 && needed > set->entries_per_seq) {
            int code = (int)mla_error_set(err, MLA_OUT_OF_BOUNDS, "entries_per_seq",
                                          "sequence %u needs %u table entries", s, needed);
            err->index = s;
            err->value = set->entries_per_seq;
            err->limit = needed;
            return code;
        }
    }
    if (set->tokens > MLA_ROWS_PER_JOB_MAX)
        return too_large(err, "q_len", set->tokens, MLA_ROWS_PER_JOB_MAX, "too many query tokens for one job");
    uint64_t expected = set->entries_per_seq > 0 ? (uint64_t)set->n_seqs * set->entries_per_seq : entries;
    if (n_pages > 0 && n_pages != expected) {
        int code =
            (int)mla_error_set(err, MLA_INVALID_ARGUMENT, "pages", "the lengths ask for another number of entries");
        err->value = n_pages;
        err->limit = expected;
        return code;
    }
    return 0;
}

static int fill(struct app *app, struct app_table_set *set, const struct mla_put_table_set_request *r,
                struct mla_error *err)
{
    set->id = r->id;
    set->n_seqs = (uint32_t)r->n_q_len;
    set->tokens_per_entry = r->tokens_per_entry;
    set->entries_per_seq = r->entries_per_seq;
    set->n_pages = r->n_pages;
    set->q_len = malloc(r->n_q_len * sizeof(uint32_t) + 1);
    set->kv_len_max = malloc(r->n_q_len * sizeof(uint32_t) + 1);
    if (set->q_len == NULL || set->kv_len_max == NULL)
        return (int)mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "no memory for the table set");
    if (r->n_q_len > 0) {
        memcpy(set->q_len, r->q_len, r->n_q_len * sizeof(uint32_t));
        memcpy(set->kv_len_max, r->kv_len_max, r->n_q_len * sizeof(uint32_t));
    }
    int code = measure(set, r->n_pages, err);
    if (code != 0)
        return code;
    if (find_corners(set) != 0)
        return (int)mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "no memory for the table set");
    if (r->n_pages > 0) {
        set->pages = app_host_alloc(app, r->n_pages * sizeof(uint32_t), &set->pages_address);
        if (set->pages == NULL)
            return (int)mla_error_set(err, MLA_OUT_OF_MEMORY, "pages", "no device-readable memory for the table");
        memcpy(set->pages, r->pages, r->n_pages * sizeof(uint32_t));
    }
    return 0;
}

void tables_put(struct app_client *client, const struct net_request *request)
{
    struct app *app = client->app;
    const struct mla_put_table_set_request *r = &request->message->put_table_set;
    struct mla_error err = {0};
    struct app_table_set *set;
    uint64_t bytes = sizeof(*set) + (2 * r->n_q_len + r->n_pages) * sizeof(uint32_t);
    HASH_FIND(hh, client->table_sets, &r->id, sizeof(r->id), set);
    if (set != NULL) {
        mla_error_set(&err, MLA_ALREADY_EXISTS, "id", "drop that table set first; it is immutable");
        err.value = r->id;
    } else if (client->n_table_sets >= app->config->max_table_sets) {
        client_over_quota(client, &err, "id", client->n_table_sets + 1u, app->config->max_table_sets,
                          "the client has as many table sets as it may");
    } else if (bytes > app->config->max_queued_bytes || client->queued_bytes > app->config->max_queued_bytes - bytes) {
        client_over_quota(client, &err, "pages", client->queued_bytes + bytes, app->config->max_queued_bytes,
                          "over the client's quota of queued bytes");
    } else if ((set = calloc(1, sizeof(*set))) == NULL) {
        mla_error_set(&err, MLA_OUT_OF_MEMORY, NULL, "no memory for the table set");
    } else if (fill(app, set, r, &err) != 0) {
        set_free(app, set);
    } else {
        set->object.kind = APP_TABLE_SET;
        set->serial = ++app->last_serial;
        set->client = client;
        set->bytes = bytes + set->n_corners * sizeof(uint32_t);
        client->n_table_sets++;
        client->queued_bytes += set->bytes;
        HASH_ADD(hh, client->table_sets, id, sizeof(set->id), set);
        app_reply_status(client, MLA_MSG_PUT_TABLE_SET, request->request_id, NULL);
        return;
    }
    app_reply_status(client, MLA_MSG_PUT_TABLE_SET, request->request_id, &err);
}

void tables_leave(struct app_client *client, struct app_table_set *set)
{
    HASH_DELETE(hh, client->table_sets, set);
    app_event(client->app, (struct sched_event){.kind = SCHED_UNREGISTER, .object = &set->object.sched});
}

void tables_drop(struct app_client *client, const struct net_request *request)
{
    struct app_table_set *set;
    uint64_t id = request->message->drop_table_set.id;
    HASH_FIND(hh, client->table_sets, &id, sizeof(id), set);
    if (set == NULL) {
        struct mla_error err;
        mla_error_set(&err, MLA_NOT_FOUND, "id", "no table set of that id on this connection");
        err.value = id;
        app_reply_status(client, MLA_MSG_DROP_TABLE_SET, request->request_id, &err);
        return;
    }
    tables_leave(client, set);
    app_reply_status(client, MLA_MSG_DROP_TABLE_SET, request->request_id, NULL);
}

void tables_release(struct app *app, struct app_table_set *set)
{
    struct app_client *client = set->client;
    client->n_table_sets--;
    client->queued_bytes -= set->bytes;
    mirror_release(app, set);
    set_free(app, set);
    client_maybe_free(client);
}
