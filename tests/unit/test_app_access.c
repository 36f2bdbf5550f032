/* Who may connect and who is an admin; what a reload takes over; the wait for device nodes. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/app/access.h"
#include "daemon/app/service.h"
#include "daemon/util/clock.h"
#include "tests/support/check_main.h"

static struct app_config config;
static struct access_rights rights;
static char why[256];

static void begin(void)
{
    config_defaults(&config);
}

static void lists(const char *users, const char *groups, const char *admin_users, const char *admin_groups)
{
    strcpy(config.users, users);
    strcpy(config.groups, groups);
    strcpy(config.admin_users, admin_users);
    strcpy(config.admin_groups, admin_groups);
    ck_assert_msg(access_resolve(&rights, &config, why, sizeof(why)) == 0, "%s", why);
}

static const gid_t groups_of_some[] = {500, 600};
static const struct net_creds root = {.uid = 0}, own = {.uid = 4242, .gid = 4242},
                              some = {.uid = 1000, .gid = 1000, .groups = groups_of_some, .n_groups = 2};

START_TEST(without_lists_the_socket_decides)
{
    lists("", "", "", "");
    ck_assert(access_may_connect(&rights, &some));
    ck_assert(!access_may_admin(&rights, &some));
    ck_assert(access_may_admin(&rights, &root));
    struct net_creds self = own;
    self.uid = geteuid();
    ck_assert(access_may_admin(&rights, &self));
}
END_TEST

START_TEST(users_and_groups)
{
    lists("1001, 1000", "", "", "");
    ck_assert(access_may_connect(&rights, &some));
    ck_assert(!access_may_connect(&rights, &own));
    ck_assert(access_may_connect(&rights, &root));
    lists("1001", "", "", "");
    ck_assert(!access_may_connect(&rights, &some));
    lists("", "600", "", ""); /* a supplementary one */
    ck_assert(access_may_connect(&rights, &some));
    ck_assert(!access_may_admin(&rights, &some));
    lists("", "1000", "", ""); /* the first one */
    ck_assert(access_may_connect(&rights, &some));
    lists("", "601", "", "");
    ck_assert(!access_may_connect(&rights, &some));
    lists("root", "root\t700", "", "");
    ck_assert(!access_may_connect(&rights, &some));
    ck_assert_uint_eq(rights.groups.n, 2);
    ck_assert_uint_eq(rights.groups.ids[0], 0);
}
END_TEST

START_TEST(admins)
{
    lists("77", "", "1000", "");
    ck_assert(access_may_admin(&rights, &some));
    ck_assert(access_may_connect(&rights, &some)); /* and so it may connect */
    lists("77", "", "", "500");
    ck_assert(access_may_admin(&rights, &some));
    ck_assert(!access_may_admin(&rights, &own));
    lists("1000", "", "", "501");
    ck_assert(!access_may_admin(&rights, &some));
}
END_TEST

START_TEST(lists_that_are_wrong)
{
    static const struct {
        const char *users, *groups, *said;
    } wrong[] = {
        {"no-such-user", "", "access.users: there is no user \"no-such-user\""},
        {"", "0 no-such-group", "access.groups: there is no group \"no-such-group\""},
        {"12x", "", "access.users: there is no user \"12x\""},
        {"4294967295", "", "access.users: there is no user \"4294967295\""},
        {"99999999999", "", "access.users: there is no user"},
        {"1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 "
         "1 1 "
         "1 1 1 1 1 1 1 1 1",
         "", "access.users: more than 64 entries"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        strcpy(config.users, wrong[i].users);
        strcpy(config.groups, wrong[i].groups);
        ck_assert_int_eq(access_resolve(&rights, &config, why, sizeof(why)), -1);
        ck_assert_msg(strstr(why, wrong[i].said) == why, "\"%s\" is not \"%s\"", why, wrong[i].said);
    }
}
END_TEST

START_TEST(what_a_reload_takes_over)
{
    struct app_config fresh = config;
    char later[64];
    ck_assert_uint_eq(config_reload(&config, &fresh, later, sizeof(later)), 0);
    ck_assert_str_eq(later, "");
    fresh.max_regions = 7;
    fresh.drain_timeout_ms = 1;
    strcpy(fresh.log_level, "debug");
    strcpy(fresh.admin_groups, "5");
    strcpy(fresh.socket, "/tmp/other");
    fresh.socket_mode = 0600;
    fresh.workspace_bytes++;
    ck_assert_uint_eq(config_reload(&config, &fresh, later, sizeof(later)), 4);
    ck_assert_uint_eq(config.max_regions, 7);
    ck_assert_uint_eq(config.drain_timeout_ms, 1);
    ck_assert_str_eq(config.log_level, "debug");
    ck_assert_str_eq(config.admin_groups, "5");
    ck_assert_str_eq(config.socket, "/run/mlad/mlad.sock");
    ck_assert_uint_eq(config.socket_mode, 0660);
    ck_assert_str_eq(later, "daemon.socket daemon.socket_mode device.workspace_bytes");
    char few[12]; /* cut, not overrun */
    config_reload(&config, &fresh, few, sizeof(few));
    ck_assert_str_eq(few, "daemon.sock");
}
END_TEST

static char dev[] = "/tmp/mla-dev-XXXXXX";

static void node(const char *name)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/%s", dev, name);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static void *nodes_come(void *arg)
{
    (void)arg;
    nanosleep(&(struct timespec){.tv_nsec = 150000000}, NULL);
    node("nvidiactl");
    node("nvidia3");
    node("nvidia-uvm");
    return NULL;
}

START_TEST(nodes_that_come_late)
{
    pthread_t thread;
    ck_assert_ptr_nonnull(mkdtemp(dev));
    uint64_t from = mla_now_ns();
    node("nvidia-modeset"); /* not a GPU */
    ck_assert(!service_wait_for_nodes(dev, 120));
    ck_assert_uint_ge(mla_now_ns() - from, 120 * MLA_NS_PER_MS);
    ck_assert_int_eq(pthread_create(&thread, NULL, nodes_come, NULL), 0);
    ck_assert(service_wait_for_nodes(dev, 20000));
    pthread_join(thread, NULL);
    ck_assert(service_wait_for_nodes(dev, 0));
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", dev);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

MLA_SUITE(app_access)
{
    TCase *tc = mla_tcase(suite, "access");
    tcase_add_checked_fixture(tc, begin, NULL);
    tcase_add_test(tc, without_lists_the_socket_decides);
    tcase_add_test(tc, users_and_groups);
    tcase_add_test(tc, admins);
    tcase_add_test(tc, lists_that_are_wrong);
    tcase_add_test(tc, what_a_reload_takes_over);
    tcase_add_test(tc, nodes_that_come_late);
}
