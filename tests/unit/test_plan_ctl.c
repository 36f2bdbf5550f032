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

#define AUTO  "--heads 96 --q-len 8 --batch 1 --kv-len 65536 --sms 132 "
#define SHAPE AUTO "--unit 4x256 "

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
    /* 8.944 + 2 * (3.001 + 47 * 1.195) + 3.2 + 66 * 256 * 2052 / 4e6, pieces of 47 pages in the first wave of a
     * tile; elsewhere of 46 */
    ck_assert_double_eq_tol(json_number("predicted_us", 0), 139.1, 1.3);
    ck_assert_ptr_nonnull(strstr(out_text, "model"));
}
END_TEST

/* Worked out at 1,086 ns a page, and carried over to what the costs say now: 2 * 768 rows * 65,536 keys * 1,088 =
 * 1.0952e11 FLOP; a unit of 256 rows does 2 * 256 * 64 * 1,088 = 35.65 MFLOP a page, on 4 SMs: 8.207 TFLOP/s an SM,
 * 1,083.3 on 132, so 101.1 us. 65,536 * 576 + 768 * (576 + 512) = 38.58 MB at 4,620 GB/s: 8.35 us. */
START_TEST(roofline_of_a_part)
{
    struct plan_device device;
    struct plan_costs costs;
    ck_assert_int_eq(plan_device_preset("reference", &device, &costs), 0);
    double page = costs.page_ns / 1086.0;
    ck_assert_int_eq(run(SHAPE "--policy unsplit --json"), 0);
    ck_assert_double_eq_tol(json_number("flop", 0), 1.09521666e11, 1e3);
    ck_assert_double_eq(json_number("bytes", 0), 38584320);
    ck_assert_double_eq_tol(json_number("roofline_flop_us", 0), 101.10 * page, 0.01);
    ck_assert_double_eq_tol(json_number("roofline_bytes_us", 0), 8.3516, 1e-3);
    ck_assert_double_eq_tol(json_number("roofline_us", 0), 101.10 * page, 0.01);
    ck_assert_double_eq(json_number("row_occupancy", 0), 1);
    /* Three items of 1,024 pages on 33 units; the launch is the only time beside them. */
    double item = costs.fill_ns + 1024.0 * costs.page_ns + costs.drain_ns;
    ck_assert_double_eq_tol(json_number("unit_occupancy", 0), 3 * item / (33 * (item + costs.launch_ns)), 1e-6);
    ck_assert_ptr_nonnull(strstr(out_text, "\"roofline_by\": \"model"));
    /* Units of half the size on half the SMs: the same rate of an SM. */
    ck_assert_int_eq(run(SHAPE "--unit 2x128 --json"), 0);
    ck_assert_double_eq_tol(json_number("roofline_us", 0), 101.10 * page, 0.01);
    /* The part's, not that of kernels whose units do less at a time. */
    ck_assert_int_eq(run(SHAPE "--unit 1x32 --json"), 0);
    ck_assert_double_eq_tol(json_number("roofline_us", 0), 101.10 * page, 0.01);
    /* Few rows: 12 * 4,096 * 2,176 FLOP take 0.1 us, 2,372,352 bytes at 1,000 GB/s 2.37. */
    ck_assert_int_eq(run("--heads 12 --q-len 1 --kv-len 4096 --bandwidth 1000 --json"), 0);
    ck_assert_double_eq_tol(json_number("roofline_us", 0), 2.372352, 1e-6);
    /* Padding takes row slots, and is no work. */
    ck_assert_int_eq(run("--heads 96 --q-len 4 --kv-len 65536 --unit 4x256 --pad-heads 128 --json"), 0);
    ck_assert_double_eq(json_number("row_occupancy", 0), 0.75);
    ck_assert_double_eq_tol(json_number("roofline_us", 0), 50.55 * page, 0.01);
}
END_TEST

/* One plan for each size of the part; twice the SMs, half the roofline. */
START_TEST(range_of_parts)
{
    ck_assert_int_eq(run("--heads 96 --q-len 8 --kv-len 65536 --unit 4x256 --sms 132-224:4 --json"), 0);
    ck_assert_int_eq(out_text[0], '[');
    for (int i = 0; i < 24; i++) {
        ck_assert_double_eq(json_number("sms", i), 132 + 4 * i);
        ck_assert_double_eq(json_number("units", i), 33 + i);
        ck_assert_double_eq_tol(json_number("roofline_us", i), json_number("roofline_us", 0) * 132 / (132 + 4 * i),
                                1e-3);
        if (i > 0)
            ck_assert_double_le(json_number("predicted_us", i), json_number("predicted_us", i - 1) * 1.001);
    }
    ck_assert_int_eq(run("--heads 96 --q-len 8 --kv-len 65536 --unit 4x256 --sms 132-140 --compare --json"), 0);
    ck_assert_double_eq(json_number("sms", 8), 140);
    ck_assert_int_eq(run("--heads 96 --q-len 8 --kv-len 65536 --unit 4x256 --sms 132-133:7"), 0);
    ck_assert_ptr_nonnull(strstr(out_text, "on 132 to 133 SMs"));
    ck_assert_ptr_nonnull(strstr(out_text, "A model, not a measurement"));
    ck_assert_ptr_nonnull(strstr(out_text, " 132 none "));
    ck_assert_ptr_null(strstr(out_text, " 133 none "));
}
END_TEST

START_TEST(units_and_tiles)
{
    ck_assert_int_eq(run("--heads 96 --q-len 4 --kv-len 65536 --unit 4x256 --json --policy unsplit"), 0);
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
    ck_assert_int_eq(run("--heads 96 --q-len 8 --kv-len 65536 --unit 4x256 --sms 151 --json"), 0);
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
    ck_assert_int_eq(run("--heads 96 --q-len 4 --kv-len 65536 --unit 4x256 --pad-heads 128 --json"), 0);
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
        {SHAPE "--batch 16385", "--batch", "from 1 to 16384"},
        {"--heads 128 --q-len 4096 --kv-len 1 --batch 9", "--batch", "from 1 to 8"},
        {SHAPE "--sms 3", "--sms", "from 4 to 4096"},
        {SHAPE "--sms 3 --unit 2x128", "--sms", "from 4 to 4096"},
        {SHAPE "--sms 0", "--sms", "from 1 to 4096"},
        {SHAPE "--sms 132-", "--sms", "from 132 to 4096"},
        {SHAPE "--sms 132-131", "--sms", "from 132 to 4096"},
        {SHAPE "--sms 2-8", "--sms", "from 4 to 4096"},
        {SHAPE "--sms -8", "--sms", "from 1 to 4096"},
        {SHAPE "--sms 132-140:0", "--sms", "from 1 to 4096"},
        {SHAPE "--sms 132:4-140", "--sms", "132-224:8"},
        {SHAPE "--sms 132-140 --dump", "--dump", "a range"},
        {SHAPE "--bandwidth 0", "--bandwidth", "from 1 to 1000000"},
        {SHAPE "--unit 1x128", "--unit", "auto, 2x128, 2x96, 1x64, 1x48, 1x32 or 4x256"},
        {SHAPE "--unit 1x32 --sms 7", "--sms", "from 8 to 4096"},
        {AUTO "--sms 3", "--sms", "from 4 to 4096"},
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
        {"--heads 8 --q-len 4096 --batch 128 --kv-len 16777216 --splits 4096", "--splits", "more than"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ck_assert_msg(run(rows[i].line) == 2, "%s", rows[i].line);
        ck_assert_str_eq(out_text, "");
        ck_assert_msg(strstr(err_text, rows[i].names) != NULL, "%s: %s", rows[i].line, err_text);
        ck_assert_msg(strstr(err_text, rows[i].range) != NULL, "%s: %s", rows[i].line, err_text);
    }
    ck_assert_int_eq(run(SHAPE "--sms 4"), 0);
    ck_assert_int_eq(run(AUTO "--sms 4"), 0);
}
END_TEST

/* The kind that libmla-kernels takes for the shape, as test_kernels_choose has them, on 132 SMs. */
START_TEST(kinds)
{
    static const struct {
        uint32_t heads, q_len;
        const char *unit, *kernels;
    } rows[] = {{12, 1, "1x32", "sm90-32"}, {12, 4, "1x48", "sm90-48"}, {64, 1, "1x64", "sm90-64"},
                {96, 1, "2x96", "sm90-96"}, {128, 1, "2x128", "sm90"},  {96, 8, "2x128", "sm90"}};
    char line[160], want[64];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (int forced = 0; forced < 2; forced++) {
            snprintf(line, sizeof(line), "--heads %u --q-len %u --kv-len 65536 --json --unit %s", rows[i].heads,
                     rows[i].q_len, forced ? rows[i].unit : "auto");
            ck_assert_int_eq(run(line), 0);
            snprintf(want, sizeof(want), "\"unit\": \"%s\"", rows[i].unit);
            ck_assert_msg(strstr(out_text, want) != NULL, "%s: %s", line, out_text);
            snprintf(want, sizeof(want), "\"kernels\": \"%s\"", rows[i].kernels);
            ck_assert_msg(strstr(out_text, want) != NULL, "%s: %s", line, out_text);
            ck_assert_ptr_nonnull(strstr(out_text, forced ? "\"forced\"" : "\"chosen as libmla-kernels does\""));
        }
        *strstr(line, " --unit") = '\0'; /* auto is what is meant where nothing is said */
        ck_assert_int_eq(run(line), 0);
        ck_assert_msg(strstr(out_text, want) != NULL, "%s: %s", line, out_text);
    }
    /* Forced, a kind has shapes that another would do faster. */
    ck_assert_int_eq(run("--heads 12 --q-len 1 --kv-len 65536 --json"), 0);
    double chosen_us = json_number("predicted_us", 0);
    ck_assert_double_eq(json_number("units", 0), 132);
    ck_assert_int_eq(run("--heads 12 --q-len 1 --kv-len 65536 --json --unit 2x128"), 0);
    ck_assert_double_lt(chosen_us, 0.75 * json_number("predicted_us", 0));
    ck_assert_int_eq(run("--heads 12 --q-len 1 --kv-len 65536"), 0);
    ck_assert_ptr_nonnull(strstr(out_text, " sm90-32 "));
    ck_assert_ptr_nonnull(strstr(out_text, "chosen as libmla-kernels chooses"));
    /* A part on which units of 2 x 96 do not make a whole tile. */
    ck_assert_int_eq(run("--heads 96 --q-len 1 --kv-len 65536 --sms 6 --json"), 0);
    ck_assert_ptr_nonnull(strstr(out_text, "\"sm90-96\""));
    ck_assert_int_eq(run("--heads 96 --q-len 1 --kv-len 65536 --sms 5 --json"), 0);
    ck_assert_ptr_null(strstr(out_text, "\"sm90-96\""));
    ck_assert_int_eq(run(AUTO "--compare"), 0);
    ck_assert_ptr_nonnull(strstr(out_text, "2x128"));
    ck_assert_ptr_null(strstr(out_text, "4x256"));
}
END_TEST

MLA_SUITE(plan_ctl)
{
    TCase *tc = mla_tcase(suite, "mlactl plan");
    tcase_add_checked_fixture(tc, NULL, drop_texts);
    tcase_add_test(tc, json_of_the_reference_shape);
    tcase_add_test(tc, roofline_of_a_part);
    tcase_add_test(tc, range_of_parts);
    tcase_add_test(tc, units_and_tiles);
    tcase_add_test(tc, padded_heads);
    tcase_add_test(tc, compare);
    tcase_add_test(tc, dump);
    tcase_add_test(tc, kinds);
    tcase_add_test(tc, bad_arguments);
}
