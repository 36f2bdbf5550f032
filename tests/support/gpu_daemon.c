#include "tests/support/gpu_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/check_main.h"

#define WAIT_MS (60000 * TEST_SLOW)

/* ---- processes ---- */

struct peer_main {
    int (*fn)(struct peer *, void *);
    void *arg;
    int ours, theirs;
};

static int peer_main(void *arg)
{
    struct peer_main *p = arg;
    struct peer parent = {.fd = p->theirs};
    close(p->ours);
    return p->fn(&parent, p->arg);
}

void peer_start(struct peer *peer, int (*fn)(struct peer *, void *), void *arg)
{
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    struct peer_main p = {.fn = fn, .arg = arg, .ours = ends[0], .theirs = ends[1]};
    *peer = (struct peer){.pid = child_start(peer_main, &p), .fd = ends[0]};
    close(ends[1]);
}

/* A failed assertion of a child has been told to Check by the child, and Check shows the first that it was told. What
 * is said here shows when the other process ended in another way. */
static void ended(const struct peer *peer, const char *instead_of, char word)
{
    if (peer->pid <= 0)
        ck_abort_msg("the test's process has ended instead of %s '%c'", instead_of, word);
    int code = child_wait(peer->pid);
    ck_abort_msg("the other process has ended with code %d instead of %s '%c'", code, instead_of, word);
}

void peer_tell(struct peer *peer, char word)
{
    ssize_t n = send(peer->fd, &word, 1, MSG_NOSIGNAL);
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
        ended(peer, "hearing", word);
    ck_assert_int_eq(n, 1);
}

char peer_next(struct peer *peer)
{
    char word = 0;
    ck_assert_msg(recv(peer->fd, &word, 1, 0) == 1, "the test's process has ended");
    return word;
}

void peer_hear(struct peer *peer, char word)
{
    struct pollfd p = {.fd = peer->fd, .events = POLLIN};
    char heard = 0;
    ck_assert_msg(poll(&p, 1, WAIT_MS) == 1, "the other process does not say '%c'", word);
    if (recv(peer->fd, &heard, 1, 0) != 1)
        ended(peer, "saying", word);
    ck_assert_msg(heard == word, "the other process says '%c', not '%c'", heard, word);
}

static void forget_peer(struct peer *peer)
{
    close(peer->fd);
    *peer = (struct peer){.fd = -1};
}

void peer_end(struct peer *peer)
{
    int code = child_wait(peer->pid);
    ck_assert_msg(code == 0, "a worker's process ended with code %d", code);
    forget_peer(peer);
}

void peer_kill(struct peer *peer)
{
    child_kill(peer->pid);
    forget_peer(peer);
}

/* ---- the daemon ---- */

static char files[64]; /* folder: reports, rules, the gate */
static char gate[96];

bool gpu_is_fake(void)
{
    const char *driver = getenv("MLA_CUDA_DRIVER");
    return driver != NULL && *driver != '\0';
}

const char *gpu_isolation(void)
{
    const char *said = getenv("MLA_TEST_ISOLATION");
    return said != NULL && *said != '\0' ? said : "isolated";
}

void gpu_daemon_rules(const char *rules)
{
    char path[96], fresh[96];
    snprintf(path, sizeof(path), "%s/rules", files);
    snprintf(fresh, sizeof(fresh), "%s/rules.new", files);
    FILE *f = fopen(fresh, "we");
    ck_assert_ptr_nonnull(f);
    fputs(rules, f);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_int_eq(rename(fresh, path), 0);
}

const char *gpu_gate(void)
{
    return gate;
}

void gpu_gate_open(void)
{
    int fd = open(gate, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static void fake_environment(bool of_daemon)
{
    char text[400] = "";
    if (of_daemon)
        snprintf(text, sizeof(text), "report=%s;faults=%s/rules;mps=%d", files, files,
                 strcmp(gpu_isolation(), "shared") == 0);
    setenv("MLA_FAKE_CUDA", text, 1);
}

static void remove_files(void)
{
    char command[128];
    if (files[0] == '\0')
        return;
    snprintf(command, sizeof(command), "rm -rf '%s'", files);
    ck_assert_int_eq(system(command), 0);
    files[0] = '\0';
}

static pid_t files_of;

static void at_exit(void)
{
    if (getpid() == files_of)
        remove_files();
}

/* A long job of a real GPU takes 80 MiB for its page ids. */
static const char *workspace(void)
{
    return gpu_is_fake() ? "device.workspace_bytes=64M" : "device.workspace_bytes=256M";
}

static void prepare(const char *rules)
{
    snprintf(files, sizeof(files), "/tmp/mlad-gpu-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(files));
    files_of = getpid();
    atexit(at_exit);
    snprintf(gate, sizeof(gate), "%s/gate", files);
    if (gpu_is_fake())
        gpu_daemon_rules(rules);
    fake_environment(true);
}

void gpu_daemon_start(struct daemon *d, const char *rules)
{
    prepare(rules);
    daemon_start(d, "daemon.backend=cuda", "scheduler.max_launch_us=0", workspace(), NULL);
    fake_environment(false);
}

void gpu_daemon_start_with(struct daemon *d, const char *rules, const char *const sets[3])
{
    prepare(rules);
    daemon_start(d, "daemon.backend=cuda", "scheduler.max_launch_us=0", workspace(), sets[0], sets[1], sets[2], NULL);
    fake_environment(false);
}

void gpu_daemon_start_again(struct daemon *d)
{
    fake_environment(true);
    daemon_start_again(d, "daemon.backend=cuda", "scheduler.max_launch_us=0", workspace(), NULL);
    fake_environment(false);
}

void gpu_daemon_stop(struct daemon *d, int exit_code)
{
    pid_t pid = d->pid;
    daemon_stop(d, SIGTERM, exit_code);
    struct mla_fake_report report;
    char open_now[512] = "";
    if (gpu_is_fake() && pid > 0 && exit_code == 0) {
        ck_assert_int_eq(mla_fake_report_read(files, pid, &report), 0);
        mla_fake_report_open(&report, open_now, sizeof(open_now));
    }
    remove_files();
    ck_assert_msg(open_now[0] == '\0', "the daemon has left open: %s", open_now);
}

struct mla_fake_report gpu_daemon_report(const struct daemon *d)
{
    struct mla_fake_report report;
    ck_assert_int_eq(mla_fake_report_read(files, d->pid, &report), 0);
    return report;
}

const char *gpu_daemon_memory(const struct daemon *d)
{
    static char text[256];
    text[0] = '\0';
    if (!gpu_is_fake())
        return text;
    struct mla_fake_report report = gpu_daemon_report(d);
    if (report.ipc_mappings + report.ipc_opens + report.vmm_handles + report.vmm_reservations + report.vmm_mappings !=
        0)
        snprintf(text, sizeof(text),
                 "%llu IPC mappings, %llu IPC opens, %llu handles, %llu reservations, %llu mappings",
                 (unsigned long long)report.ipc_mappings, (unsigned long long)report.ipc_opens,
                 (unsigned long long)report.vmm_handles, (unsigned long long)report.vmm_reservations,
                 (unsigned long long)report.vmm_mappings);
    return text;
}

uint64_t gpu_jobs_running(struct mla_client *client)
{
    struct mla_daemon_info *info = NULL;
    worker_ok(client, mla_read_daemon(client, WORKER_TIMEOUT_US, &info));
    uint64_t n = info->jobs_running;
    mla_free(info);
    return n;
}

uint64_t gpu_clients(struct mla_client *client)
{
    struct mla_daemon_info *info = NULL;
    worker_ok(client, mla_read_daemon(client, WORKER_TIMEOUT_US, &info));
    uint64_t n = info->clients;
    mla_free(info);
    return n;
}
