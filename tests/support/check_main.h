/* One main for every Check program. A test source registers its suites before main runs:
 *
 *     MLA_SUITE(wire)            // defines and registers the suite "wire"; the block fills it
 *     {
 *         TCase *tc = mla_tcase(suite, "header");
 *         tcase_add_test(tc, packs_little_endian);
 *     }
 *
 * Program arguments: names of suites to run (default: all); --list prints them. Exit 0 when all pass, 1 when any
 * fails or none ran, 2 for unknown names. CK_FORK, CK_VERBOSITY and CK_XML_LOG_FILE_NAME work as in Check.
 * Sources may also be linked together into one program (suites keep their names).
 */
#ifndef MLA_TESTS_CHECK_MAIN_H
#define MLA_TESTS_CHECK_MAIN_H

#include <check.h>

typedef void (*mla_suite_fill)(Suite *suite);

void mla_suite_register(const char *name, mla_suite_fill fill);

/* A test case with a timeout that sanitizer builds are given more of (seconds: 0 means the default of 30). */
TCase *mla_tcase_timeout(Suite *suite, const char *name, double seconds);
TCase *mla_tcase(Suite *suite, const char *name);

/* A program or file that a test needs: name in the folder of the running program where it is there (a portable build
 * is one folder), else built, its place in the build tree. Static storage per name, for the life of the process. */
const char *mla_test_path(const char *name, const char *built);

#define MLA_SUITE(name)                                                                                                \
    static void mla_suite_fill_##name(Suite *suite);                                                                   \
    __attribute__((constructor)) static void mla_suite_register_##name(void)                                           \
    {                                                                                                                  \
        mla_suite_register(#name, mla_suite_fill_##name);                                                              \
    }                                                                                                                  \
    static void mla_suite_fill_##name(Suite *suite)

#endif
