/* Carries out what client/recover.h decides: sockets, greetings, the fence, and what the caller is told. */
#include "client/client.h"
#include "client/watch.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include "daemon/util/clock.h"

#define FIRST_US 2000
#define LAST_US  1000000
#define GREET_US 10000000

uint64_t mlac_random(void)
{
    uint64_t random = 0;
    while (random == 0)
        if (getrandom(&random, sizeof(random), 0) != sizeof(random) && errno != EINTR)
            random = mla_now_ns();
    return random;
}

void mlac_recover_begin(struct mla_client *c, uint64_t limit_us)
{
    struct mlac_recover_config config = {.limit_ns = UINT64_MAX,
                                         .first_ns = FIRST_US * MLA_NS_PER_US,
                                         .last_ns = LAST_US * MLA_NS_PER_US,
                                         .greet_ns = GREET_US * MLA_NS_PER_US};
    if (limit_us < UINT64_MAX / MLA_NS_PER_US)
        config.limit_ns = limit_us * MLA_NS_PER_US;
    config.seed = mlac_random();
    mlac_recover_init(&c->recover, &config);
    mlac_recover_up(&c->recover, mla_now_ns(), c->server.boot_nonce, c->server.client_id);
    mlac_ledger_free(&c->ledger);
    mlac_ledger_init(&c->ledger, config.seed >> 1);
    c->core.ledger = &c->ledger;
    c->core.recovers = true;
}

/* ---- what the machine asks for ---- */

static void keep_why(struct mla_client *c, enum mla_status code, const char *text)
{
    c->why = (struct mla_error){.code = code};
    snprintf(c->why.text, sizeof(c->why.text), "%s", text);
}

/* The socket goes; what was on its way on it is the core's to answer, or to keep. */
static void disconnect(struct mla_client *c)
{
    mlac_hang_up(c);
    mlac_watch_stop(c->core.watch);
    c->core.watch = NULL;
    mlac_restore_stop(c);
    c->down = true;
}

static struct mlac_recover_event failed(struct mla_client *c, enum mla_status status, const char *text)
{
    keep_why(c, status, text);
    return (struct mlac_recover_event){.kind = MLAC_ON_FAILED, .status = status};
}

static struct mlac_recover_event make_connection(struct mla_client *c)
{
    struct epoll_event ev = {.events = EPOLLIN};
    int rc = mlac_connect(c);
    if (rc == -ENOENT || rc == -ECONNREFUSED)
        return failed(c, MLA_DISCONNECTED, "no daemon listens");
    if (rc)
        return failed(c, rc == -EAGAIN ? MLA_OVERLOADED : MLA_SYSTEM_ERROR, "the daemon cannot be connected to");
    mlac_core_reopen(&c->core);
    c->down = c->send_dead = c->armed_out = false;
    rc = epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->sock, &ev) ? -errno : 0;
    if (!rc && c->watching)
        rc = mlac_watch_start(c->sock, &c->core.watch);
    if (!rc)
        return (struct mlac_recover_event){.kind = MLAC_ON_CONNECTED};
    mlac_core_end_with(&c->core, MLA_DISCONNECTED, "the connection cannot be watched");
    disconnect(c);
    return failed(c, MLA_SYSTEM_ERROR, "the connection cannot be watched");
}

enum mla_status mlac_own(struct mla_client *c, const struct mla_message *msg, const int *fds, size_t n_fds,
                         uint64_t object)
{
    struct mla_error err = {.code = MLA_OUT_OF_MEMORY};
    struct mlac_request *r = mlac_request_new(&c->core, msg->type, MLAC_OWN);
    if (r && mlac_core_send(&c->core, r, msg, fds, n_fds, &err)) {
        mlac_request_free(&c->core, r);
        r = NULL;
    }
    if (!r) /* descriptors, or memory, may be there later */
        return err.code == MLA_SYSTEM_ERROR ? MLA_OUT_OF_MEMORY : err.code;
    r->object = object;
    return MLA_OK;
}

static bool say_hello(struct mla_client *c, struct mlac_recover_event *e)
{
    struct mla_message msg;
    mlac_hello(c, &msg);
    enum mla_status status = mlac_own(c, &msg, NULL, 0, 0);
    if (status != MLA_OK)
        *e = failed(c, status, "the greeting cannot be sent");
    return status != MLA_OK;
}

static bool ask_fence(struct mla_client *c, struct mlac_recover_event *e)
{
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_STATUS);
    msg.status.what = MLA_STATUS_CLIENTS;
    msg.status.client_id = c->recover.fence_client; /* the list of all may end before it */
    e->status = mlac_own(c, &msg, NULL, 0, 0);
    e->kind = MLAC_ON_REFUSED;
    return e->status != MLA_OK;
}

static bool restore(struct mla_client *c, struct mlac_recover_event *e)
{
    bool more;
    e->status = mlac_restore_next(c, &more);
    e->kind = more ? MLAC_ON_REFUSED : MLAC_ON_COMPLETE;
    return !more || e->status != MLA_OK;
}

struct mla_event *mlac_tell(struct mla_client *c, enum mla_event_kind kind)
{
    return c->core.n_events < MLAC_EVENTS_MAX / 2 ? mlac_core_event(&c->core, kind) : NULL;
}

static void tell(struct mla_client *c, enum mla_event_kind kind, const struct mla_error *why)
{
    struct mla_event *event = mlac_tell(c, kind);
    if (!event)
        return;
    event->restarted = c->recover.restarted;
    mlac_error_info(&event->error, why);
}

static void go(struct mla_client *c)
{
    const struct mla_error none = {.code = MLA_OK};
    if (!c->adding)
        tell(c, MLA_EVENT_RECONNECTED, &none);
    c->adding = false;
    mlac_reattach(c);
    mlac_resend(c);
}

static void give_up(struct mla_client *c)
{
    struct mla_error why = c->why;
    if (why.code == MLA_OK)
        why.code = MLA_DISCONNECTED;
    disconnect(c);
    c->core.recovers = false;
    mlac_core_end(&c->core, &why);
}

/* True: *e is the outcome. */
static bool carry_out(struct mla_client *c, enum mlac_recover_act act, struct mlac_recover_event *e)
{
    switch (act) {
    case MLAC_DO_REST:
        return false;
    case MLAC_DO_CONNECT:
        *e = make_connection(c);
        return true;
    case MLAC_DO_GREET:
        return say_hello(c, e);
    case MLAC_DO_ASK:
        return ask_fence(c, e);
    case MLAC_DO_SKIP:
        mlac_restore_skip(c);
        return restore(c, e);
    case MLAC_DO_RESTORE:
        return restore(c, e);
    case MLAC_DO_HANG_UP:
        mlac_core_end_with(&c->core, MLA_DISCONNECTED, "%s", mla_status_text(c->recover.why));
        disconnect(c);
        return false;
    case MLAC_DO_GO:
        go(c);
        return false;
    case MLAC_DO_GIVE_UP:
        give_up(c);
        return false;
    }
    return false;
}

static void feed(struct mla_client *c, struct mlac_recover_event e)
{
    do
        e.now_ns = mla_now_ns();
    while (carry_out(c, mlac_recover_step(&c->recover, &e), &e));
    mlac_io_flush(c);
}

/* ---- what happens ---- */

void mlac_recover_notice(struct mla_client *c)
{
    if (!c->core.ended || c->core.over || c->down)
        return;
    bool was_up = c->recover.state == MLAC_RECOVER_UP || c->adding;
    c->why = c->core.reason;
    c->why.field = NULL;
    c->epoch++;
    c->adding = false;
    disconnect(c);
    c->recover.restarted = false;
    if (was_up)
        tell(c, MLA_EVENT_INTERRUPTED, &c->why);
    mlac_expire(c);
    feed(c, (struct mlac_recover_event){.kind = MLAC_ON_LOST, .status = c->why.code});
}

void mlac_restore_caches(struct mla_client *c)
{
    c->adding = true;
    feed(c, (struct mlac_recover_event){.kind = MLAC_ON_MORE});
    mlac_await_up(c, MLA_FOREVER); /* up to the limit of recovery */
}

static void hello_answered(struct mla_client *c)
{
    const struct mla_hello_reply *hello = &c->core.msg.hello_reply;
    const struct mla_error_info before = c->error;
    enum mla_status status = hello->status.code;
    if (status != MLA_OK) {
        feed(c, failed(c, status, hello->status.text));
        return;
    }
    /* Memory that was registered lies on one device. */
    if (strcmp(hello->gpu_uuid, c->gpu_uuid) != 0) {
        feed(c, failed(c, MLA_WRONG_DEVICE, "the daemon now serves another device"));
        return;
    }
    status = mlac_greeted(c, hello);
    if (status != MLA_OK) {
        struct mlac_recover_event e = failed(c, status, c->error.text);
        c->error = before;
        feed(c, e);
        return;
    }
    feed(c, (struct mlac_recover_event){
                .kind = MLAC_ON_GREETED, .boot = c->server.boot_nonce, .client = c->server.client_id});
}

static void fence_answered(struct mla_client *c)
{
    const struct mla_status_reply *reply = &c->core.msg.status_reply;
    struct mlac_recover_event e = {.kind = MLAC_ON_GONE, .status = reply->status.code};
    if (reply->status.code != MLA_OK)
        e.kind = MLAC_ON_REFUSED;
    for (size_t i = 0; e.kind == MLAC_ON_GONE && i < reply->n_clients; i++)
        if (reply->clients[i].client_id == c->recover.fence_client)
            e.kind = MLAC_ON_PRESENT;
    feed(c, e);
}

void mlac_recover_answered(struct mla_client *c)
{
    struct mlac_recover_event e = {.kind = MLAC_ON_RESTORED};
    switch (c->core.own_type) {
    case MLA_MSG_HELLO:
        hello_answered(c);
        break;
    case MLA_MSG_STATUS:
        fence_answered(c);
        break;
    case MLA_MSG_ATTACH_CACHE:
        mlac_reattached(c, c->core.own_object);
        break;
    default:
        if (!mlac_restore_answered(c, &e.status))
            e.kind = MLAC_ON_REFUSED;
        feed(c, e);
    }
}

void mlac_recover_tick(struct mla_client *c)
{
    if (c->core.over || !c->core.recovers)
        return;
    mlac_recover_notice(c);
    if (c->recover.wake_ns != UINT64_MAX && mla_now_ns() >= c->recover.wake_ns)
        feed(c, (struct mlac_recover_event){.kind = MLAC_ON_DUE});
    if (c->core.held_more || (c->core.n_unsent && mla_now_ns() >= c->expire_ns))
        mlac_expire(c);
}

uint64_t mlac_recover_wake_ns(const struct mla_client *c)
{
    if (!c->core.recovers || c->core.over)
        return UINT64_MAX;
    uint64_t at_ns = c->recover.wake_ns;
    return c->core.n_unsent && c->expire_ns < at_ns ? c->expire_ns : at_ns;
}

enum mla_status mlac_await_up(struct mla_client *c, uint64_t deadline_ns)
{
    while (!mlac_up(c)) {
        enum mlac_outcome outcome = mlac_io_wait(c, MLAC_AWAIT_UP, deadline_ns);
        if (outcome == MLAC_EXPIRED)
            return mlac_pending(c);
        if (outcome == MLAC_LOST)
            return mlac_ended(c);
    }
    return MLA_OK;
}

enum mla_status mla_wait_connected(struct mla_client *client, uint64_t timeout_us)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    /* One look at the socket: a connection that has been cut unnoticed is not one. */
    mlac_io_wait(client, MLAC_AWAIT_UP, 0);
    status = mlac_await_up(client, mlac_deadline(timeout_us));
    mlac_io_settle(client);
    return status;
}
