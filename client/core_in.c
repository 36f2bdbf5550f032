/* The core's bytes received: frames, answers, notices. */
#include "client/core.h"

#include <stdio.h>
#include <stdlib.h>

#define IN_BYTES     (64u << 10)
#define LOCAL_STATUS 500 /* from here on statuses are this library's own (proto/status.h) */

/* Header of the frame at in_head; false when its 24 bytes are not there. A bad magic leaves body_len 0 for the step to
 * find. */
static bool in_header(const struct mlac_core *core, struct mla_frame_header *h, int *rc)
{
    if (core->in_tail - core->in_head < MLA_WIRE_HEADER_BYTES)
        return false;
    *rc = mla_wire_unpack(core->in + core->in_head, h);
    return true;
}

uint8_t *mlac_core_in(struct mlac_core *core, size_t *n)
{
    size_t held = core->in_tail - core->in_head;
    size_t need = IN_BYTES;
    struct mla_frame_header h = {0};
    int rc = 0;
    /* Headers are checked by the step before more is received, so body_len is within its cap here. */
    if (in_header(core, &h, &rc) && !rc && h.body_len <= MLA_CAP_REPLY_BYTES &&
        MLA_WIRE_HEADER_BYTES + (size_t)h.body_len > need)
        need = MLA_WIRE_HEADER_BYTES + (size_t)h.body_len;
    if (need > core->in_cap) {
        uint8_t *bytes = malloc(need);
        if (!bytes) {
            mlac_core_end_with(core, MLA_OUT_OF_MEMORY, "no memory for a reply of %zu bytes", need);
            return NULL;
        }
        if (held)
            memcpy(bytes, core->in + core->in_head, held);
        free(core->in);
        core->in = bytes;
        core->in_cap = need;
        core->in_head = 0;
        core->in_tail = held;
    } else if (core->in_head && core->in_cap - core->in_head < need) {
        memmove(core->in, core->in + core->in_head, held);
        core->in_head = 0;
        core->in_tail = held;
    }
    *n = core->in_cap - core->in_tail;
    return core->in + core->in_tail;
}

void mlac_core_received(struct mlac_core *core, size_t n)
{
    core->in_tail += n;
}

static bool is_notice(uint16_t type)
{
    return type == MLA_NOTICE_ERROR || type == MLA_NOTICE_GOAWAY || type == MLA_NOTICE_CACHE_GONE;
}

/* 0, or the connection has ended because of this header. */
static int check_header(struct mlac_core *core, const struct mla_frame_header *h)
{
    if (h->major != MLA_PROTO_MAJOR)
        mlac_core_end_with(core, MLA_VERSION_MISMATCH, "the daemon speaks protocol %u, this library %u", h->major,
                           MLA_PROTO_MAJOR);
    else if (h->n_fds)
        mlac_core_end_with(core, MLA_PROTOCOL_ERROR, "the daemon announced %u file descriptors", h->n_fds);
    else if (!mla_wire_body_cap(h->type))
        mlac_core_end_with(core, MLA_PROTOCOL_ERROR, "message type 0x%04x is not known", h->type);
    else if (is_notice(h->type) && h->request_id)
        mlac_core_end_with(core, MLA_PROTOCOL_ERROR, "a notice with a request id");
    else if (h->body_len > mla_wire_body_cap(h->type) || h->body_len > MLA_CAP_REPLY_BYTES)
        mlac_core_end_with(core, MLA_PROTOCOL_ERROR, "a %s of %u bytes is over the limit of %u",
                           mla_wire_type_name(h->type), h->body_len, mla_wire_body_cap(h->type));
    return core->ended;
}

/* Decodes the body of h into core->msg. 0, or the connection has ended. */
static int decode_body(struct mlac_core *core, const struct mla_frame_header *h, const uint8_t *body)
{
    size_t need = (size_t)h->body_len + MLA_CODEC_SLACK_BYTES;
    if (!core->arena_bytes || need > core->arena.cap_bytes) {
        free(core->arena_bytes);
        core->arena_bytes = malloc(need);
        if (!core->arena_bytes) {
            mlac_core_end_with(core, MLA_OUT_OF_MEMORY, "no memory for a reply of %u bytes", h->body_len);
            return 1;
        }
        mla_arena_init(&core->arena, core->arena_bytes, need);
    }
    mla_arena_reset(&core->arena);
    struct mla_error err = {0};
    int rc = mla_codec_decode(h->type, body, h->body_len, &core->arena, &core->msg, &err);
    if (rc)
        mlac_core_end_with(core, MLA_PROTOCOL_ERROR, "the daemon's %s does not parse (%s%s%s)",
                           mla_wire_type_name(h->type), rc < 0 ? "arena" : mla_status_name(err.code),
                           err.field ? ", field " : "", err.field ? err.field : "");
    return rc != 0;
}

struct mla_event *mlac_core_event(struct mlac_core *core, enum mla_event_kind kind)
{
    if (!core->want_events)
        return NULL;
    if (core->n_events >= MLAC_EVENTS_MAX) {
        mlac_core_end_with(core, MLA_PROTOCOL_ERROR, "the daemon sent more than %u notices that wait for dispatch",
                           MLAC_EVENTS_MAX);
        return NULL;
    }
    struct mlac_event *e = calloc(1, sizeof(*e));
    if (!e) {
        mlac_core_end_with(core, MLA_OUT_OF_MEMORY, "no memory for a notice");
        return NULL;
    }
    e->ready.is_event = true;
    e->event.kind = kind;
    list_push_back(&core->ready, &e->ready.node);
    core->n_events++;
    return &e->event;
}

static void take_notice(struct mlac_core *core)
{
    const struct mla_message *msg = &core->msg;
    struct mlac_object *attachment;
    struct mla_event *event;
    switch (msg->type) {
    case MLA_NOTICE_ERROR:
        mlac_core_end(core, &msg->error_notice.status);
        break;
    case MLA_NOTICE_GOAWAY:
        if (msg->goaway_notice.reason == MLA_GOAWAY_FATAL) {
            core->going = true;
            core->goaway = msg->goaway_notice.status;
            if (core->goaway.code == MLA_OK)
                core->goaway.code = MLA_DEVICE_LOST;
            core->goaway.field = NULL;
        }
        event = mlac_core_event(core, MLA_EVENT_GOAWAY);
        if (event) {
            event->goaway = msg->goaway_notice.reason;
            event->deadline_us = msg->goaway_notice.deadline_us;
            mlac_error_info(&event->error, &msg->goaway_notice.status);
        }
        break;
    default:
        attachment = core->ledger ? mlac_ledger_attached(core->ledger, msg->cache_gone_notice.cache) : NULL;
        if (attachment)
            attachment->missing = true; /* once this connection has ended; now the daemon itself answers for it */
        event = mlac_core_event(core, MLA_EVENT_CACHE_GONE);
        if (event) {
            event->cache = attachment ? attachment->id : msg->cache_gone_notice.cache;
            snprintf(event->name, sizeof(event->name), "%s", msg->cache_gone_notice.name);
        }
        break;
    }
}

/* The answer of a request that its caller gave up on: undo what it made. Should the undo not fit the send buffer, the
 * object lives until the connection ends. */
static void undo(struct mlac_core *core, const struct mlac_request *r)
{
    struct mla_message msg;
    switch (r->type) {
    case MLA_MSG_REGISTER_REGION:
        mla_message_init(&msg, MLA_MSG_UNREGISTER_REGION);
        msg.unregister_region.region = core->msg.register_region_reply.region;
        break;
    case MLA_MSG_REGISTER_SYNC:
        mla_message_init(&msg, MLA_MSG_UNREGISTER_REGION);
        msg.unregister_region.region = core->msg.register_sync_reply.region;
        break;
    case MLA_MSG_DEFINE_CACHE:
        mla_message_init(&msg, MLA_MSG_DROP_CACHE);
        msg.drop_cache.cache = core->msg.define_cache_reply.cache;
        break;
    case MLA_MSG_ATTACH_CACHE:
        mla_message_init(&msg, MLA_MSG_DETACH_CACHE);
        msg.detach_cache.cache = core->msg.attach_cache_reply.cache;
        break;
    case MLA_MSG_TEMPLATE_OPEN:
        mla_message_init(&msg, MLA_MSG_TEMPLATE_CLOSE);
        msg.template_close.id = r->object;
        break;
    default:
        return;
    }
    struct mla_error ignored;
    struct mlac_request *quiet = mlac_request_new(core, msg.type, MLAC_QUIET);
    if (quiet && mlac_core_send(core, quiet, &msg, NULL, 0, &ignored))
        mlac_request_free(core, quiet);
}

static void fill_result(struct mla_decode_result *out, uint64_t id, const struct mla_decode_reply *reply)
{
    mla_decode_result_init(out);
    out->request = id;
    out->status = reply->status.code;
    if (out->status != MLA_OK)
        mlac_error_info(&out->error, &reply->status);
    out->n_listed = (uint32_t)(reply->n_faults < MLA_FAULTS_MAX ? reply->n_faults : MLA_FAULTS_MAX);
    out->n_faults = reply->n_faults;
    if (reply->status.code == MLA_PARTIAL && reply->status.value > out->n_faults)
        out->n_faults = reply->status.value;
    for (uint32_t i = 0; i < out->n_listed; i++) {
        out->faults[i].sequence = reply->faults[i].sequence;
        out->faults[i].status = reply->faults[i].code;
        out->faults[i].index = reply->faults[i].index;
    }
    out->wait_us = reply->timing.wait_us;
    out->queue_us = reply->timing.queue_us;
    out->run_us = reply->timing.run_us;
    out->batch = reply->batch;
    out->batch_jobs = reply->batch_jobs;
    out->tiles = reply->tiles;
    out->items = reply->items;
    out->splits = reply->splits;
}

/* A daemon that drains has not run it, and will not: the next one is asked. */
static bool goes_to_the_next(const struct mlac_core *core, const struct mlac_request *r)
{
    return core->recovers && r->type == MLA_MSG_DECODE && core->msg.reply.status.code == MLA_DRAINING &&
           !r->facts.ordered && !r->facts.cancelled;
}

static enum mlac_step answer_job(struct mlac_core *core, struct mlac_request *r, uint64_t awaited)
{
    if (goes_to_the_next(core, r)) {
        mlac_request_hold(core, r);
        core->held_more = true;
        return MLAC_FRAME;
    }
    if (r->type == MLA_MSG_STEP)
        mlac_fill_step_result(&r->step, r->id, &core->msg.step_reply);
    else
        fill_result(&r->result, r->id, &core->msg.decode_reply);
    if (core->msg.reply.status.code == MLA_DEVICE_LOST) {
        /* The device may still be reading and writing; only the end of the daemon says that it is not. */
        r->state = MLAC_HELD;
        return MLAC_FRAME;
    }
    r->state = MLAC_ANSWERED;
    mlac_request_disarm(core, r);
    if (r->id == awaited)
        return MLAC_AWAITED;
    if (r->callback || r->step_callback) {
        r->ready.is_event = false;
        list_push_back(&core->ready, &r->ready.node);
    }
    return MLAC_FRAME;
}

static enum mlac_step take_reply(struct mlac_core *core, struct mlac_request *r, uint64_t awaited)
{
    const struct mla_error *status = &core->msg.reply.status;
    struct mla_event *event;
    if (r->tmpl)
        mlac_step_answered(r, status->code);
    if (core->ledger && status->code == MLA_OK && r->role != MLAC_OWN)
        mlac_ledger_ended(core->ledger, r->type, r->object);
    if (r->type == MLA_MSG_PUT_TABLE_SET && r->tables && status->code != MLA_OK)
        mlac_tables_remove(core->ledger, r->tables);
    switch (r->role) {
    case MLAC_CALL:
        mlac_request_free(core, r);
        return MLAC_AWAITED;
    case MLAC_JOB:
        return answer_job(core, r, awaited);
    case MLAC_CLOSING:
        mlac_error_info(&r->result.error, status);
        r->state = MLAC_ANSWERED;
        return MLAC_FRAME;
    case MLAC_QUIET:
        if (r->type == MLA_MSG_PUT_TABLE_SET && status->code != MLA_OK) {
            event = mlac_core_event(core, MLA_EVENT_REFUSED);
            if (event) {
                event->tables = r->object;
                mlac_error_info(&event->error, status);
            }
        }
        break;
    case MLAC_OWN:
        core->own_type = r->type;
        core->own_object = r->object;
        mlac_request_free(core, r);
        return MLAC_OWNED;
    case MLAC_LEFT:
        if (status->code == MLA_DEVICE_LOST && r->done_word) {
            r->state = MLAC_HELD; /* nobody asks, but a stream may wait for its done word */
            return MLAC_FRAME;
        }
        if (status->code == MLA_OK)
            undo(core, r);
        break;
    }
    if (!core->ended)
        mlac_request_free(core, r); /* the end has freed it already */
    return core->ended ? MLAC_ENDED : MLAC_FRAME;
}

/* The request that h answers; NULL: none, and the connection has ended. */
static struct mlac_request *find_answered(struct mlac_core *core, const struct mla_frame_header *h)
{
    struct mlac_request *r = mlac_request_find(core, h->request_id);
    if (!(h->type & MLA_REPLY) || !r || r->state != MLAC_FLIGHT || r->unsent) {
        mlac_core_end_with(core, MLA_PROTOCOL_ERROR, "a %s that answers nothing", mla_wire_type_name(h->type));
        return NULL;
    }
    if (h->type != (r->type | MLA_REPLY)) {
        mlac_core_end_with(core, MLA_PROTOCOL_ERROR, "a %s answers a %s", mla_wire_type_name(h->type),
                           mla_wire_type_name(r->type));
        return NULL;
    }
    return r;
}

enum mlac_step mlac_core_step(struct mlac_core *core, uint64_t awaited)
{
    struct mla_frame_header h = {0};
    struct mlac_request *r = NULL;
    int rc = 0;
    if (core->ended)
        return MLAC_ENDED;
    if (!in_header(core, &h, &rc))
        return MLAC_MORE;
    if (rc) {
        mlac_core_end_with(core, MLA_PROTOCOL_ERROR, "what the daemon sent is not a frame");
        return MLAC_ENDED;
    }
    if (check_header(core, &h))
        return MLAC_ENDED;
    /* What cannot be an answer is found before its body is waited for. */
    if (!is_notice(h.type) && !(r = find_answered(core, &h)))
        return MLAC_ENDED;
    if (core->in_tail - core->in_head < MLA_WIRE_HEADER_BYTES + (size_t)h.body_len)
        return MLAC_MORE;
    const uint8_t *body = core->in + core->in_head + MLA_WIRE_HEADER_BYTES;
    if (decode_body(core, &h, body))
        return MLAC_ENDED;
    core->in_head += MLA_WIRE_HEADER_BYTES + (size_t)h.body_len;
    if (core->in_head == core->in_tail)
        core->in_head = core->in_tail = 0;
    if (r && core->msg.reply.status.code >= LOCAL_STATUS) {
        mlac_core_end_with(core, MLA_PROTOCOL_ERROR, "a %s with the status %s", mla_wire_type_name(h.type),
                           mla_status_name(core->msg.reply.status.code));
        return MLAC_ENDED;
    }
    if (r)
        return take_reply(core, r, awaited);
    take_notice(core);
    return core->ended ? MLAC_ENDED : MLAC_FRAME;
}
