#include "tests/support/check_main.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUITES_MAX 256
#define PATHS_MAX  8

static struct {
    const char *name;
    mla_suite_fill fill;
} suites[SUITES_MAX];
static size_t n_suites;

void mla_suite_register(const char *name, mla_suite_fill fill)
{
    if (n_suites == SUITES_MAX) {
        fprintf(stderr, "more than %d suites\n", SUITES_MAX);
        abort();
    }
    suites[n_suites].name = name;
    suites[n_suites++].fill = fill;
}

TCase *mla_tcase_timeout(Suite *suite, const char *name, double seconds)
{
    TCase *tc = tcase_create(name);
    double t = seconds > 0 ? seconds : 30;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    t *= 8;
#endif
    tcase_set_timeout(tc, t);
    suite_add_tcase(suite, tc);
    return tc;
}

TCase *mla_tcase(Suite *suite, const char *name)
{
    return mla_tcase_timeout(suite, name, 0);
}

const char *mla_test_path(const char *name, const char *built)
{
    static char known[PATHS_MAX][PATH_MAX];
    char folder[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    folder[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        return built;
    *slash = '\0';
    char path[2 * PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (strlen(path) >= PATH_MAX || access(path, F_OK) != 0)
        return built;
    for (size_t i = 0; i < PATHS_MAX; i++) {
        if (known[i][0] == '\0')
            memcpy(known[i], path, strlen(path) + 1);
        if (strcmp(known[i], path) == 0)
            return known[i];
    }
    fprintf(stderr, "more than %d files of tests\n", PATHS_MAX);
    abort();
}

static int wanted(const char *name, int argc, char **argv)
{
    if (argc < 2)
        return 1;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < n_suites; i++)
            puts(suites[i].name);
        return 0;
    }
    SRunner *runner = srunner_create(NULL);
    size_t chosen = 0;
    for (size_t i = 0; i < n_suites; i++) {
        if (!wanted(suites[i].name, argc, argv))
            continue;
        Suite *s = suite_create(suites[i].name);
        suites[i].fill(s);
        srunner_add_suite(runner, s);
        chosen++;
    }
    if (chosen == 0) {
        fprintf(stderr, "no suite of that name; --list shows them\n");
        srunner_free(runner);
        return 2;
    }
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    int run = srunner_ntests_run(runner);
    srunner_free(runner);
    return failed == 0 && run > 0 ? 0 : 1;
}
