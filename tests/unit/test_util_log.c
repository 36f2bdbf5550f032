#include "daemon/util/log.h"
#include "tests/support/check_main.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/util/clock.h"

static int pipe_fds[2];
static char got[1 << 16];

static void open_pipe(void)
{
    ck_assert_int_eq(pipe2(pipe_fds, O_NONBLOCK | O_CLOEXEC), 0);
    mla_log_set_output(pipe_fds[1], MLA_LOG_STYLE_JOURNAL);
    mla_log_set_level(MLA_LOG_INFO);
    mla_log_set_rate(10, MLA_NS_PER_S * 3600);
}

static void close_pipe(void)
{
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

/* Everything written since the last call. */
static const char *output(void)
{
    ssize_t n = read(pipe_fds[0], got, sizeof(got) - 1);
    got[n > 0 ? n : 0] = '\0';
    return got;
}

START_TEST(formats_each_type)
{
    mla_log(MLA_LOG_INFO, "types", "d=%d u=%u lu=%lu x=%#x z=%zu q=%" PRIu64 " h=%hhu f=%.2f p=%p c=%c", -5,
            4000000000U, 18446744073709551615UL, 255U, (size_t)7, UINT64_MAX, (unsigned char)200, 1.5, (void *)16, 'k');
    ck_assert_str_eq(output(), "<6>event=types d=-5 u=4000000000 lu=18446744073709551615 x=0xff z=7 "
                               "q=18446744073709551615 h=200 f=1.50 p=0x10 c=k\n");
    mla_log(MLA_LOG_WARNING, "more", "ll=%lld j=%jd t=%td s=%.*s w=%04d r=%s/%d%%", -1LL, (intmax_t)-2, (ptrdiff_t)-3,
            2, "abcdef", 42, "a", 9);
    ck_assert_str_eq(output(), "<4>event=more ll=-1 j=-2 t=-3 s=ab w=0042 r=a/9%\n");
}
END_TEST

START_TEST(bare_event)
{
    mla_log(MLA_LOG_ERROR, "started");
    ck_assert_str_eq(output(), "<3>event=started\n");
}
END_TEST

START_TEST(quotes_what_could_forge)
{
    const char *volatile none = NULL; /* the compiler refuses a NULL that it can see */
    mla_log(MLA_LOG_INFO, "names", "a=%s b=%s c=%s d=%s e=%s f=%s n=%d", "two words", "", "x=1\nevent=fake", "\"\\",
            "\xc3\xa9", none, 1);
    ck_assert_str_eq(output(), "<6>event=names a=\"two words\" b=\"\" c=\"x=1\\x0aevent=fake\" d=\"\\\"\\\\\" "
                               "e=\"\\xc3\\xa9\" f=- n=1\n");
}
END_TEST

START_TEST(errno_is_kept_and_printed)
{
    errno = ENOENT;
    mla_log(MLA_LOG_INFO, "open", "error=%m path=%s", "/x");
    ck_assert_int_eq(errno, ENOENT);
    ck_assert_str_eq(output(), "<6>event=open error=\"No such file or directory\" path=/x\n");
}
END_TEST

START_TEST(long_lines_are_cut)
{
    static char big[2 * MLA_LOG_LINE_BYTES];
    memset(big, 'a', sizeof(big) - 1);
    mla_log(MLA_LOG_INFO, "big", "s=%s after=%d", big, 3);
    const char *line = output();
    size_t n = strlen(line);
    ck_assert_uint_le(n, MLA_LOG_LINE_BYTES);
    ck_assert_uint_gt(n, MLA_LOG_LINE_BYTES - 16);
    ck_assert_str_eq(line + n - 4, "...\n");
    memset(big, '\n', sizeof(big) - 1); /* four bytes out for one in */
    mla_log(MLA_LOG_INFO, "big", "s=%s", big);
    line = output();
    n = strlen(line);
    ck_assert_uint_le(n, MLA_LOG_LINE_BYTES);
    ck_assert_ptr_eq(strchr(line, '\n'), line + n - 1);
}
END_TEST

static int evaluated;

static int count_evaluation(void)
{
    return ++evaluated;
}

START_TEST(level_gates_evaluation)
{
    evaluated = 0;
    mla_log(MLA_LOG_DEBUG, "hidden", "n=%d", count_evaluation());
    ck_assert_int_eq(evaluated, 0);
    ck_assert_str_eq(output(), "");
    mla_log_set_level(MLA_LOG_DEBUG);
    mla_log(MLA_LOG_DEBUG, "shown", "n=%d", count_evaluation());
    ck_assert_str_eq(output(), "<7>event=shown n=1\n");
}
END_TEST

START_TEST(level_names)
{
    enum mla_log_level level = MLA_LOG_INFO;
    ck_assert_int_eq(mla_log_level_parse("debug", &level), 0);
    ck_assert_int_eq(level, MLA_LOG_DEBUG);
    ck_assert_int_eq(mla_log_level_parse("error", &level), 0);
    ck_assert_int_eq(level, MLA_LOG_ERROR);
    ck_assert_int_eq(mla_log_level_parse("loud", &level), -EINVAL);
    ck_assert_int_eq(level, MLA_LOG_ERROR);
}
END_TEST

static int count_lines(const char *text)
{
    int n = 0;
    for (; *text != '\0'; text++)
        n += *text == '\n';
    return n;
}

static void noisy(int n)
{
    mla_log(MLA_LOG_INFO, "noisy", "n=%d", n);
}

START_TEST(rate_limit_counts_what_it_drops)
{
    mla_log_set_rate(3, 20 * MLA_NS_PER_MS);
    uint64_t begin = mla_now_ns();
    for (int i = 0; i < 8; i++)
        noisy(i);
    const char *out = output();
    if (mla_now_ns() - begin < 20 * MLA_NS_PER_MS) { /* else the machine paused us across a window */
        ck_assert_str_eq(out, "<6>event=noisy n=0\n<6>event=noisy n=1\n<6>event=noisy n=2\n");
        mla_log(MLA_LOG_INFO, "other_site", "n=%d", 1);
        ck_assert_str_eq(output(), "<6>event=other_site n=1\n");
        usleep(25000);
        noisy(8);
        ck_assert_str_eq(output(), "<6>event=noisy n=8 suppressed=5\n");
        noisy(9);
        ck_assert_str_eq(output(), "<6>event=noisy n=9\n");
    }
}
END_TEST

START_TEST(terminal_style)
{
    mla_log_set_output(pipe_fds[1], MLA_LOG_STYLE_TERMINAL);
    mla_log(MLA_LOG_NOTICE, "hello", "a=%d", 1);
    const char *line = output();
    int year = 0;
    int ms = 0;
    ck_assert_int_eq(sscanf(line, "time=%4d-%*2d-%*2dT%*2d:%*2d:%*2d.%3dZ ", &year, &ms), 2);
    ck_assert_int_ge(year, 2024);
    ck_assert_str_eq(strchr(line, ' '), " level=notice event=hello a=1\n");
}
END_TEST

START_TEST(journal_is_recognised)
{
    /* Another inode than stderr's is a redirected stderr. */
    mla_log_set_output(pipe_fds[1], MLA_LOG_STYLE_TERMINAL);
    ck_assert_int_eq(setenv("JOURNAL_STREAM", "1:2", 1), 0);
    mla_log_init();
    mla_log(MLA_LOG_INFO, "one");
    ck_assert_int_eq(strncmp(output(), "time=", 5), 0);
    struct stat st;
    char own[64];
    ck_assert_int_eq(fstat(STDERR_FILENO, &st), 0);
    snprintf(own, sizeof(own), "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    ck_assert_int_eq(setenv("JOURNAL_STREAM", own, 1), 0);
    mla_log_init();
    mla_log(MLA_LOG_INFO, "two");
    ck_assert_str_eq(output(), "<6>event=two\n");
}
END_TEST

#define N_THREADS 4
#define N_LINES   100

static void *thread_logs(void *arg)
{
    for (int i = 0; i < N_LINES; i++)
        mla_log(MLA_LOG_INFO, "threads", "who=%d text=%s i=%d", *(int *)arg, "some words", i);
    return NULL;
}

START_TEST(lines_of_threads_stay_whole)
{
    mla_log_set_rate(N_THREADS * N_LINES / 2, MLA_NS_PER_S * 3600);
    pthread_t threads[N_THREADS];
    int who[N_THREADS] = {0, 1, 2, 3};
    for (int i = 0; i < N_THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, thread_logs, &who[i]), 0);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    const char *out = output();
    /* Lines counted while another thread opens the window are counted to no window. */
    int n = count_lines(out);
    ck_assert_int_ge(n, N_THREADS * N_LINES / 2);
    ck_assert_int_lt(n, N_THREADS * N_LINES / 2 + N_THREADS);
    for (const char *line = out; *line != '\0'; line = strchr(line, '\n') + 1) {
        int who_got = -1;
        int i_got = -1;
        ck_assert_int_eq(sscanf(line, "<6>event=threads who=%d text=\"some words\" i=%d", &who_got, &i_got), 2);
    }
}
END_TEST

MLA_SUITE(util_log)
{
    TCase *tc = mla_tcase(suite, "lines");
    tcase_add_checked_fixture(tc, open_pipe, close_pipe);
    tcase_add_test(tc, formats_each_type);
    tcase_add_test(tc, bare_event);
    tcase_add_test(tc, quotes_what_could_forge);
    tcase_add_test(tc, errno_is_kept_and_printed);
    tcase_add_test(tc, long_lines_are_cut);
    tcase_add_test(tc, level_gates_evaluation);
    tcase_add_test(tc, level_names);
    tcase_add_test(tc, rate_limit_counts_what_it_drops);
    tcase_add_test(tc, terminal_style);
    tcase_add_test(tc, journal_is_recognised);
    tcase_add_test(tc, lines_of_threads_stay_whole);
}
