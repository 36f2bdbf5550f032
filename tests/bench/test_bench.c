/* What mla-bench is made of: random e4m3 data, the table's permutation, order statistics, the report's files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/gpu/data.h"
#include "tests/bench/options.h"
#include "tests/bench/report.h"
#include "tests/bench/stats.h"
#include "tests/support/check_main.h"
#include "tests/support/fp8.h"
#include "tests/support/prng.h"

static void same_code(float x)
{
    ck_assert_msg(data_e4m3(x) == fp8_encode((double)x), "%a: %02x instead of %02x", (double)x, data_e4m3(x),
                  fp8_encode((double)x));
}

/* Every number of the format, every tie, and the floats beside both; the ends of the range. */
START_TEST(e4m3_is_the_nearest)
{
    struct prng prng = {3};
    for (unsigned code = 0; code < 0x7f; code++) {
        float low = (float)fp8_decode((uint8_t)code), high = (float)fp8_decode((uint8_t)(code + (code < 0x7e)));
        float tie = (low + high) / 2;
        const float near[] = {low, nextafterf(low, 500), tie, nextafterf(tie, 0), nextafterf(tie, 500)};
        for (size_t i = 0; i < sizeof(near) / sizeof(near[0]); i++) {
            same_code(near[i]);
            same_code(-near[i]);
        }
    }
    same_code(464);
    same_code(1e9f);
    same_code(-1e9f);
    for (int i = 0; i < 100000; i++)
        same_code((float)prng_normal(&prng));
}
END_TEST

/* Mean and variance of each channel; the same bytes again for the same seed, others for another. */
START_TEST(rows_are_normal)
{
    enum { ROWS = 20000 };
    uint8_t *rows = malloc((size_t)ROWS * MLA_ABI_QK_DIM), *again = malloc((size_t)ROWS * MLA_ABI_QK_DIM);
    ck_assert(rows != NULL && again != NULL);
    struct prng means = {20261130};
    for (int d = 0; d < DATA_SETS; d++) {
        data_fill(rows, ROWS, &data_sets[d], 5);
        for (uint32_t c = 0; c < MLA_ABI_QK_DIM; c++) {
            double sum = 0, squares = 0, drawn = prng_normal(&means);
            double mean = data_sets[d].per_channel ? drawn : (double)data_sets[d].mean;
            for (size_t r = 0; r < ROWS; r++) {
                double x = fp8_decode(rows[r * MLA_ABI_QK_DIM + c]);
                sum += x;
                squares += x * x;
            }
            /* Five standard deviations of 20,000 draws; rounding adds a thousandth to the variance. */
            ck_assert_msg(fabs(sum / ROWS - mean) < 0.036, "%s, channel %u: mean %f", data_sets[d].name, c, sum / ROWS);
            double variance = squares / ROWS - sum / ROWS * sum / ROWS;
            ck_assert_msg(fabs(variance - 1) < 0.06, "%s, channel %u: variance %f", data_sets[d].name, c, variance);
        }
        means = (struct prng){20261130};
    }
    data_fill(rows, ROWS, &data_sets[0], 5);
    data_fill(again, ROWS, &data_sets[0], 5);
    ck_assert_mem_eq(rows, again, (size_t)ROWS * MLA_ABI_QK_DIM);
    ck_assert_mem_ne(rows, rows + (size_t)64 * MLA_ABI_QK_DIM, 64);
    data_fill(again, ROWS, &data_sets[0], 6);
    ck_assert_mem_ne(rows, again, 64);
    free(rows);
    free(again);
}
END_TEST

START_TEST(table_is_a_permutation)
{
    enum { PAGES = 96, BLOCK = 24 };
    int32_t entries[PAGES], moved = 0;
    bool seen[PAGES] = {false};
    data_permute(entries, PAGES, BLOCK);
    for (int i = 0; i < PAGES; i++) {
        ck_assert(entries[i] >= 0 && entries[i] < PAGES && !seen[entries[i]]);
        seen[entries[i]] = true;
        moved += entries[i] != i;
    }
    ck_assert_int_gt(moved, PAGES / 2);
    for (int first = 0; first < PAGES; first += BLOCK) {
        bool in_block[BLOCK] = {false};
        for (int i = 0; i < BLOCK; i++) {
            ck_assert(!in_block[entries[first + i] % BLOCK]);
            in_block[entries[first + i] % BLOCK] = true;
        }
    }
}
END_TEST

START_TEST(order_statistics)
{
    double sample[] = {5, 1, 4, 2, 3};
    struct bench_stats stats = bench_stats(sample, 5);
    ck_assert(stats.min == 1 && stats.q1 == 2 && stats.median == 3 && stats.q3 == 4 && stats.max == 5);
    double one[] = {7};
    stats = bench_stats(one, 1);
    ck_assert(stats.min == 7 && stats.median == 7 && stats.max == 7);
}
END_TEST

static const char *content(const char *path)
{
    static char text[4096];
    FILE *f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    fclose(f);
    return text;
}

START_TEST(files_of_a_report)
{
    static struct bench_report report;
    char path[] = "/tmp/mla-bench-test-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    report.title = "t";
    struct bench_row *row = bench_row(&report, "a \"quoted\" name");
    bench_label(row, "kind", "x");
    bench_cell(row, "us", 1.5, 1);
    row = bench_row(&report, "b");
    bench_label(row, "kind", "y");
    bench_cell(row, "us", (double)NAN, 1);
    row = bench_row(&report, "c");
    bench_cell(row, "n", 3, 0);
    bench_bar_at_least(&report, "bar", 1, 2);
    ck_assert_int_eq(bench_write_csv(&report, path), 0);
    ck_assert_str_eq(content(path),
                     "name,kind,us\n\"a \"\"quoted\"\" name\",\"x\",1.5\n\"b\",\"y\",\n\nname,n\n\"c\",3\n");
    ck_assert_int_eq(bench_write_json(&report, path), 0);
    const char *json = content(path);
    ck_assert_ptr_nonnull(strstr(json, "{\"name\": \"a \\\"quoted\\\" name\", \"kind\": \"x\", \"us\": 1.5}"));
    ck_assert_ptr_nonnull(strstr(json, "{\"name\": \"b\", \"kind\": \"y\", \"us\": null}"));
    ck_assert_ptr_nonnull(strstr(json, "\"at_least\": 2, \"met\": false"));
    ck_assert(!bench_bars_met(&report));
    ck_assert_int_eq(remove(path), 0);
    close(fd);
}
END_TEST

/* Bounds, defaults and --help are of one table. */
START_TEST(options_of_a_table)
{
    static const struct bench_option table[] = {
        {"--rounds", "N", "rounds", 9, 1, 20},
        {"--cpu", "N", "of this machine", -1, 0, 7},
        {"--from", "FILE",
         "a text that is so long that it does not fit the line and has to be broken once before it comes to its end "
         "down here",
         0, 0, 0},
        {"--quick", NULL, "a flag", 0, 0, 0},
        {NULL, NULL, NULL, 0, 0, 0},
    };
    char words[][16] = {"--rounds", "20", "--quick", "--from", "x", "--rounds", "21", "--cpu"};
    enum { WORDS = sizeof words / sizeof words[0] };
    char *argv[WORDS], *text = NULL;
    size_t bytes;
    for (int i = 0; i < WORDS; i++)
        argv[i] = words[i];
    ck_assert_int_eq(bench_number(table, 0, argv, "--rounds"), 9);
    ck_assert_int_eq(bench_number(table, WORDS, argv, "--rounds"), 20);
    ck_assert_int_eq(bench_number(table, WORDS, argv, "--rounds"), -1);
    ck_assert_int_eq(bench_number(table, WORDS, argv, "--rounds"), 9);
    ck_assert_int_eq(bench_number_or(table, WORDS, argv, "--cpu", 3), 3); /* without its value */
    ck_assert_int_eq(bench_options_end(WORDS, argv), -1);
    argv[WORDS - 1] = NULL;
    ck_assert_str_eq(bench_text(table, WORDS, argv, "--from"), "x");
    ck_assert_ptr_null(bench_text(table, WORDS, argv, "--from"));
    ck_assert(bench_flag(table, WORDS, argv, "--quick"));
    ck_assert(!bench_flag(table, WORDS, argv, "--quick"));
    ck_assert_int_eq(bench_options_end(WORDS, argv), 0);
    FILE *out = open_memstream(&text, &bytes);
    bench_options_print(table, out);
    fclose(out);
    ck_assert_str_eq(text,
                     "  --rounds N             rounds (9; 1 to 20)\n"
                     "  --cpu N                of this machine (0 to 7)\n"
                     "  --from FILE            a text that is so long that it does not fit the line and has to be "
                     "broken once before it\n"
                     "                         comes to its end down here\n"
                     "  --quick                a flag\n");
    free(text);
}
END_TEST

MLA_SUITE(bench)
{
    TCase *tc = mla_tcase_timeout(suite, "bench", 60);
    tcase_add_test(tc, e4m3_is_the_nearest);
    tcase_add_test(tc, rows_are_normal);
    tcase_add_test(tc, table_is_a_permutation);
    tcase_add_test(tc, order_statistics);
    tcase_add_test(tc, files_of_a_report);
    tcase_add_test(tc, options_of_a_table);
}
