/* Rights, eviction, reload, and what a service manager is told by a real daemon. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/integration/ground.h"
#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"

#define OTHER 64123u /* a uid and gid that is nobody's */

static struct daemon d;
static char dir[64], notify_path[80], config_path[80];
static int notify_fd;

/* ---- rights ---- */

struct asks {
    enum mla_status hello, drain, evict, reload;
};

/* As another user, in a process of its own, which ends with 0 when the daemon answers as expected. */
static int another_user(void *arg)
{
    const struct asks *asks = arg;
    static struct raw r;
    struct mla_message m;
    const gid_t groups[] = {OTHER + 1};
    if (setgroups(1, groups) != 0 || setgid(OTHER) != 0 || setuid(OTHER) != 0)
        return 90;
    raw_connect(&r, d.socket);
    mla_message_init(&m, MLA_MSG_HELLO);
    m.hello.client_name = "other";
    if (raw_call(&r, &m)->hello_reply.status.code != asks->hello)
        return 91;
    if (asks->hello != MLA_OK)
        return 0;
    mla_message_init(&m, MLA_MSG_EVICT);
    m.evict.client_id = 1;
    if (raw_call(&r, &m)->reply.status.code != asks->evict)
        return 92;
    mla_message_init(&m, MLA_MSG_RELOAD);
    if (raw_call(&r, &m)->reply.status.code != asks->reload)
        return 93;
    mla_message_init(&m, MLA_MSG_DRAIN);
    if (raw_call(&r, &m)->reply.status.code != asks->drain)
        return 94;
    raw_close(&r);
    return 0;
}

static void as_another_user(struct asks asks, const char *one, const char *two)
{
    daemon_start(&d, one, two, NULL);
    ck_assert_int_eq(chmod(d.dir, 0755), 0);
    ck_assert_int_eq(child_wait(child_start(another_user, &asks)), 0);
    if (asks.hello == MLA_OK && asks.drain == MLA_OK) {
        ck_assert(daemon_ended(&d, 10000 * TEST_SLOW));
        daemon_stop(&d, 0, 0);
    } else {
        daemon_stop(&d, SIGTERM, 0);
    }
}

START_TEST(rights_of_another_user)
{
    const struct asks refused = {.hello = MLA_PERMISSION_DENIED};
    const struct asks plain = {MLA_OK, MLA_PERMISSION_DENIED, MLA_PERMISSION_DENIED, MLA_PERMISSION_DENIED};
    const struct asks admin = {MLA_OK, MLA_OK, MLA_NOT_FOUND, MLA_OK};
    if (geteuid() != 0) /* becoming somebody else needs it */
        return;
    switch (_i) {
    case 0:
        as_another_user(plain, "access.users=", "access.groups=");
        break;
    case 1:
        as_another_user(refused, "access.users=daemon", "access.groups=64999");
        break;
    case 2:
        as_another_user(plain, "access.users=64123", "access.groups=64999");
        break;
    case 3:
        as_another_user(plain, "access.users=daemon", "access.groups=64124");
        break;
    case 4:
        as_another_user(admin, "access.users=daemon", "access.admin_users=64123");
        break;
    case 5:
        as_another_user(admin, "access.users=daemon", "access.admin_groups=64124");
        break;
    }
}
END_TEST

static uint64_t id_of(struct raw *asker, const char *name)
{
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_STATUS);
    m.status.what = MLA_STATUS_CLIENTS;
    const struct mla_status_reply *r = &raw_call(asker, &m)->status_reply;
    for (size_t i = 0; i < r->n_clients; i++)
        if (strcmp(r->clients[i].name, name) == 0)
            return r->clients[i].client_id;
    return 0;
}

/* Its connection ends with a reason, its memory goes, the others do not notice. */
START_TEST(eviction)
{
    static struct raw admin, victim;
    static struct ground other;
    struct mla_message m;
    void *memory;
    daemon_start(&d, NULL);
    raw_open(&admin, d.socket);
    ground_open(&other, d.socket);
    double before = raw_metric(&admin, "mlad_mapped_bytes", "");
    raw_connect(&victim, d.socket);
    mla_message_init(&m, MLA_MSG_HELLO);
    m.hello.client_name = "victim";
    ck_assert_int_eq(raw_call(&victim, &m)->hello_reply.status.code, MLA_OK);
    int fd = raw_memfd(1 << 20, &memory);
    raw_region(&victim, fd, 1 << 20, MLA_ACCESS_READ);
    close(fd);
    ck_assert_double_eq(raw_metric(&admin, "mlad_mapped_bytes", ""), before + (1 << 20));
    mla_message_init(&m, MLA_MSG_EVICT);
    m.evict.client_id = id_of(&admin, "victim");
    ck_assert_uint_ne(m.evict.client_id, 0);
    ck_assert_int_eq(raw_call(&admin, &m)->reply.status.code, MLA_OK);
    ck_assert(raw_receive(&victim));
    ck_assert_int_eq(victim.message.type, MLA_NOTICE_ERROR);
    ck_assert_int_eq(victim.message.error_notice.status.code, MLA_PERMISSION_DENIED);
    ck_assert(!raw_receive(&victim));
    WAIT_FOR(id_of(&admin, "victim") == 0, 2000 * TEST_SLOW);
    ck_assert_double_eq(raw_metric(&admin, "mlad_mapped_bytes", ""), before);
    ck_assert_int_eq(raw_call(&admin, &m)->reply.status.code, MLA_NOT_FOUND);
    ground_decodes(&other);
    raw_close(&victim);
    ground_close(&other);
    raw_close(&admin);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* ---- under a service manager ---- */

static void config_is(const char *text)
{
    FILE *f = fopen(config_path, "we");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static void manager_setup(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(dir, "/tmp/mlad-admin-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(notify_path, sizeof(notify_path), "%s/notify", dir);
    snprintf(config_path, sizeof(config_path), "%s/mlad.conf", dir);
    memcpy(at.sun_path, notify_path, strlen(notify_path) + 1);
    notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(notify_fd, (struct sockaddr *)&at, sizeof(at)), 0);
    setenv("NOTIFY_SOCKET", notify_path, 1);
    setenv("WATCHDOG_USEC", "4000000", 1);
    unsetenv("WATCHDOG_PID");
}

static void manager_teardown(void)
{
    close(notify_fd);
    unlink(notify_path);
    unlink(config_path);
    rmdir(dir);
}

/* Waits for a message that contains text; what comes before it is skipped. */
static const char *told(const char *text)
{
    static char got[1024];
    for (;;) {
        struct pollfd p = {.fd = notify_fd, .events = POLLIN};
        ck_assert_msg(poll(&p, 1, 15000 * TEST_SLOW) == 1, "\"%s\" is not told", text);
        ssize_t n = recv(notify_fd, got, sizeof(got) - 1, 0);
        ck_assert_int_ge(n, 0);
        got[n] = '\0';
        if (strstr(got, text) != NULL)
            return got;
    }
}

START_TEST(readiness_watchdog_and_end)
{
    struct raw r;
    daemon_start(&d, NULL);
    ck_assert_str_eq(told("STATUS="), "STATUS=opening the cpu backend");
    ck_assert_str_eq(told("READY"), "READY=1");
    const char *status = told("STATUS=");
    ck_assert_msg(strstr(status, "STATUS=ready, ") == status, "%s", status);
    told("WATCHDOG=1");
    raw_open(&r, d.socket);
    told(" 1 clients, 0 jobs in flight");
    raw_close(&r);
    told("WATCHDOG=1");
    ck_assert_int_eq(kill(d.pid, SIGTERM), 0);
    status = told("STOPPING=1");
    ck_assert_msg(strstr(status, "EXTEND_TIMEOUT_USEC=25000000") != NULL, "%s", status);
    ck_assert_int_eq(strncmp(told("STATUS="), "STATUS=draining", 15), 0);
    ck_assert(daemon_ended(&d, 10000 * TEST_SLOW));
    daemon_stop(&d, 0, 0);
}
END_TEST

/* No READY for a daemon that cannot work; the manager is told why. */
START_TEST(never_ready)
{
    const char *const argv[] = {
        mla_test_path("mlad", MLAD_PROGRAM), "--config", "/dev/null", "--socket", "/nonexistent/socket", NULL};
    char out[2048], got[512];
    ck_assert_int_eq(run_program(argv, out, sizeof(out)), 1);
    for (ssize_t n; (n = recv(notify_fd, got, sizeof(got) - 1, MSG_DONTWAIT)) > 0;) {
        got[n] = '\0';
        ck_assert_ptr_null(strstr(got, "READY"));
    }
    ck_assert_int_eq(strncmp(got, "STATUS=could not start: socket: ", 32), 0); /* the last one */
}
END_TEST

/* Whatever keeps it from starting, the status line has it at the end. */
START_TEST(why_it_does_not_start)
{
    static const struct {
        const char *setting, *want;
    } rows[] = {{"daemon.nonsense=1", "configuration: --set: "},
                {"daemon.backend=cuda9", "configuration: "},
                {"access.users=nobody-of-that-name", "configuration: "},
                {"device.costs=/nonexistent", "costs: /nonexistent"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *const argv[] = {
            mla_test_path("mlad", MLAD_PROGRAM), "--config", "/dev/null", "--set", rows[i].setting, NULL};
        char out[2048], want[128];
        ck_assert_int_ne(run_program(argv, out, sizeof(out)), 0);
        snprintf(want, sizeof(want), "STATUS=could not start: %s", rows[i].want);
        told(want);
    }
}
END_TEST

static char socket_path[96];

static int with_file(void *arg)
{
    (void)arg;
    execl(mla_test_path("mlad", MLAD_PROGRAM), "mlad", "--config", config_path, "--socket", socket_path, "--set",
          "limits.max_caches=5", NULL);
    return 126;
}

static uint64_t limit(const char *what)
{
    struct mla_message m;
    static struct raw fresh; /* limits come with HELLO */
    uint64_t value;
    raw_connect(&fresh, socket_path);
    mla_message_init(&m, MLA_MSG_HELLO);
    m.hello.client_name = "limits";
    const struct mla_limits *l = &raw_call(&fresh, &m)->hello_reply.limits;
    value = strcmp(what, "regions") == 0 ? l->max_regions : l->max_caches;
    raw_close(&fresh);
    return value;
}

/* Of the first client of that name, in STATUS. */
static uint32_t weight_of(struct raw *r, const char *name)
{
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_STATUS);
    m.status.what = MLA_STATUS_CLIENTS;
    const struct mla_status_reply *s = &raw_call(r, &m)->status_reply;
    for (size_t i = 0; i < s->n_clients; i++)
        if (strcmp(s->clients[i].name, name) == 0)
            return s->clients[i].weight;
    return 0;
}

/* From HELLO on; a reload weighs those anew who are there. */
START_TEST(weights)
{
    struct raw r, serve;
    struct mla_message m;
    char text[256];
    snprintf(socket_path, sizeof(socket_path), "%s/socket", dir);
    config_is("[weights]\nclients = serve-*:8\ndefault = 2\n");
    pid_t pid = child_start(with_file, NULL);
    told("READY=1");
    raw_open(&r, socket_path);
    raw_connect(&serve, socket_path);
    mla_message_init(&m, MLA_MSG_HELLO);
    m.hello.client_name = "serve-1";
    ck_assert_int_eq(raw_call(&serve, &m)->hello_reply.status.code, MLA_OK);
    mla_message_init(&m, MLA_MSG_STATUS);
    m.status.what = MLA_STATUS_CLIENTS;
    m.status.client_id = id_of(&r, "serve-1");
    ck_assert_uint_eq(raw_call(&r, &m)->status_reply.clients[0].weight, 8);
    m.status.client_id = 0;
    const char *mine = raw_call(&r, &m)->status_reply.clients[0].name; /* it was the first */
    char own_name[64];
    snprintf(own_name, sizeof(own_name), "%s", mine);
    ck_assert_uint_eq(weight_of(&r, own_name), 2);

    snprintf(text, sizeof(text), "[weights]\nusers = %u:5\n", (unsigned)getuid());
    config_is(text);
    mla_message_init(&m, MLA_MSG_RELOAD);
    ck_assert_int_eq(raw_call(&r, &m)->reply.status.code, MLA_OK);
    ck_assert_uint_eq(weight_of(&r, "serve-1"), 5);
    ck_assert_uint_eq(weight_of(&r, own_name), 5);

    /* What is wrong is named, and changes nothing. */
    config_is("[weights]\nclients = serve-*:0\n[limits]\nmax_regions = 3\n");
    const struct mla_error *e = &raw_call(&r, &m)->reply.status;
    ck_assert_int_eq(e->code, MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(e->text, "nothing was changed: weights.clients: the weight of \"serve-*\" must be 1 to 1000");
    ck_assert_uint_eq(weight_of(&r, "serve-1"), 5);
    ck_assert_uint_eq(limit("regions"), 1024);
    config_is("");
    ck_assert_int_eq(raw_call(&r, &m)->reply.status.code, MLA_OK);
    ck_assert_uint_eq(weight_of(&r, "serve-1"), 1);
    raw_close(&serve);
    raw_close(&r);
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    ck_assert_int_eq(child_wait(pid), 0);
}
END_TEST

START_TEST(reload)
{
    struct raw r;
    struct mla_message m;
    void *memory;
    snprintf(socket_path, sizeof(socket_path), "%s/socket", dir);
    config_is("[limits]\nmax_regions = 3\nmax_caches = 9\n");
    pid_t pid = child_start(with_file, NULL);
    told("READY=1");
    raw_open(&r, socket_path);
    ck_assert_uint_eq(limit("regions"), 3);
    ck_assert_uint_eq(limit("caches"), 5); /* the command line goes over the file, also later */
    int fd = raw_memfd(1 << 20, &memory);
    uint64_t region = raw_region(&r, fd, 1 << 20, MLA_ACCESS_READ);
    ck_assert_uint_ne(region, 0);

    /* By signal; a limit below what is held already refuses what is new, and nothing else. */
    config_is("[limits]\nmax_regions = 8\nmax_caches = 9\nmax_mapped_bytes = 4096\n");
    ck_assert_int_eq(kill(pid, SIGHUP), 0);
    told("RELOADING=1\nMONOTONIC_USEC=");
    told("READY=1");
    ck_assert_uint_eq(limit("regions"), 8);
    ck_assert_uint_eq(limit("caches"), 5);
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    m.register_region.kind = MLA_REGION_MEMFD;
    m.register_region.access = MLA_ACCESS_READ;
    m.register_region.size = 4096;
    ck_assert_int_eq(raw_call_fds(&r, &m, &fd, 1)->reply.status.code, MLA_QUOTA);

    /* By request; a file that is wrong changes nothing. */
    config_is("[limits]\nmax_regions = 4\n[daemon]\nlog_level = loud\n");
    mla_message_init(&m, MLA_MSG_RELOAD);
    const struct mla_error *e = &raw_call(&r, &m)->reply.status;
    ck_assert_int_eq(e->code, MLA_INVALID_ARGUMENT);
    ck_assert_msg(strstr(e->text, "log_level") != NULL, "%s", e->text);
    ck_assert_uint_eq(limit("regions"), 8);
    config_is("[limits]\nmax_regions = 4\n");
    ck_assert_int_eq(raw_call(&r, &m)->reply.status.code, MLA_OK);
    ck_assert_uint_eq(limit("regions"), 4);
    raw_region(&r, fd, 1 << 20, MLA_ACCESS_READ);
    close(fd);
    raw_close(&r);
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    ck_assert_int_eq(child_wait(pid), 0);
}
END_TEST

MLA_SUITE(mlad_admin)
{
    TCase *tc = mla_tcase(suite, "rights");
    tcase_add_loop_test(tc, rights_of_another_user, 0, 6);
    tcase_add_test(tc, eviction);
    tc = mla_tcase(suite, "manager");
    tcase_add_checked_fixture(tc, manager_setup, manager_teardown);
    tcase_add_test(tc, readiness_watchdog_and_end);
    tcase_add_test(tc, never_ready);
    tcase_add_test(tc, why_it_does_not_start);
    tcase_add_test(tc, weights);
    tcase_add_test(tc, reload);
}
