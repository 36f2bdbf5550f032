/* What the daemon tells the service manager and the journal, byte for byte. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/util/journal.h"
#include "daemon/util/notify.h"
#include "tests/support/check_main.h"

static char dir[] = "/tmp/mla-notify-XXXXXX", path[64];
static int fd;

static void open_socket(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/s", dir);
    memcpy(at.sun_path, path, strlen(path) + 1);
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
}

static void close_socket(void)
{
    close(fd);
    unlink(path);
    rmdir(dir);
    strcpy(dir, "/tmp/mla-notify-XXXXXX");
}

static const char *received(void)
{
    static char got[4096];
    ssize_t n = recv(fd, got, sizeof(got) - 1, MSG_DONTWAIT);
    ck_assert_int_ge(n, 0);
    got[n] = '\0';
    return got;
}

START_TEST(notify_sends_one_datagram)
{
    setenv("NOTIFY_SOCKET", path, 1);
    ck_assert_int_eq(mla_notify("READY=1\nSTATUS=%s %d", "clients", 3), 0);
    ck_assert_str_eq(received(), "READY=1\nSTATUS=clients 3");
    char text[2 * MLA_NOTIFY_BYTES];
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    ck_assert_int_eq(mla_notify("STATUS=%s", text), 0);
    ck_assert_uint_eq(strlen(received()), MLA_NOTIFY_BYTES - 1);
}
END_TEST

START_TEST(notify_without_anybody)
{
    unsetenv("NOTIFY_SOCKET");
    ck_assert_int_eq(mla_notify("READY=1"), 1);
    setenv("NOTIFY_SOCKET", "/nonexistent/socket", 1);
    ck_assert_int_eq(mla_notify("READY=1"), -ENOENT);
    setenv("NOTIFY_SOCKET", "vsock:2:99", 1);
    ck_assert_int_eq(mla_notify("READY=1"), -EAFNOSUPPORT);
}
END_TEST

START_TEST(notify_to_an_abstract_name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char name[64];
    snprintf(name, sizeof(name), "@mla-test-notify-%d", (int)getpid());
    memcpy(at.sun_path + 1, name + 1, strlen(name) - 1);
    int abstract = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(abstract, (struct sockaddr *)&at, (socklen_t)(sizeof(sa_family_t) + strlen(name))), 0);
    setenv("NOTIFY_SOCKET", name, 1);
    ck_assert_int_eq(mla_notify("WATCHDOG=1"), 0);
    char got[64];
    ck_assert_int_eq(recv(abstract, got, sizeof(got), MSG_DONTWAIT), 10);
    close(abstract);
}
END_TEST

START_TEST(watchdog_of_this_process)
{
    char pid[16];
    unsetenv("WATCHDOG_PID");
    unsetenv("WATCHDOG_USEC");
    ck_assert_uint_eq(mla_notify_watchdog_us(), 0);
    setenv("WATCHDOG_USEC", "30000000", 1);
    ck_assert_uint_eq(mla_notify_watchdog_us(), 30000000);
    setenv("WATCHDOG_PID", "1", 1);
    ck_assert_uint_eq(mla_notify_watchdog_us(), 0);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    ck_assert_uint_eq(mla_notify_watchdog_us(), 30000000);
    setenv("WATCHDOG_USEC", "30s", 1);
    ck_assert_uint_eq(mla_notify_watchdog_us(), 0);
}
END_TEST

START_TEST(entry_has_a_field_for_each_pair)
{
    static const char line[] = "event=client_in client=01 name=\"two \\\"words\\\" \\\\ \\x0a\" uid=7 text=\"\"";
    int journal = mla_journal_open(path);
    ck_assert_int_ge(journal, 0);
    ck_assert_int_eq(mla_journal_send(journal, 6, line, strlen(line)), 0);
    ck_assert_str_eq(received(),
                     "MESSAGE=event=client_in client=01 name=\"two \\\"words\\\" \\\\ \\x0a\" uid=7 text=\"\"\n"
                     "PRIORITY=6\nSYSLOG_IDENTIFIER=mlad\n"
                     "MLAD_EVENT=client_in\nMLAD_CLIENT=01\nMLAD_NAME=two \"words\" \\ \\x0a\nMLAD_UID=7\n"
                     "MLAD_TEXT=\n");
    close(journal);
}
END_TEST

/* Whatever is in a line: no field that was not asked for, no more than fits. */
START_TEST(entry_of_odd_lines)
{
    char out[128];
    ck_assert_uint_eq(mla_journal_entry(3, "a", 1, out, 8), 0);
    size_t n = mla_journal_entry(3, "a b= =c d", 9, out, sizeof(out));
    out[n] = '\0';
    ck_assert_str_eq(out, "MESSAGE=a b= =c d\nPRIORITY=3\nSYSLOG_IDENTIFIER=mlad\nMLAD_B=\n");
    n = mla_journal_entry(3, "a=\"open", 7, out, sizeof(out));
    out[n] = '\0';
    ck_assert_str_eq(out, "MESSAGE=a=\"open\nPRIORITY=3\nSYSLOG_IDENTIFIER=mlad\nMLAD_A=open\n");
    ck_assert_int_eq(mla_journal_open("/nonexistent/socket"), -ENOENT);
}
END_TEST

MLA_SUITE(util_service)
{
    TCase *tc = mla_tcase(suite, "service");
    tcase_add_checked_fixture(tc, open_socket, close_socket);
    tcase_add_test(tc, notify_sends_one_datagram);
    tcase_add_test(tc, notify_without_anybody);
    tcase_add_test(tc, notify_to_an_abstract_name);
    tcase_add_test(tc, watchdog_of_this_process);
    tcase_add_test(tc, entry_has_a_field_for_each_pair);
    tcase_add_test(tc, entry_of_odd_lines);
}
