/* The main of tests/support/check_main.c under another name, for programs that look for a GPU first. */
#ifndef MLA_TESTS_GPU_CHECK_SUITES_H
#define MLA_TESTS_GPU_CHECK_SUITES_H

int mla_check_main(int argc, char **argv);

#endif
