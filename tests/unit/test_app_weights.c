/* Shares of clients: which entry fits, and what is said of lists that are wrong. */
#include <stdio.h>
#include <string.h>

#include "daemon/app/weights.h"
#include "tests/support/check_main.h"

static struct app_config config;
static struct weight_rules rules;
static char why[256];

static void begin(void)
{
    config_defaults(&config);
}

static void lists(const char *clients, const char *users, const char *groups, unsigned other)
{
    strcpy(config.weight_clients, clients);
    strcpy(config.weight_users, users);
    strcpy(config.weight_groups, groups);
    config.default_weight = other;
    ck_assert_msg(weights_resolve(&rules, &config, why, sizeof(why)) == 0, "%s", why);
}

static const gid_t groups_of_some[] = {500, 600};
static const struct net_creds root = {.uid = 0, .gid = 0}, other = {.uid = 4242, .gid = 4242},
                              some = {.uid = 1000, .gid = 1000, .groups = groups_of_some, .n_groups = 2};

START_TEST(without_lists_all_weigh_the_same)
{
    lists("", "", "", 1);
    ck_assert_uint_eq(weights_find(&rules, &some, "a"), 1);
    ck_assert_uint_eq(weights_find(&rules, &root, ""), 1);
    lists("", "", "", 10);
    ck_assert_uint_eq(weights_find(&rules, &some, "a"), 10);
}
END_TEST

START_TEST(users_and_groups)
{
    lists("", "1000:4 root:7", "", 2);
    ck_assert_uint_eq(weights_find(&rules, &some, "a"), 4);
    ck_assert_uint_eq(weights_find(&rules, &root, "a"), 7);
    ck_assert_uint_eq(weights_find(&rules, &other, "a"), 2);
    lists("", "", "4242:3, 600:5,1000:6", 2); /* a first one, a supplementary one; the list's order */
    ck_assert_uint_eq(weights_find(&rules, &other, "a"), 3);
    ck_assert_uint_eq(weights_find(&rules, &some, "a"), 5);
    ck_assert_uint_eq(weights_find(&rules, &root, "a"), 2);
    lists("", "1000:9", "600:5", 2); /* a user before its groups */
    ck_assert_uint_eq(weights_find(&rules, &some, "a"), 9);
}
END_TEST

START_TEST(names_of_clients)
{
    lists("serve-*:1000 serve-slow:1 b[0-9]:3\tx:y:7", "1000:9", "", 2);
    ck_assert_uint_eq(weights_find(&rules, &some, "serve-1"), 1000);
    ck_assert_uint_eq(weights_find(&rules, &some, "serve-slow"), 1000); /* the first that fits */
    ck_assert_uint_eq(weights_find(&rules, &some, "b7"), 3);
    ck_assert_uint_eq(weights_find(&rules, &some, "x:y"), 7); /* the weight stands behind the last colon */
    ck_assert_uint_eq(weights_find(&rules, &some, "b77"), 9);
    ck_assert_uint_eq(weights_find(&rules, &other, "b77"), 2);
    ck_assert_uint_eq(weights_find(&rules, &some, ""), 9);
    lists("*:5", "1000:9", "", 2);
    ck_assert_uint_eq(weights_find(&rules, &some, ""), 5);
    ck_assert_uint_eq(weights_find(&rules, &other, "with blanks and \"such\""), 5);
}
END_TEST

START_TEST(lists_that_are_wrong)
{
    static const struct {
        const char *clients, *users, *groups, *said;
    } wrong[] = {
        {"a", "", "", "weights.clients: \"a\" is not NAME:WEIGHT"},
        {"", ":4", "", "weights.users: \":4\" is not NAME:WEIGHT"},
        {"", "", "0", "weights.groups: \"0\" is not NAME:WEIGHT"},
        {"a:", "", "", "weights.clients: the weight of \"a\" must be 1 to 1000"},
        {"a:0", "", "", "weights.clients: the weight of \"a\" must be 1 to 1000"},
        {"a:1001", "", "", "weights.clients: the weight of \"a\" must be 1 to 1000"},
        {"a:-1", "", "", "weights.clients: the weight of \"a\" must be 1 to 1000"},
        {"a:+1", "", "", "weights.clients: the weight of \"a\" must be 1 to 1000"},
        {"", "0:4x", "", "weights.users: the weight of \"0\" must be 1 to 1000"},
        {"", "0:4.5", "", "weights.users: the weight of \"0\" must be 1 to 1000"},
        {"", "", "0:99999999999999999999999", "weights.groups: the weight of \"0\" must be 1 to 1000"},
        {"", "no-such-user:1", "", "weights.users: there is no user \"no-such-user\""},
        {"", "", "no-such-group:1", "weights.groups: there is no group \"no-such-group\""},
        {"", "4294967295:1", "", "weights.users: there is no user \"4294967295\""},
        {"a:1 b:1 a:2", "", "", "weights.clients: \"a\" stands there twice"},
        {"", "0:1 root:2", "", "weights.users: \"root\" stands there twice"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaX:1", "", "",
         "weights.clients: \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...\" is longer than a "
         "name "
         "may be"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        strcpy(config.weight_clients, wrong[i].clients);
        strcpy(config.weight_users, wrong[i].users);
        strcpy(config.weight_groups, wrong[i].groups);
        ck_assert_msg(weights_resolve(&rules, &config, why, sizeof(why)) == -1, "not refused: %s", wrong[i].said);
        ck_assert_str_eq(why, wrong[i].said);
    }
}
END_TEST

/* As many entries as the text has room for. */
START_TEST(a_list_that_is_full)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    char *at = config.weight_clients;
    ck_assert_uint_eq(strlen(letters), WEIGHTS_MAX);
    for (unsigned i = 0; i < WEIGHTS_MAX; i++)
        at += sprintf(at, "%c:%u%s", letters[i], i % 9 + 1, i + 1 < WEIGHTS_MAX ? "," : "");
    ck_assert_ptr_eq(at + 1, config.weight_clients + CONFIG_TEXT_BYTES);
    ck_assert_int_eq(weights_resolve(&rules, &config, why, sizeof(why)), 0);
    ck_assert_uint_eq(rules.clients.n, WEIGHTS_MAX);
    ck_assert_uint_eq(weights_find(&rules, &some, "-"), (WEIGHTS_MAX - 1) % 9 + 1);
}
END_TEST

MLA_SUITE(app_weights)
{
    TCase *tc = mla_tcase(suite, "weights");
    tcase_add_checked_fixture(tc, begin, NULL);
    tcase_add_test(tc, without_lists_all_weigh_the_same);
    tcase_add_test(tc, users_and_groups);
    tcase_add_test(tc, names_of_clients);
    tcase_add_test(tc, lists_that_are_wrong);
    tcase_add_test(tc, a_list_that_is_full);
}
