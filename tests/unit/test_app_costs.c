/* The file of measured cost constants: read whole, or refused with what is wrong in which line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/app/costs.h"
#include "tests/support/check_main.h"

#define DEVICE "device = NVIDIA H200\nrows_per_unit = 128\n"
#define ITEMS  "launch_ns = 1\nfill_ns = 2\npage_ns = 3\ndrain_ns = 4\npartial_ns = 5\n"
#define REDUCE "reduce_launch_ns = 6\nreduce_bytes_per_us = 7\nreduce_fixed_ns = 0\n"

static struct costs_file file;
static char why[256];

static int load(const char *text)
{
    char path[] = "/tmp/mlad-costs-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    why[0] = '\0';
    int rc = costs_load(path, &file, why, sizeof(why));
    ck_assert_int_eq(remove(path), 0);
    return rc;
}

static void refused(const char *text, const char *what)
{
    ck_assert_int_eq(load(text), -1);
    ck_assert_msg(strstr(why, what) != NULL, "\"%s\" is not in \"%s\"", what, why);
}

START_TEST(read_whole)
{
    ck_assert_msg(load("; measured\n[costs]\n" DEVICE ITEMS REDUCE) == 0, "%s", why);
    ck_assert_str_eq(file.device, "NVIDIA H200");
    ck_assert_uint_eq(file.rows_per_unit, 128);
    const struct plan_costs want = {1, 2, 3, 4, 5, 6, 7, 0};
    ck_assert_mem_eq(&file.costs, &want, sizeof(want));
}
END_TEST

START_TEST(refusals_say_why)
{
    ck_assert_int_eq(costs_load("/nonexistent/costs", &file, why, sizeof(why)), -1);
    ck_assert_str_eq(why, "/nonexistent/costs: No such file or directory");
    refused("", "costs.rows_per_unit is missing");
    refused("[costs]\n" DEVICE ITEMS, "costs.reduce_launch_ns is missing");
    refused("[costs]\nrows_per_unit = 128\n" ITEMS REDUCE, "costs.device is missing");
    refused("[costs]\n" DEVICE "page_ns = 0\n", ":4: page_ns must be a number from 1");
    refused("[costs]\n" DEVICE "page_ns = 5000000000\n", "page_ns must be a number from 1 to 4294967295");
    refused("[costs]\n" DEVICE "page_ns = -3\n", "page_ns must be");
    refused("[costs]\n" DEVICE "page_ns = 3x\n", "page_ns must be");
    refused("[costs]\n" DEVICE DEVICE, ":4: costs.device stands there twice");
    refused("[costs]\npages = 3\n", ":2: costs.pages is no key");
    refused("[other]\npage_ns = 3\n", "other.page_ns is no key");
    refused("[costs]\nnothing\n", ":2: not \"key = value\"");
}
END_TEST

MLA_SUITE(app_costs)
{
    TCase *tc = mla_tcase(suite, "costs");
    tcase_add_test(tc, read_whole);
    tcase_add_test(tc, refusals_say_why);
}
