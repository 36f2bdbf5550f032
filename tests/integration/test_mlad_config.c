/* Configuration and command line: what is said of a bad one, and with which exit code. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mla/mla.h>

#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"

#define ARGS 12

static char out[16384];
static char path[] = "/tmp/mlad-conf-XXXXXX";

/* Runs mlad with these arguments. */
static int mlad(const char *const args[ARGS])
{
    const char *argv[ARGS + 2] = {MLAD_PROGRAM};
    for (unsigned i = 0; i < ARGS && args[i] != NULL; i++)
        argv[i + 1] = args[i];
    return run_program(argv, out, sizeof(out));
}
#define MLAD(...) mlad((const char *const[ARGS]){__VA_ARGS__})

static void says(const char *text)
{
    ck_assert_msg(strstr(out, text) != NULL, "\"%s\" is not in: %s", text, out);
}

static void file_of(const char *text)
{
    strcpy(path, "/tmp/mlad-conf-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

/* A file that must be refused with its name, this line and this text. */
static void bad_file(const char *text, unsigned line, const char *said)
{
    char where[128];
    file_of(text);
    int code = MLAD("--config", path, "--check-config");
    unlink(path);
    ck_assert_msg(code == 1, "%s: exit code %d", text, code);
    snprintf(where, sizeof(where), "mlad: %s:%u: ", path, line);
    says(where);
    says(said);
}

START_TEST(files)
{
    bad_file("[limits]\nmax_regions = x\n", 2, "limits.max_regions: \"x\" is not a whole number");
    bad_file("[limits]\n\n; a remark\nmax_regions = 0\n", 4, "limits.max_regions must be 1 to 1048576");
    bad_file("[limits]\nmax_regions = 99999999999999999999\n", 2, "limits.max_regions must be 1 to");
    bad_file("[limits]\nmax_regions = -1\n", 2, "limits.max_regions: \"-1\" is not a whole number");
    bad_file("[limits]\nmax_regions =\n", 2, "limits.max_regions: \"\" is not");
    bad_file("[limits]\nmax_mapped_bytes = 4X\n", 2, "limits.max_mapped_bytes: \"4X\" is not a size");
    bad_file("[limits]\nmax_mapped_bytes = 4TB\n", 2, "is not a size");
    bad_file("[limits]\nmax_mapped_bytes = 99999999T\n", 2, "limits.max_mapped_bytes must be");
    bad_file("[daemon]\nsocket_mode = 0999\n", 2, "daemon.socket_mode: \"0999\" is not an octal number");
    bad_file("[daemon]\nsocket_mode = 7777\n", 2, "daemon.socket_mode must be 0 to 777");
    bad_file("[daemon]\nnonsense = 1\n", 2, "unknown key daemon.nonsense");
    bad_file("[nothing]\nsocket = /x\n", 2, "unknown key nothing.socket");
    bad_file("socket = /x\n", 1, "\"socket\" stands before any [section]");
    bad_file("[daemon]\nlog_level = info\nthis is not a pair\n", 3, "");
    bad_file("[daemon]\nsocket =\n", 2, "daemon.socket must have 1 to 107 characters");
    /* The first fault is the one that is told. */
    bad_file("[daemon]\nnonsense = 1\n[limits]\nmax_regions = x\n", 2, "unknown key daemon.nonsense");
    ck_assert_int_eq(MLAD("--config", "/nonexistent/mlad.conf", "--check-config"), 1);
    says("mlad: /nonexistent/mlad.conf: No such file or directory");
    ck_assert_int_eq(MLAD("--config", "/", "--check-config"), 1);
    /* Of what does not end, or waits for a writer, nothing is read. */
    ck_assert_int_eq(MLAD("--config", "/dev/zero", "--check-config"), 1);
    says("mlad: /dev/zero: is no regular file");
    file_of("");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(MLAD("--config", path, "--check-config"), 1);
    says("is no regular file");
    unlink(path);
}
END_TEST

START_TEST(values_of_keys)
{
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--set", "daemon.log_level=loud", "--check-config"), 1);
    says("daemon.log_level must be error, warning, notice, info or debug, not \"loud\"");
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--log-level", "loud", "--check-config"), 1);
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--set", "scheduler.policy=best", "--check-config"), 1);
    says("scheduler.policy must be seed, balanced or auto, not \"best\"");
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--socket", "run/socket", "--check-config"), 1);
    says("daemon.socket must be a path that begins with / or .");
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--set", "limits.max_regions=0", "--check-config"), 2);
    says("mlad: --set: limits.max_regions must be 1 to");
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--set", "limits.max_regions", "--check-config"), 2);
    says("\"limits.max_regions\" is not section.key=value");
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--set", "limits.no=1", "--check-config"), 2);
    says("mlad: --set: unknown key limits.no");
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--set", "", "--check-config"), 2);
    static char long_path[400];
    memset(long_path, 'x', sizeof(long_path) - 1);
    long_path[0] = '/';
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--socket", long_path, "--check-config"), 2);
    says("mlad: --socket: the value is too long");
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--backend", "abacus", "--check-config"), 1);
    says("daemon.backend: this build has no backend \"abacus\"; it has cpu");
}
END_TEST

START_TEST(command_line)
{
    ck_assert_int_eq(MLAD("--nonsense"), 2);
    ck_assert_msg(strncmp(out, "mlad: unrecognized option", 25) == 0, "%s", out);
    says("usage: mlad");
    ck_assert_int_eq(MLAD("surplus"), 2);
    says("unexpected argument \"surplus\"");
    ck_assert_int_eq(MLAD("--set"), 2);
    ck_assert_int_eq(MLAD("--help"), 0);
    says("--check-config");
    says("Exit codes:");
    ck_assert_int_eq(MLAD("--version"), 0);
    ck_assert_msg(strncmp(out, "mlad ", 5) == 0, "%s", out);
}
END_TEST

/* What --check-config prints is a file that reads back as the same; later settings win over the file. */
START_TEST(printed_whole)
{
    static char first[sizeof(out)];
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--check-config"), 0);
    says("[daemon]\nsocket = /run/mlad/mlad.sock\nsocket_mode = 0660\n");
    says("max_mapped_bytes = 4398046511104\n");
    says("policy = auto\n");
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--socket", "/tmp/x", "--set", "daemon.socket_mode=0600", "--set",
                          "limits.max_mapped_bytes=2g", "--set", "scheduler.policy=seed", "--check-config"),
                     0);
    says("socket = /tmp/x\nsocket_mode = 0600\n");
    says("max_mapped_bytes = 2147483648\n");
    says("policy = seed\n");
    strcpy(first, out);
    file_of(first);
    ck_assert_int_eq(MLAD("--config", path, "--check-config"), 0);
    ck_assert_str_eq(out, first);
    /* The file is read before any override, wherever --config stands. */
    ck_assert_int_eq(MLAD("--socket", "/tmp/y", "--config", path, "--check-config"), 0);
    says("socket = /tmp/y\n");
    says("policy = seed\n");
    unlink(path);
}
END_TEST

/* ---- what cannot be started ---- */

START_TEST(cannot_start)
{
    char dir[] = "/tmp/mlad-dir-XXXXXX", name[64], missing[96];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--socket", "/tmp/x", "--backend", "abacus"), 1);
    says("no backend \"abacus\"");
    snprintf(missing, sizeof(missing), "%s/missing/socket", dir);
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--socket", missing), 1);
    says("what=socket status=NOT_FOUND field=daemon.socket");
    says("no such folder");
    says(missing);
    snprintf(name, sizeof(name), "%s/socket", dir);
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--socket", name, "--set", "daemon.socket_group=no-such-group"), 1);
    says("field=daemon.socket_group");
    says("there is no group no-such-group");
    ck_assert_int_ne(access(name, F_OK), 0);
    /* A file in its place stays what it is. */
    FILE *f = fopen(name, "we");
    fputs("mine", f);
    fclose(f);
    ck_assert_int_eq(MLAD("--config", "/dev/null", "--socket", name), 1);
    says("is not a socket");
    struct stat st;
    ck_assert_int_eq(stat(name, &st), 0);
    ck_assert_int_eq(st.st_size, 4);
    unlink(name);
    ck_assert_msg(rmdir(dir) == 0, "something was left in %s", dir);
}
END_TEST

/* The socket has the mode that was asked for. */
START_TEST(socket_mode)
{
    struct daemon d;
    struct stat st;
    daemon_start(&d, "daemon.socket_mode=0620", NULL);
    ck_assert_int_eq(stat(d.socket, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0620);
    ck_assert_uint_eq(daemon_log_count(&d, "event=ready"), 1);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

static int pipe_ends[2];
static char pipe_socket[64];

static int logs_to_pipe(void *arg)
{
    const char *const argv[] = {mla_test_path("mlad", MLAD_PROGRAM),
                                "--config",
                                "/dev/null",
                                "--socket",
                                pipe_socket,
                                "--log-level",
                                "debug",
                                NULL};
    (void)arg;
    dup2(pipe_ends[1], STDERR_FILENO);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    return 126;
}

/* Whoever read its log has gone: no reason to end. */
START_TEST(nobody_reads_the_log)
{
    struct mla_options options;
    struct mla_client *client;
    char dir[] = "/tmp/mlad-dir-XXXXXX", c;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(pipe_socket, sizeof(pipe_socket), "%s/socket", dir);
    ck_assert_int_eq(pipe2(pipe_ends, O_CLOEXEC), 0);
    pid_t pid = child_start(logs_to_pipe, NULL);
    close(pipe_ends[1]);
    ck_assert_int_eq(read(pipe_ends[0], &c, 1), 1);
    close(pipe_ends[0]);
    mla_options_init(&options);
    options.socket_path = pipe_socket;
    options.flags = MLA_OPEN_WAIT;
    options.timeout_us = UINT64_C(10000000) * TEST_SLOW;
    for (int i = 0; i < 2; i++) { /* each comes and goes with lines of its own */
        ck_assert_int_eq(mla_open(&options, &client, NULL), MLA_OK);
        mla_close(client);
    }
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    ck_assert_int_eq(child_wait(pid), 0);
    ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

MLA_SUITE(mlad_config)
{
    TCase *tc = mla_tcase(suite, "config");
    tcase_add_test(tc, files);
    tcase_add_test(tc, values_of_keys);
    tcase_add_test(tc, command_line);
    tcase_add_test(tc, printed_whole);
    tcase_add_test(tc, cannot_start);
    tcase_add_test(tc, socket_mode);
    tcase_add_test(tc, nobody_reads_the_log);
}
