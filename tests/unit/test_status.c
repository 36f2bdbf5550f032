#include <string.h>

#include "proto/error.h"
#include "proto/text.h"
#include "tests/support/check_main.h"

/* The numbers as released. A line here is never changed; new codes are added here and in proto/status.h together. */
static const struct {
    const char *name;
    int number;
} frozen[] = {
    {"OK", 0},
    {"INVALID_ARGUMENT", 1},
    {"NOT_FOUND", 2},
    {"ALREADY_EXISTS", 3},
    {"UNSUPPORTED", 4},
    {"UNKNOWN_MESSAGE", 5},
    {"MALFORMED", 6},
    {"TOO_LARGE", 7},
    {"MISALIGNED", 8},
    {"OUT_OF_BOUNDS", 9},
    {"OVERLAP", 10},
    {"PERMISSION_DENIED", 11},
    {"WRONG_DEVICE", 12},
    {"NO_DESCRIPTORS", 13},
    {"BAD_DESCRIPTOR", 14},
    {"NOT_SEALED", 15},
    {"BAD_HANDLE", 16},
    {"VERSION_MISMATCH", 17},
    {"HELLO_REQUIRED", 18},
    {"ACCESS_DENIED", 19},
    {"BUSY", 20},
    {"NON_FINITE", 21},
    {"QUOTA", 100},
    {"OVERLOADED", 101},
    {"DRAINING", 102},
    {"CACHE_GONE", 103},
    {"SUSPENDED", 104},
    {"OUT_OF_MEMORY", 105},
    {"TIMED_OUT", 200},
    {"CANCELLED", 201},
    {"LATE", 202},
    {"READY_ABORTED", 203},
    {"PROTOCOL_ERROR", 300},
    {"DISCONNECTED", 301},
    {"DEVICE_LOST", 302},
    {"INTERNAL", 303},
    {"SLOW_PEER", 304},
    {"PARTIAL", 400},
    {"PAGE_OUT_OF_RANGE", 401},
    {"KV_LEN_OUT_OF_RANGE", 402},
    {"VISIBLE_OUT_OF_RANGE", 403},
    {"PENDING", 500},
    {"SYSTEM_ERROR", 501},
};
#define N_FROZEN (sizeof(frozen) / sizeof(frozen[0]))

START_TEST(numbers_are_frozen)
{
    static const struct {
        const char *name;
        int number;
    } now[] = {
#define ROW(name, number, text) {#name, number},
        MLA_STATUS_LIST(ROW)
#undef ROW
    };
    ck_assert_uint_eq(sizeof(now) / sizeof(now[0]), N_FROZEN);
    for (size_t i = 0; i < N_FROZEN; i++) {
        ck_assert_str_eq(now[i].name, frozen[i].name);
        ck_assert_int_eq(now[i].number, frozen[i].number);
        ck_assert_str_eq(mla_status_name((enum mla_status)frozen[i].number), frozen[i].name);
        ck_assert_uint_gt(strlen(mla_status_text((enum mla_status)frozen[i].number)), 3);
    }
}
END_TEST

START_TEST(unknown_numbers_have_a_name)
{
    ck_assert_str_eq(mla_status_name((enum mla_status)99), "UNKNOWN");
    ck_assert_str_ne(mla_status_text((enum mla_status)99), "");
}
END_TEST

START_TEST(error_set_fills_and_clears)
{
    struct mla_error e;
    memset(&e, 0xff, sizeof(e));
    ck_assert_int_eq(mla_error_set(&e, MLA_QUOTA, "size", "over by %d", 5), MLA_QUOTA);
    ck_assert_int_eq(e.code, MLA_QUOTA);
    ck_assert_str_eq(e.field, "size");
    ck_assert_str_eq(e.text, "over by 5");
    ck_assert_uint_eq(e.index | e.value | e.limit | e.retry_after_us, 0);
    ck_assert_int_eq(mla_error_set(NULL, MLA_BUSY, NULL, "x"), MLA_BUSY);
}
END_TEST

START_TEST(error_text_is_cut_to_its_array)
{
    char longer[2 * MLA_MAX_TEXT_BYTES + 1];
    struct mla_error e;
    memset(longer, 'a', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = 0;
    mla_error_set(&e, MLA_INTERNAL, NULL, "%s", longer);
    ck_assert_uint_eq(strlen(e.text), MLA_MAX_TEXT_BYTES - 1);
    /* Cut inside a character of two bytes: what is left must still be text. */
    for (size_t i = 1; i + 1 < sizeof(longer) - 1; i += 2) {
        longer[i - 1] = '\xc3';
        longer[i] = '\xa9';
    }
    mla_error_set(&e, MLA_INTERNAL, NULL, "%s", longer);
    ck_assert_uint_eq(mla_text_span((const uint8_t *)e.text, strlen(e.text)), MLA_MAX_TEXT_BYTES - 1);
    ck_assert_int_eq(e.text[MLA_MAX_TEXT_BYTES - 2], '?');
}
END_TEST

START_TEST(error_text_keeps_no_control_characters)
{
    struct mla_error e;
    mla_error_set(&e, MLA_INTERNAL, NULL, "%s", "a\x1b[2Jb\nc\x7f \xc2\x9b \xff caf\xc3\xa9");
    ck_assert_str_eq(e.text, "a?[2Jb?c? ?? ? caf\xc3\xa9");
}
END_TEST

START_TEST(text_characters)
{
    static const struct {
        const char *s;
        size_t len;
    } rows[] = {{"a", 1},
                {"\x1f", 0},
                {" ", 1},
                {"~", 1},
                {"\x7f", 0},
                {"\x80", 0},
                {"\xc1\xbf", 0}, /* overlong */
                {"\xc2\x9f", 0}, /* C1 */
                {"\xc2\xa0", 2},
                {"\xdf\xbf", 2},
                {"\xe0\x9f\xbf", 0}, /* overlong */
                {"\xe0\xa0\x80", 3},
                {"\xed\x9f\xbf", 3},
                {"\xed\xa0\x80", 0}, /* surrogate */
                {"\xef\xbf\xbd", 3},
                {"\xf0\x8f\xbf\xbf", 0}, /* overlong */
                {"\xf0\x90\x80\x80", 4},
                {"\xf4\x8f\xbf\xbf", 4},
                {"\xf4\x90\x80\x80", 0}, /* above U+10FFFF */
                {"\xf5\x80\x80\x80", 0},
                {"\xe2\x82", 0}, /* cut off */
                {"", 0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        ck_assert_msg(mla_text_char((const uint8_t *)rows[i].s, strlen(rows[i].s)) == rows[i].len, "row %zu", i);
}
END_TEST

MLA_SUITE(status)
{
    TCase *tc = mla_tcase(suite, "status");
    tcase_add_test(tc, numbers_are_frozen);
    tcase_add_test(tc, unknown_numbers_have_a_name);
    tcase_add_test(tc, error_set_fills_and_clears);
    tcase_add_test(tc, error_text_is_cut_to_its_array);
    tcase_add_test(tc, error_text_keeps_no_control_characters);
    tcase_add_test(tc, text_characters);
}
