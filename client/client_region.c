/* Regions: memory that the daemon maps, by descriptors or by a CUDA IPC handle, in one frame or several. */
#include "client/client.h"

#include <errno.h>
#include <unistd.h>

/* ---- descriptors ---- */

void mlac_frame_close(struct mlac_frame *b, const struct mla_region_desc *d)
{
    for (size_t i = 0; d->open_part && i < b->n_opened; i++)
        close(b->fds[i]);
    b->n_opened = 0;
}

static enum mla_status open_parts(struct mla_client *c, const struct mla_region_desc *d, size_t first,
                                  struct mlac_frame *b)
{
    size_t left = d->n_parts - first;
    b->n = left < MLA_MAX_FDS_PER_FRAME ? left : MLA_MAX_FDS_PER_FRAME;
    b->n_opened = 0;
    for (size_t i = 0; i < b->n; i++) {
        const struct mla_vmm_part *part = &d->parts[first + i];
        b->parts[i] = (struct mla_region_part){
            .offset = part->offset, .size = part->bytes, .allocation_size = part->allocation_bytes};
        b->fds[i] = d->open_part ? d->open_part(d->open_user, first + i) : part->fd;
        if (b->fds[i] < 0) {
            int why = d->open_part ? -b->fds[i] : EBADF;
            mlac_frame_close(b, d);
            mlac_fail(c, d->open_part ? MLA_SYSTEM_ERROR : MLA_NO_DESCRIPTORS, "parts", "a part has no descriptor");
            c->error.index = first + i;
            c->error.value = (uint64_t)why;
            return c->error.status;
        }
        b->n_opened++;
    }
    return MLA_OK;
}

/* ---- description ---- */

static enum mla_status bad(struct mla_client *c, enum mla_status status, const char *field, uint64_t value,
                           uint64_t limit, const char *text)
{
    mlac_fail(c, status, field, "%s", text);
    c->error.value = value;
    c->error.limit = limit;
    return status;
}

static enum mla_status check(struct mla_client *c, const struct mla_region_desc *d)
{
    switch (d->kind) {
    case MLA_REGION_MEMFD:
        return d->fd >= 0 ? MLA_OK : bad(c, MLA_NO_DESCRIPTORS, "fd", 0, 1, "a memfd is needed");
    case MLA_REGION_CUDA_IPC:
        return d->ipc_handle ? MLA_OK : bad(c, MLA_INVALID_ARGUMENT, "ipc_handle", 0, 0, "the handle is missing");
    case MLA_REGION_CUDA_VMM:
        if (!d->parts || !d->n_parts)
            return bad(c, MLA_INVALID_ARGUMENT, "parts", 0, 0, "the region needs at least one part");
        if (d->n_parts > MLA_MAX_REGION_PARTS)
            return bad(c, MLA_TOO_LARGE, "parts", d->n_parts, MLA_MAX_REGION_PARTS,
                       "a region has fewer allocations than that; register several regions");
        return MLA_OK;
    }
    return bad(c, MLA_INVALID_ARGUMENT, "kind", (uint64_t)d->kind, MLA_REGION_CUDA_VMM, "unknown kind");
}

/* The library needs the caller's descriptors no more. */
static void done_with(const struct mla_region_desc *d)
{
    if (d->open_done)
        d->open_done(d->open_user);
}

/* The call ends before the description has been looked at. */
static enum mla_status not_even(const struct mla_region_desc *desc, enum mla_status status)
{
    struct mla_region_desc d;
    mla_region_desc_init(&d);
    if (desc && !mlac_copy_in(&d, sizeof(d), desc, MLAC_LEAST(struct mla_region_desc, label)))
        done_with(&d);
    return status;
}

/* The caller's description, of whatever version, in *d; the last error is set otherwise. */
static enum mla_status take_desc(struct mla_client *c, const struct mla_region_desc *desc, struct mla_region_desc *d)
{
    mla_region_desc_init(d);
    if (!desc || mlac_copy_in(d, sizeof(*d), desc, MLAC_LEAST(struct mla_region_desc, label)))
        return mlac_fail(c, MLA_INVALID_ARGUMENT, desc ? "size" : NULL, "desc is missing or too short");
    enum mla_status status = check(c, d);
    if (status != MLA_OK)
        done_with(d);
    return status;
}

/* ---- the frames ---- */

static void put_handles(struct mla_message *msg, const struct mla_region_desc *d, const struct mlac_frame *b, bool more)
{
    const uint8_t *handle = d->kind == MLA_REGION_CUDA_IPC ? d->ipc_handle : NULL;
    uint64_t block_bytes = handle ? d->block_bytes : 0;
    if (msg->type == MLA_MSG_RESUME) {
        msg->resume.offset = d->offset;
        msg->resume.cuda_ipc = handle;
        msg->resume.n_cuda_ipc = handle ? MLA_CUDA_IPC_BYTES : 0;
        msg->resume.block_size = block_bytes;
        msg->resume.parts = b->parts;
        msg->resume.n_parts = b->n;
        msg->resume.more = more;
    } else {
        msg->register_region.offset = d->offset;
        msg->register_region.cuda_ipc = handle;
        msg->register_region.n_cuda_ipc = handle ? MLA_CUDA_IPC_BYTES : 0;
        msg->register_region.block_size = block_bytes;
        msg->register_region.parts = b->parts;
        msg->register_region.n_parts = b->n;
        msg->register_region.more = more;
    }
}

enum mla_status mlac_frame_open(struct mla_client *c, const struct mla_region_desc *d, size_t first, uint64_t continues,
                                struct mlac_frame *b, struct mla_message *msg)
{
    const bool resume = msg->type == MLA_MSG_RESUME;
    b->n = b->n_opened = 0;
    if (d->kind == MLA_REGION_CUDA_VMM) {
        enum mla_status status = open_parts(c, d, first, b);
        if (status != MLA_OK)
            return status;
    }
    b->more = d->kind == MLA_REGION_CUDA_VMM && first + b->n < d->n_parts;
    put_handles(msg, d, b, b->more);
    if (!resume) {
        msg->register_region.kind = d->kind;
        msg->register_region.access = d->access;
        msg->register_region.size = d->bytes;
        msg->register_region.label = d->label;
        if (d->kind != MLA_REGION_MEMFD)
            msg->register_region.gpu_uuid = d->gpu_uuid ? d->gpu_uuid : c->gpu_uuid;
        msg->register_region.has_continues = first != 0;
        msg->register_region.continues = first ? continues : 0;
    }
    if (d->kind == MLA_REGION_MEMFD) {
        b->fds[0] = d->fd; /* the caller's */
        b->n = 1;
    }
    return MLA_OK;
}

/* Half of a region is of no use: the daemon drops what it has collected. What it has dropped itself it refuses again,
 * and nobody listens. A RESUME is dropped by one that cannot be: the handle of another kind. */
static void drop_collected(struct mla_client *c, uint16_t type, uint64_t region)
{
    static const uint8_t no_handle[MLA_CUDA_IPC_BYTES];
    const struct mla_error_info why = c->error;
    struct mla_message msg;
    if (!mlac_up(c))
        return;
    if (type == MLA_MSG_RESUME) {
        mla_message_init(&msg, MLA_MSG_RESUME);
        msg.resume.region = region;
        msg.resume.cuda_ipc = no_handle;
        msg.resume.n_cuda_ipc = sizeof(no_handle);
    } else {
        mla_message_init(&msg, MLA_MSG_UNREGISTER_REGION);
        msg.unregister_region.region = region;
    }
    mlac_translate(c, &msg);
    mlac_post(c, &msg, 0, NULL);
    c->error = why;
}

/* Parts in frames of MLA_MAX_FDS_PER_FRAME; each but the last is answered before the next is sent, since the first
 * answer has the id. *region: of a RESUME, in; of a REGISTER_REGION, out. */
static enum mla_status send_region(struct mla_client *c, uint16_t type, const struct mla_region_desc *d,
                                   uint64_t deadline_ns, uint64_t *region)
{
    const bool resume = type == MLA_MSG_RESUME;
    struct mlac_frame f;
    size_t first = 0;
    do {
        struct mla_message msg;
        const struct mla_message *reply = NULL;
        mla_message_init(&msg, type);
        if (resume)
            msg.resume.region = *region;
        enum mla_status status = mlac_frame_open(c, d, first, *region, &f, &msg);
        bool part = f.more; /* of a region of several frames, and not the last one */
        if (status == MLA_OK) {
            status = mlac_call(c, &msg, f.fds, f.n, 0, mlac_left_us(deadline_ns), &reply);
            mlac_frame_close(&f, d);
        }
        if (status != MLA_OK) {
            /* A pending REGISTER_REGION undoes itself when its answer comes; a pending last RESUME goes on. */
            bool parts = d->kind == MLA_REGION_CUDA_VMM;
            if (parts && (resume ? status != MLA_PENDING || part : status != MLA_PENDING && first))
                drop_collected(c, type, *region);
            return status;
        }
        if (!resume)
            *region = reply->register_region_reply.region;
        first += f.n;
    } while (f.more);
    return MLA_OK;
}

/* A connection that is cut under a region's frames takes what the daemon had of it along: all of them again. */
static bool again(struct mla_client *c, enum mla_status status, uint64_t epoch)
{
    return status == MLA_DISCONNECTED && !c->core.over && c->core.recovers && c->epoch != epoch;
}

/* ---- calls ---- */

enum mla_status mla_region_register(struct mla_client *client, const struct mla_region_desc *desc, uint64_t timeout_us,
                                    mla_region_id *out)
{
    struct mla_region_desc d;
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return not_even(desc, status);
    if (!out)
        return not_even(desc, mlac_fail(client, MLA_INVALID_ARGUMENT, "out", "out is missing"));
    status = take_desc(client, desc, &d);
    if (status != MLA_OK)
        return status;
    const uint64_t deadline_ns = mlac_deadline(timeout_us);
    uint64_t region = 0, epoch;
    do {
        epoch = client->epoch;
        region = 0;
        status = send_region(client, MLA_MSG_REGISTER_REGION, &d, deadline_ns, &region);
    } while (again(client, status, epoch));
    if (status == MLA_OK)
        *out = region;
    if (status == MLA_OK && client->core.ledger)
        mlac_ledger_region(&client->ledger, region, &d);
    else
        done_with(&d);
    return status;
}

enum mla_status mla_memory_register(struct mla_client *client, const struct mla_memory *memory, enum mla_access access,
                                    const char *label, uint64_t timeout_us, mla_region_id *out)
{
    struct mla_region_desc d;
    mla_region_desc_init(&d);
    if (memory) {
        d.fd = memory->fd;
        d.bytes = memory->size;
    }
    d.access = access;
    d.label = label;
    return mla_region_register(client, &d, timeout_us, out);
}

enum mla_status mla_region_unregister(struct mla_client *client, mla_region_id region, uint64_t timeout_us)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_UNREGISTER_REGION);
    msg.unregister_region.region = region;
    return mlac_call(client, &msg, NULL, 0, region, timeout_us, NULL);
}

enum mla_status mla_region_suspend(struct mla_client *client, mla_region_id region, uint64_t timeout_us)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_SUSPEND);
    msg.suspend.region = region;
    return mlac_call(client, &msg, NULL, 0, region, timeout_us, NULL);
}

/* After a reconnect the daemon does not know a suspended region: it is registered anew, and what lies in it with it. */
static enum mla_status remake(struct mla_client *c, struct mlac_object *o, const struct mla_region_desc *desc,
                              uint64_t deadline_ns)
{
    struct mla_region_desc d = *desc;
    uint64_t wire = 0;
    d.access = o->region.desc.access;
    d.label = o->region.desc.label;
    d.gpu_uuid = o->region.desc.gpu_uuid;
    enum mla_status status = send_region(c, MLA_MSG_REGISTER_REGION, &d, deadline_ns, &wire);
    if (status != MLA_OK)
        return status;
    o->wire = wire;
    o->there = true;
    o->suspended = false;
    mlac_restore_caches(c);
    return MLA_OK;
}

enum mla_status mla_region_resume(struct mla_client *client, mla_region_id region, const struct mla_region_desc *desc,
                                  uint64_t timeout_us)
{
    struct mla_region_desc d;
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return not_even(desc, status);
    status = take_desc(client, desc, &d);
    if (status != MLA_OK)
        return status;
    /* A SUSPEND that was given up and has been answered since: the next one is another. */
    struct mlac_request *r = mlac_request_find_closing(&client->core, MLA_MSG_SUSPEND, region);
    if (r && r->state == MLAC_ANSWERED)
        mlac_request_free(&client->core, r);
    const uint64_t deadline_ns = mlac_deadline(timeout_us);
    uint64_t epoch;
    do {
        if (!mlac_up(client) && (status = mlac_await_up(client, deadline_ns)) != MLA_OK)
            break;
        struct mlac_object *o = mlac_ledger_find(&client->ledger, region);
        epoch = client->epoch;
        if (o && o->kind == MLAC_REGION && o->suspended && !o->there)
            status = remake(client, o, &d, deadline_ns);
        else
            status = send_region(client, MLA_MSG_RESUME, &d, deadline_ns, &region);
    } while (again(client, status, epoch));
    struct mlac_object *o = mlac_ledger_find(&client->ledger, region);
    if (status == MLA_OK && o && o->kind == MLAC_REGION)
        mlac_ledger_resumed(&client->ledger, o, &d);
    else
        done_with(&d);
    return status;
}
