#include "daemon/util/json.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *text;
static size_t length;
static FILE *out;
static struct json j;

static void begin(void)
{
    out = open_memstream(&text, &length);
    ck_assert_ptr_nonnull(out);
    json_init(&j, out);
}

static void end(void)
{
    fclose(out);
    free(text);
}

/* Everything written since begin(). */
static const char *written(void)
{
    fflush(out);
    return text;
}

START_TEST(object_of_each_type)
{
    json_object(&j, NULL);
    json_string(&j, "s", "text");
    json_u64(&j, "most", UINT64_MAX);
    json_u64(&j, "least", 0);
    json_double(&j, "d", -2.5);
    json_bool(&j, "yes", true);
    json_bool(&j, "no", false);
    json_end(&j);
    ck_assert_str_eq(written(), "{\"s\": \"text\", \"most\": 18446744073709551615, \"least\": 0, \"d\": -2.5, "
                                "\"yes\": true, \"no\": false}");
}
END_TEST

START_TEST(empty_containers)
{
    json_array(&j, NULL);
    json_object(&j, NULL);
    json_end(&j);
    json_array(&j, NULL);
    json_end_array(&j);
    json_object(&j, NULL);
    json_array(&j, "a");
    json_end_array(&j);
    json_end(&j);
    json_end_array(&j);
    ck_assert_str_eq(written(), "[{}, [], {\"a\": []}]");
}
END_TEST

START_TEST(commas_at_every_level)
{
    json_object(&j, NULL);
    json_array(&j, "rows");
    json_u64(&j, NULL, 1);
    json_object(&j, NULL);
    json_u64(&j, "x", 2);
    json_array(&j, "y");
    json_string(&j, NULL, "");
    json_bool(&j, NULL, true);
    json_double(&j, NULL, 0.5);
    json_end_array(&j);
    json_u64(&j, "z", 3);
    json_end(&j);
    json_u64(&j, NULL, 4);
    json_end_array(&j);
    json_u64(&j, "after", 5);
    json_end(&j);
    ck_assert_str_eq(written(), "{\"rows\": [1, {\"x\": 2, \"y\": [\"\", true, 0.5], \"z\": 3}, 4], \"after\": 5}");
}
END_TEST

/* A level that is entered again starts without a comma, whatever stood there before. */
START_TEST(levels_are_forgotten)
{
    json_array(&j, NULL);
    for (int i = 0; i < 3; i++) {
        json_array(&j, NULL);
        json_u64(&j, NULL, 1);
        json_u64(&j, NULL, 2);
        json_end_array(&j);
    }
    json_end_array(&j);
    ck_assert_str_eq(written(), "[[1, 2], [1, 2], [1, 2]]");
}
END_TEST

START_TEST(escapes_in_values_and_keys)
{
    json_object(&j, NULL);
    json_string(&j, "quote\"key\\", "say \"a\\b\"");
    json_string(&j, "control", "\x01\b\t\n\f\r\x1f\x7f");
    json_string(&j, "utf8", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80/");
    json_end(&j);
    ck_assert_str_eq(written(), "{\"quote\\\"key\\\\\": \"say \\\"a\\\\b\\\"\", "
                                "\"control\": \"\\u0001\\u0008\\u0009\\u000a\\u000c\\u000d\\u001f\x7f\", "
                                "\"utf8\": \"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80/\"}");
}
END_TEST

START_TEST(every_control_character)
{
    char value[2] = {(char)_i, '\0'};
    char want[16];
    snprintf(want, sizeof(want), "\"\\u%04x\"", (unsigned)_i);
    json_string(&j, NULL, value);
    ck_assert_str_eq(written(), want);
}
END_TEST

START_TEST(numbers_that_json_does_not_know)
{
    json_array(&j, NULL);
    json_double(&j, NULL, NAN);
    json_double(&j, NULL, -NAN);
    json_double(&j, NULL, INFINITY);
    json_double(&j, NULL, -INFINITY);
    json_double(&j, NULL, 1.0);
    json_end_array(&j);
    ck_assert_str_eq(written(), "[null, null, null, null, 1]");
}
END_TEST

static const struct {
    double value;
    const char *want;
} doubles[] = {
    {0.0, "0"},
    {0.1, "0.1"},
    {1.0 / 3.0, "0.333333333333333"},
    {123456789012345.0, "123456789012345"},
    {9007199254740992.0, "9.00719925474099e+15"},
    {1e300, "1e+300"},
    {-1e-300, "-1e-300"},
    {5e-324, "4.94065645841247e-324"},
};

START_TEST(doubles_have_15_digits)
{
    json_double(&j, NULL, doubles[_i].value);
    ck_assert_str_eq(written(), doubles[_i].want);
}
END_TEST

#define LEVELS 32

START_TEST(deepest_nesting)
{
    char want[8 * LEVELS] = "";
    for (int i = 0; i < LEVELS; i++) {
        json_array(&j, NULL);
        json_u64(&j, NULL, 1);
        strcat(want, i == 0 ? "[1" : ", [1");
    }
    for (int i = 0; i < LEVELS; i++) {
        json_u64(&j, NULL, 2);
        json_end_array(&j);
        strcat(want, ", 2]");
    }
    ck_assert_str_eq(written(), want);
}
END_TEST

MLA_SUITE(json)
{
    TCase *tc = mla_tcase(suite, "json");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_add_test(tc, object_of_each_type);
    tcase_add_test(tc, empty_containers);
    tcase_add_test(tc, commas_at_every_level);
    tcase_add_test(tc, levels_are_forgotten);
    tcase_add_test(tc, escapes_in_values_and_keys);
    tcase_add_loop_test(tc, every_control_character, 1, 0x20);
    tcase_add_test(tc, numbers_that_json_does_not_know);
    tcase_add_loop_test(tc, doubles_have_15_digits, 0, sizeof(doubles) / sizeof(doubles[0]));
    tcase_add_test(tc, deepest_nesting);
}
