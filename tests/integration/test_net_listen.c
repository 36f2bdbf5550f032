/* The socket's file: rights, stale and foreign files, locks, sockets passed in by a service manager. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/net/adopt.h"
#include "daemon/net/listen.h"
#include "tests/integration/net_fixture.h"

static struct listen_socket sock, second;
static struct mla_error err;
static char lock[128];

static void setup(void)
{
    fx_prepare();
    snprintf(lock, sizeof(lock), "%s.lock", fx.path);
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
}

static void teardown(void)
{
    unlink(fx.path);
    ck_assert_int_eq(rmdir(fx.dir), 0); /* no lock file is left */
    ck_assert_int_eq(uv_loop_close(&fx.loop), 0);
}

static int open_at(struct listen_socket *s)
{
    memset(&err, 0, sizeof(err));
    return listen_open(s, fx.path, 0660, NULL, &err);
}

static void expect_refused(enum mla_status code, const char *word)
{
    int rc = open_at(&second);
    ck_assert_int_eq(rc, (int)code);
    ck_assert_str_eq(mla_status_name(err.code), mla_status_name(code));
    ck_assert_msg(strstr(err.text, word) != NULL, "\"%s\" does not say \"%s\"", err.text, word);
    ck_assert_str_eq(err.field, "socket_path");
    ck_assert_int_eq(second.fd, -1);
}

/* A socket bound and listening (or not) at path, without lock, as another program would. */
static int other_program(bool listening)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un addr = fx_address();
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    if (listening)
        ck_assert_int_eq(listen(fd, 4), 0);
    return fd;
}

START_TEST(rights_and_group)
{
    gid_t groups[64];
    int n = getgroups(64, groups);
    gid_t gid = n > 0 ? groups[n - 1] : getegid();
    char name[16];
    snprintf(name, sizeof(name), "%u", gid);
    static const mode_t modes[] = {0660, 0600, 0666}, umasks[] = {0, 022, 0777};
    for (int i = 0; i < 3; i++) {
        mode_t before = umask(umasks[i]);
        ck_assert_int_eq(listen_open(&sock, fx.path, modes[i], name, &err), 0);
        struct stat st;
        ck_assert_int_eq(lstat(fx.path, &st), 0);
        ck_assert(S_ISSOCK(st.st_mode));
        ck_assert_uint_eq(st.st_mode & 07777, modes[i]);
        ck_assert_uint_eq(st.st_gid, gid);
        ck_assert_uint_eq(umask(before), umasks[i]); /* put back */
        ck_assert_int_eq(lstat(lock, &st), 0);
        ck_assert_uint_eq(st.st_mode & 077, 0);
        listen_close(&sock);
        ck_assert_int_lt(lstat(fx.path, &st), 0);
        ck_assert_int_lt(lstat(lock, &st), 0);
        listen_close(&sock); /* again is nothing */
    }
}
END_TEST

START_TEST(bad_settings)
{
    ck_assert_int_eq(listen_open(&sock, fx.path, 0660, "no-such-group", &err), MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(err.field, "socket_group");
    ck_assert_int_eq(listen_open(&sock, "", 0660, NULL, &err), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(listen_open(&sock, NULL, 0660, NULL, &err), MLA_INVALID_ARGUMENT);
    char path[200];
    memset(path, 'a', sizeof(path));
    path[108] = 0;
    ck_assert_int_eq(listen_open(&sock, path, 0660, NULL, &err), MLA_TOO_LARGE);
    ck_assert_uint_eq(err.value, 108);
    ck_assert_uint_eq(err.limit, 107);
    ck_assert_int_eq(listen_open(&sock, "/nonexistent/dir/socket", 0660, NULL, &err), MLA_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "no such folder"));
    ck_assert_ptr_nonnull(strstr(err.text, "/nonexistent/dir/socket"));
}
END_TEST

START_TEST(stale_socket_is_replaced)
{
    close(other_program(true));
    ck_assert_int_eq(access(fx.path, F_OK), 0);
    ck_assert_int_eq(open_at(&sock), 0);
    int fd = client_socket();
    close(fd);
    listen_close(&sock);
}
END_TEST

START_TEST(live_socket_is_left)
{
    int other = other_program(true);
    expect_refused(MLA_ALREADY_EXISTS, "listens");
    close(client_socket()); /* still there */
    /* With a full backlog it answers nothing, and is alive all the same. */
    ck_assert_int_eq(listen(other, 0), 0);
    int fd[8];
    struct sockaddr_un addr = fx_address();
    for (int i = 0; i < 8; i++) {
        fd[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)!connect(fd[i], (struct sockaddr *)&addr, sizeof(addr));
    }
    expect_refused(MLA_ALREADY_EXISTS, "listens");
    for (int i = 0; i < 8; i++)
        close(fd[i]);
    close(other);
}
END_TEST

START_TEST(foreign_file_is_left)
{
    int fd = open(fx.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, "mine", 4), 4);
    close(fd);
    expect_refused(MLA_ALREADY_EXISTS, "not a socket");
    struct stat st;
    ck_assert_int_eq(stat(fx.path, &st), 0);
    ck_assert_int_eq(st.st_size, 4);
    unlink(fx.path);
    ck_assert_int_eq(symlink("/dev/null", fx.path), 0);
    expect_refused(MLA_ALREADY_EXISTS, "not a socket");
    ck_assert_int_eq(lstat(fx.path, &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
    unlink(fx.path);
    ck_assert_int_eq(mkdir(fx.path, 0700), 0);
    expect_refused(MLA_ALREADY_EXISTS, "not a socket");
    ck_assert_int_eq(rmdir(fx.path), 0);
}
END_TEST

START_TEST(datagram_socket_is_left)
{
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un addr = fx_address();
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    expect_refused(MLA_ALREADY_EXISTS, "another type");
    ck_assert_int_eq(access(fx.path, F_OK), 0);
    close(fd);
}
END_TEST

START_TEST(lock_decides)
{
    ck_assert_int_eq(open_at(&sock), 0);
    expect_refused(MLA_ALREADY_EXISTS, "holds the lock");
    ck_assert_int_eq(access(lock, F_OK), 0);
    close(client_socket());
    listen_close(&sock);
    ck_assert_int_eq(open_at(&second), 0); /* free again */
    listen_close(&second);
}
END_TEST

START_TEST(lock_file_that_is_a_link)
{
    char target[128];
    snprintf(target, sizeof(target), "%s/victim", fx.dir);
    ck_assert_int_eq(symlink(target, lock), 0);
    expect_refused(MLA_INTERNAL, ".lock");
    ck_assert_int_ne(access(target, F_OK), 0); /* not followed */
    unlink(lock);
}
END_TEST

START_TEST(replaced_file_is_left)
{
    ck_assert_int_eq(open_at(&sock), 0);
    ck_assert_int_eq(unlink(fx.path), 0);
    int other = other_program(true);
    listen_close(&sock);
    close(client_socket()); /* the other program's file is still there */
    close(other);
}
END_TEST

/* Killed without a chance to clean up: the next one takes over. */
START_TEST(after_a_kill)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(listen_open(&sock, fx.path, 0660, NULL, NULL) ? 1 : 0);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(access(fx.path, F_OK), 0);
    ck_assert_int_eq(access(lock, F_OK), 0);
    ck_assert_int_eq(open_at(&sock), 0);
    listen_close(&sock);
}
END_TEST

/* ---- passed-in sockets; in processes of their own, whose descriptors from 3 on may be overwritten ---- */

static int listening_elsewhere(int type)
{
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (bind(fd, (struct sockaddr *)&addr, sizeof(sa_family_t)) < 0) /* abstract, chosen by the kernel */
        _exit(99);
    if (type == SOCK_STREAM && listen(fd, 4) < 0)
        _exit(98);
    return fd;
}

static void pass(int n, const char *names, pid_t to)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", n);
    setenv("LISTEN_FDS", text, 1);
    snprintf(text, sizeof(text), "%d", (int)to);
    setenv("LISTEN_PID", text, 1);
    if (names)
        setenv("LISTEN_FDNAMES", names, 1);
}

static void in_child(int (*body)(void))
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(body());
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child stopped at step %d (status %d)",
                  WEXITSTATUS(status), status);
}

static int adopt_one(void)
{
    int fd = listening_elsewhere(SOCK_STREAM);
    dup2(fd, ADOPT_FIRST_FD);
    pass(1, NULL, getpid());
    if (listen_open(&sock, fx.path, 0660, NULL, &err))
        return 1;
    if (sock.fd != ADOPT_FIRST_FD || sock.lock_fd != -1 || sock.bound)
        return 2;
    if (!(fcntl(sock.fd, F_GETFD) & FD_CLOEXEC) || !(fcntl(sock.fd, F_GETFL) & O_NONBLOCK))
        return 3;
    if (getenv("LISTEN_FDS") || getenv("LISTEN_PID") || getenv("LISTEN_FDNAMES"))
        return 4;
    if (access(fx.path, F_OK) == 0)
        return 5;
    listen_close(&sock);
    return 0;
}

static int adopt_named(void)
{
    int a = listening_elsewhere(SOCK_STREAM), b = listening_elsewhere(SOCK_STREAM);
    a = fcntl(a, F_DUPFD, 20);
    b = fcntl(b, F_DUPFD, 20);
    dup2(a, ADOPT_FIRST_FD);
    dup2(b, ADOPT_FIRST_FD + 1);
    pass(2, "metrics:mlad", getpid());
    int fd;
    if (adopt_socket(&fd, &err) || fd != ADOPT_FIRST_FD + 1)
        return 1;
    pass(2, "metrics:mladx", getpid());
    if (adopt_socket(&fd, &err) != MLA_INVALID_ARGUMENT || fd != -1)
        return 2;
    pass(2, NULL, getpid());
    unsetenv("LISTEN_FDNAMES");
    if (adopt_socket(&fd, &err) != MLA_INVALID_ARGUMENT)
        return 3;
    return 0;
}

static int adopt_not_ours(void)
{
    int fd;
    pass(1, NULL, getpid() + 1);
    if (adopt_socket(&fd, &err) || fd != -1 || getenv("LISTEN_FDS"))
        return 1;
    static const char *const numbers[] = {"", "x", "1x", "-1", "99999999999999999999", "0"};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        pass(1, NULL, getpid());
        setenv("LISTEN_FDS", numbers[i], 1);
        if (adopt_socket(&fd, &err) || fd != -1)
            return 2;
    }
    pass(1, NULL, getpid());
    setenv("LISTEN_FDS", "2147483647", 1);
    return adopt_socket(&fd, &err) == MLA_INVALID_ARGUMENT ? 0 : 3;
}

static int adopt_wrong_kind(void)
{
    int fd, not_listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int wrong[] = {open("/dev/null", O_RDONLY | O_CLOEXEC), listening_elsewhere(SOCK_DGRAM), not_listening};
    for (int i = 0; i < 3; i++)
        wrong[i] = fcntl(wrong[i], F_DUPFD, 20);
    for (int i = 0; i < 3; i++) {
        dup2(wrong[i], ADOPT_FIRST_FD);
        pass(1, NULL, getpid());
        if (adopt_socket(&fd, &err) != MLA_INVALID_ARGUMENT || fd != -1)
            return 1 + i;
    }
    close(ADOPT_FIRST_FD);
    pass(1, NULL, getpid());
    return adopt_socket(&fd, &err) == MLA_INVALID_ARGUMENT ? 0 : 9;
}

START_TEST(adoption)
{
    in_child(adopt_one);
    in_child(adopt_named);
    in_child(adopt_not_ours);
    in_child(adopt_wrong_kind);
}
END_TEST

/* ---- through net ---- */

START_TEST(stop_listening_keeps_peers)
{
    fx_start();
    int fd = client_open();
    net_stop_listening(fx.net);
    ck_assert_int_ne(access(fx.path, F_OK), 0);
    fx_turn();
    client_request(fd, MLA_MSG_HEALTH, 1);
    client_expect(fd, MLA_MSG_HEALTH | MLA_REPLY, 1, MLA_OK);
    net_stop_listening(fx.net);
    close(fd);
}
END_TEST

START_TEST(second_net_is_refused)
{
    fx_start();
    static const struct net_handlers handlers;
    struct net *other = NULL;
    ck_assert_int_eq(net_open(&other, &fx.loop, &fx.config, &handlers, NULL, &err), MLA_ALREADY_EXISTS);
    ck_assert_ptr_null(other);
    int fd = client_open();
    close(fd);
}
END_TEST

MLA_SUITE(net_listen)
{
    TCase *tc = mla_tcase(suite, "file");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, rights_and_group);
    tcase_add_test(tc, bad_settings);
    tcase_add_test(tc, stale_socket_is_replaced);
    tcase_add_test(tc, live_socket_is_left);
    tcase_add_test(tc, foreign_file_is_left);
    tcase_add_test(tc, datagram_socket_is_left);
    tcase_add_test(tc, lock_decides);
    tcase_add_test(tc, lock_file_that_is_a_link);
    tcase_add_test(tc, replaced_file_is_left);
    tcase_add_test(tc, after_a_kill);
    tcase_add_test(tc, adoption);

    tc = mla_tcase(suite, "net");
    tcase_add_checked_fixture(tc, fx_prepare, fx_close);
    tcase_add_test(tc, stop_listening_keeps_peers);
    tcase_add_test(tc, second_net_is_refused);
}
