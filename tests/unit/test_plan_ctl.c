/* mlactl plan: what it prints, and what it refuses. */
#include <stdlib.h>
#include <string.h>

#include "daemon/ctl/ctl_plan.h"
#include "tests/support/check_main.h"

static char *out_text;
static char *err_text;

static void drop_texts(void)
{
    free(out_text);
    free(err_text);
    out_text = err_text = NULL;
}

/* Runs "plan <line>"; the words of line are separated by single spaces. */
static int run(const char *line)
{
    char words[512];
    char *argv[40] = {(char *)"plan"};
    int argc = 1;
    size_t out_size;
    size_t err_size;
    drop_texts();
    ck_assert_uint_lt(strlen(line), sizeof(words));
    strcpy(words, line);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    FILE *out = open_memstream(&out_text, &out_size);
    FILE *err = open_memstream(&err_text, &err_size);
    ck_assert(out != NULL && err != NULL);
    int rc = ctl_plan_to(out, err, argc, argv);
    fclose(out);
    fclose(err);
    return rc;
}

/* The number behind "key": in the n-th object of the output. */
static double json_number(const char *key, int n)
{
    char quoted[64];
    const char *at = out_text;
    snprintf(quoted, sizeof(quoted), "\"%s\":", key);
    for (int i = 0; i <= n; i++) {
        at = strstr(at, quoted);
        ck_assert_msg(at != NULL, "no %s in %s", quoted, out_text);
        at += strlen(quoted);
    }
    return strtod(at, NULL);
}

#define SHAPE "--heads 96 --q-len 8 --batch 1 --kv-len 65536 --sms 132 "

START_TEST(json_of_the_reference_shape)
{
    /* Seed on 33 units: need 3, S = floor(66 / 3) = 22, 66 items, 2 waves. */
    ck_assert_int_eq(run(SHAPE "--policy seed --json"), 0);
    ck_assert_str_eq(err_text, "");
    ck_assert_double_eq(json_number("tiles", 0), 3);
    ck_assert_double_eq(json_number("useful_rows", 0), 768);
    ck_assert_double_eq(json_number("row_slots", 0), 768);
    ck_assert_double_eq(json_number("items", 0), 66);
    ck_assert_double_eq(json_number("units", 0), 33);
    ck_assert_double_eq(json_number("splits", 0), 22);
    ck_assert_double_eq(json_number("waves", 0), 2);
    /* 5.6 + 2 * (3.0 + 47 * 1.086) + 3.7 + 66 * 256 * 2052 / 4e6, pieces of 47 pages in the first wave of a tile */
    ck_assert_double_eq_tol(json_number("predicted_us", 0), 126.1, 1.1);
    ck_assert_ptr_nonnull(strstr(out_text, "model"));
}
END_TEST

START_TEST(units_and_tiles)
{
    ck_assert_int_eq(run("--heads 96 --q-len 4 --kv-len 65536 --json --policy unsplit"), 0);
    ck_assert_double_eq(json_number("tiles", 0), 2);
    ck_assert_double_eq(json_number("useful_rows", 0), 384);
    ck_assert_double_eq(json_number("row_slots", 0), 512);
    ck_assert_int_eq(run("--heads 96 --q-len 4 --kv-len 65536 --json --unit 2x128"), 0);
    ck_assert_double_eq(json_number("row_slots", 0), 384);
    ck_assert_double_eq(json_number("units", 0), 66);
    ck_assert_int_eq(run(SHAPE "--json --unit=2x128 --tile 128"), 0);
    ck_assert_double_eq(json_number("tiles", 0), 6);
    ck_assert_int_eq(run(SHAPE "--json --tile 64"), 0);
    ck_assert_double_eq(json_number("tiles", 0), 12);
    ck_assert_int_eq(run("--heads 96 --q-len 8 --kv-len 65536 --sms 151 --json"), 0);
    ck_assert_double_eq(json_number("units", 0), 37);
    ck_assert_int_eq(run(SHAPE "--json --splits 5"), 0);
    ck_assert_double_eq(json_number("splits", 0), 5);
    ck_assert_double_eq(json_number("items", 0), 15);
}
END_TEST

START_TEST(padded_heads)
{
    ck_assert_int_eq(run(SHAPE "--pad-heads 128 --json"), 0);
    ck_assert_double_eq(json_number("tiles", 0), 4);
    ck_assert_double_eq(json_number("useful_rows", 0), 768);
    ck_assert_double_eq(json_number("row_slots", 0), 1024);
    ck_assert_int_eq(run("--heads 96 --q-len 4 --kv-len 65536 --pad-heads 128 --json"), 0);
    ck_assert_double_eq(json_number("tiles", 0), 2);
    ck_assert_double_eq(json_number("useful_rows", 0), 384);
    ck_assert_double_eq(json_number("row_slots", 0), 512);
}
END_TEST

START_TEST(compare)
{
    ck_assert_int_eq(run(SHAPE "--compare --json"), 0);
    ck_assert_int_eq(out_text[0], '[');
    ck_assert_double_eq(json_number("tiles", 0), 3);
    ck_assert_double_eq(json_number("tiles", 1), 6);
    ck_assert_double_eq(json_number("tiles", 2), 4);
    ck_assert_double_eq(json_number("units", 1), 66);
    ck_assert_double_eq(json_number("useful_rows", 2), 768);
    ck_assert_double_lt(json_number("predicted_us", 0), json_number("predicted_us", 2));
    ck_assert_int_eq(run(SHAPE "--compare"), 0);
    ck_assert_ptr_nonnull(strstr(out_text, "native M256"));
    ck_assert_ptr_nonnull(strstr(out_text, "native M128"));
    ck_assert_ptr_nonnull(strstr(out_text, "padded M256"));
    ck_assert_ptr_nonnull(strstr(out_text, "not a measurement"));
}
END_TEST

START_TEST(dump)
{
    ck_assert_int_eq(run(SHAPE "--policy unsplit --dump"), 0);
    ck_assert_ptr_nonnull(strstr(out_text, "\nitem 2 tile 2 pages 0..1024 partial none\n"));
    ck_assert_int_eq(run("--help"), 0);
    ck_assert_ptr_nonnull(strstr(out_text, "--pad-heads"));
}
END_TEST

START_TEST(bad_arguments)
{
    static const struct {
        const char *line, *names, *range;
    } rows[] = {
        {"--heads 0 --q-len 8 --kv-len 1", "--heads", "from 1 to 128"},
        {"--heads 129 --q-len 8 --kv-len 1", "--heads", "from 1 to 128"},
        {"--heads 9x --q-len 8 --kv-len 1", "--heads", "from 1 to 128"},
        {"--heads -1 --q-len 8 --kv-len 1", "--heads", "from 1 to 128"},
        {"--heads 96 --q-len 0 --kv-len 1", "--q-len", "from 1 to 4096"},
        {"--heads 96 --q-len 8 --kv-len 16777217", "--kv-len", "from 0 to 16777216"},
        {"--heads 96 --q-len 8 --kv-len 99999999999999999999999", "--kv-len", "from 0 to 16777216"},
        {SHAPE "--batch 65537", "--batch", "from 1 to 65536"},
        {"--heads 128 --q-len 4096 --kv-len 1 --batch 129", "--batch", "from 1 to 128"},
        {SHAPE "--sms 3", "--sms", "from 4 to 4096"},
        {SHAPE "--sms 3 --unit 2x128", "--sms", "from 4 to 4096"},
        {SHAPE "--sms 0", "--sms", "from 1 to 4096"},
        {SHAPE "--unit 1x64", "--unit", "4x256 or 2x128"},
        {SHAPE "--tile 96", "--tile", "256, 128 or 64"},
        {SHAPE "--pad-heads 64", "--pad-heads", "from 96 to 128"},
        {SHAPE "--pad-heads 129", "--pad-heads", "from 1 to 128"},
        {SHAPE "--policy best", "--policy", "seed, balanced, auto or unsplit"},
        {SHAPE "--splits 0", "--splits", "from 1 to 4096"},
        {SHAPE "--compare --tile 128", "--tile", "--compare"},
        {SHAPE "--frobnicate", "--frobnicate", "no such option"},
        {SHAPE "--splits", "--splits", "needs a value"},
        {SHAPE "more", "more", "no option"},
        {"--q-len 8 --kv-len 1", "--heads", "is needed"},
        {"", "--heads", "is needed"},
        {"--heads 8 --q-len 4096 --batch 2048 --kv-len 16777216 --splits 4096", "--splits", "more than"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ck_assert_msg(run(rows[i].line) == 2, "%s", rows[i].line);
        ck_assert_str_eq(out_text, "");
        ck_assert_msg(strstr(err_text, rows[i].names) != NULL, "%s: %s", rows[i].line, err_text);
        ck_assert_msg(strstr(err_text, rows[i].range) != NULL, "%s: %s", rows[i].line, err_text);
    }
    ck_assert_int_eq(run(SHAPE "--sms 4"), 0);
}
END_TEST

MLA_SUITE(plan_ctl)
{
    TCase *tc = mla_tcase(suite, "mlactl plan");
    tcase_add_checked_fixture(tc, NULL, drop_texts);
    tcase_add_test(tc, json_of_the_reference_shape);
    tcase_add_test(tc, units_and_tiles);
    tcase_add_test(tc, padded_heads);
    tcase_add_test(tc, compare);
    tcase_add_test(tc, dump);
    tcase_add_test(tc, bad_arguments);
}
