#include "client/core.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/watch.h"

#define SLOT_BITS 20

int mlac_core_init(struct mlac_core *core, size_t max_send_bytes, bool want_events)
{
    memset(core, 0, sizeof(*core));
    list_init(&core->spare);
    list_init(&core->flight);
    list_init(&core->ready);
    list_init(&core->templates);
    core->next_number = 1;
    core->max_send_bytes = max_send_bytes;
    core->want_events = want_events;
    return 0;
}

void mlac_core_free(struct mlac_core *core)
{
    list_for_each_safe (node, &core->ready) {
        struct mlac_ready *item = list_entry(node, struct mlac_ready, node);
        if (item->is_event)
            mlac_event_free((struct mlac_event *)item);
    }
    for (uint32_t i = 0; i < core->n_slots; i++) {
        free(core->slots[i]->visible);
        free(core->slots[i]);
    }
    for (size_t i = core->fds_head; i < core->fds_tail; i++)
        close(core->fds[i].fd);
    free(core->slots);
    free(core->fds);
    free(core->out);
    free(core->in);
    free(core->arena_bytes);
    memset(core, 0, sizeof(*core));
}

/* ---- requests ---- */

/* Adds one slot to the pool; the array doubles. */
static bool pool_grow(struct mlac_core *core)
{
    if (core->n_slots == MLAC_REQUESTS_MAX)
        return false;
    if ((core->n_slots & (core->n_slots - 1)) == 0) {
        size_t cap = core->n_slots ? 2 * (size_t)core->n_slots : 1;
        struct mlac_request **slots = realloc(core->slots, cap * sizeof(struct mlac_request *));
        if (!slots)
            return false;
        core->slots = slots;
    }
    struct mlac_request *r = calloc(1, sizeof(*r));
    if (!r)
        return false;
    r->slot = core->n_slots;
    list_init(&r->ready.node);
    list_init(&r->watched);
    list_push_back(&core->spare, &r->order);
    core->slots[core->n_slots++] = r;
    return true;
}

struct mlac_request *mlac_request_new(struct mlac_core *core, uint16_t type, enum mlac_role role)
{
    if (list_empty(&core->spare) && !pool_grow(core))
        return NULL;
    struct mlac_request *r = list_entry(list_first(&core->spare), struct mlac_request, order);
    list_del(&r->order);
    list_push_back(&core->flight, &r->order);
    r->id = core->next_number++ << SLOT_BITS | r->slot;
    r->type = type;
    r->role = role;
    r->state = MLAC_FLIGHT;
    r->object = 0;
    r->callback = NULL;
    r->step_callback = NULL;
    r->tmpl = NULL;
    r->user = NULL;
    r->unsent = false;
    r->facts = (struct mlac_job_facts){.expire_ns = UINT64_MAX};
    core->n_jobs += role == MLAC_JOB;
    return r;
}

struct mlac_request *mlac_request_find(const struct mlac_core *core, uint64_t id)
{
    uint32_t slot = (uint32_t)(id & (MLAC_REQUESTS_MAX - 1));
    if (slot >= core->n_slots)
        return NULL;
    struct mlac_request *r = core->slots[slot];
    return r->state != MLAC_FREE && r->id == id ? r : NULL;
}

/* Ids of regions and caches are never given twice, so a second call for the same one means the same thing (a SUSPEND's
 * record ends with the RESUME behind it). Table sets are named by the caller and are not among these. */
static bool ends_object(uint16_t type)
{
    return type == MLA_MSG_UNREGISTER_REGION || type == MLA_MSG_DROP_CACHE || type == MLA_MSG_DETACH_CACHE ||
           type == MLA_MSG_SUSPEND || type == MLA_MSG_TEMPLATE_CLOSE;
}

struct mlac_request *mlac_request_find_closing(const struct mlac_core *core, uint16_t type, uint64_t object)
{
    list_for_each (node, &core->flight) {
        struct mlac_request *r = list_entry(node, struct mlac_request, order);
        if (r->role == MLAC_CLOSING && r->type == type && r->object == object)
            return r;
    }
    return NULL;
}

void mlac_request_retire(struct mlac_core *core, struct mlac_request *r)
{
    mlac_request_disarm(core, r);
    mlac_request_sent(core, r);
    if (r->tables)
        mlac_tables_unref(core->ledger, r->tables);
    r->tables = NULL;
    free(r->visible);
    r->visible = NULL;
    core->n_jobs -= r->role == MLAC_JOB;
    r->role = MLAC_CALL;
    r->state = MLAC_FREE;
    list_del(&r->ready.node);
    list_del(&r->order);
}

void mlac_request_free(struct mlac_core *core, struct mlac_request *r)
{
    mlac_request_retire(core, r);
    /* Last in, first out: the record that is still warm goes first. */
    list_push_front(&core->spare, &r->order);
}

void mlac_request_leave(struct mlac_core *core, struct mlac_request *r)
{
    core->n_jobs -= r->role == MLAC_JOB;
    if (ends_object(r->type))
        r->role = MLAC_CLOSING;
    else if (r->type == MLA_MSG_PUT_TABLE_SET)
        r->role = MLAC_QUIET;
    else
        r->role = MLAC_LEFT;
}

/* ---- handing out ---- */

struct mlac_ready *mlac_core_take(struct mlac_core *core)
{
    struct list *node = list_first(&core->ready);
    if (!node)
        return NULL;
    list_del(node);
    struct mlac_ready *item = list_entry(node, struct mlac_ready, node);
    core->n_events -= item->is_event;
    return item;
}

void mlac_event_free(struct mlac_event *event)
{
    free(event);
}

void mlac_error_info(struct mla_error_info *out, const struct mla_error *err)
{
    memset(out, 0, sizeof(*out));
    out->status = err->code;
    snprintf(out->field, sizeof(out->field), "%s", err->field ? err->field : "");
    out->index = err->index;
    out->value = err->value;
    out->limit = err->limit;
    out->retry_after_us = err->retry_after_us;
    snprintf(out->text, sizeof(out->text), "%s", err->text[0] ? err->text : mla_status_text(err->code));
}

/* ---- words ---- */

void mlac_request_arm(struct mlac_core *core, struct mlac_request *r, uint64_t *done, uint64_t value, uint64_t *status,
                      uint32_t n_status)
{
    if (!done)
        return;
    r->done_word = done;
    r->done_value = value;
    r->status_word = status;
    r->n_status = n_status;
    if (core->watch)
        mlac_watch_add(core->watch, r);
}

void mlac_request_disarm(struct mlac_core *core, struct mlac_request *r)
{
    if (r->done_word && core->watch)
        mlac_watch_remove(core->watch, r);
    r->done_word = NULL;
}

void mlac_request_forget_status(struct mlac_core *core, struct mlac_request *r)
{
    uint64_t *done = r->done_word;
    mlac_request_disarm(core, r);
    mlac_request_arm(core, r, done, r->done_value, NULL, 0);
}

/* ---- end ---- */

void mlac_core_answer(struct mlac_core *core, struct mlac_request *r, const struct mla_error *err)
{
    if (r->state == MLAC_FLIGHT) { /* else it has the daemon's own answer, which was held */
        if (r->type == MLA_MSG_STEP) {
            mla_step_result_init(&r->step);
            r->step.request = r->id;
            r->step.status = err->code;
            mlac_error_info(&r->step.error, err);
        } else {
            mla_decode_result_init(&r->result);
            r->result.request = r->id;
            r->result.status = err->code;
            mlac_error_info(&r->result.error, err);
        }
    }
    mlac_request_sent(core, r);
    r->state = MLAC_ANSWERED;
    if (r->callback || r->step_callback) {
        r->ready.is_event = false;
        list_push_back(&core->ready, &r->ready.node);
    }
}

void mlac_core_clear(struct mlac_core *core)
{
    core->out_head = core->out_tail = 0;
    for (; core->fds_head < core->fds_tail; core->fds_head++)
        close(core->fds[core->fds_head].fd);
    core->fds_head = core->fds_tail = 0;
    core->in_head = core->in_tail = 0;
}

void mlac_core_end(struct mlac_core *core, const struct mla_error *reason)
{
    if (core->over || (core->ended && core->recovers))
        return;
    core->ended = true;
    core->reason = core->going ? core->goaway : *reason;
    if (core->reason.code == MLA_OK) /* an ERROR notice that names no error */
        core->reason.code = MLA_PROTOCOL_ERROR;
    if (core->recovers && mlac_recover_may_retry(core->reason.code)) {
        mlac_core_cut(core);
        return;
    }
    core->over = true;
    struct mla_error err = core->reason;
    err.code = MLA_DISCONNECTED;
    mlac_core_end_templates(core);
    list_for_each_safe (node, &core->flight) {
        struct mlac_request *r = list_entry(node, struct mlac_request, order);
        if (r->done_word)
            mlac_abort_words(r, core->reason.code);
        mlac_request_disarm(core, r);
        if (r->role == MLAC_CALL) {
            r->state = MLAC_ANSWERED; /* its call sees that the core has ended */
        } else if (r->role != MLAC_JOB) {
            mlac_request_free(core, r);
        } else if (r->state != MLAC_ANSWERED) {
            mlac_core_answer(core, r, &err);
        }
    }
    mlac_core_clear(core);
}

void mlac_core_end_with(struct mlac_core *core, enum mla_status code, const char *fmt, ...)
{
    struct mla_error err = {.code = code};
    va_list args;
    va_start(args, fmt);
    vsnprintf(err.text, sizeof(err.text), fmt, args);
    va_end(args);
    mlac_core_end(core, &err);
}
