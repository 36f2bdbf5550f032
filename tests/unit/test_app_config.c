#include "daemon/app/config.h"
#include "daemon/app/http.h"
#include "daemon/backend/backend.h"
#include "tests/support/check_main.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The keys as they are promised, written down a second time. */
enum key_type { NUMBER, SIZE, OCTAL, TEXT };

static const struct key {
    const char *name; /* section.key */
    enum key_type type;
    size_t at;
    uint64_t least, most; /* of texts: characters */
    uint64_t preset;
    const char *preset_text;
} keys[] = {
#define NUM(type, section, name, least, most, preset)                                                                  \
    {                                                                                                                  \
#section "." #name, type, offsetof(struct app_config, name), least, most, preset, NULL                         \
    }
#define TXT(section, name, least, most, preset)                                                                        \
    {                                                                                                                  \
#section "." #name, TEXT, offsetof(struct app_config, name), least, most, 0, preset                            \
    }
#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define TIB (UINT64_C(1) << 40)
    TXT(daemon, socket, 1, 107, "/run/mlad/mlad.sock"),
    NUM(OCTAL, daemon, socket_mode, 0, 0777, 0660),
    TXT(daemon, socket_group, 0, 64, ""),
    TXT(daemon, backend, 1, 64, "cpu"),
    TXT(daemon, log_level, 1, 64, "info"),
    NUM(NUMBER, daemon, drain_timeout_ms, 0, 3600000, 10000),
    {"daemon.spin_us", NUMBER, offsetof(struct app_config, loop_spin_us), 0, 10000000, 0, NULL},
    NUM(NUMBER, daemon, http_port, 0, 65535, 0),
    TXT(access, users, 0, 160, ""),
    TXT(access, groups, 0, 160, ""),
    TXT(access, admin_users, 0, 160, ""),
    TXT(access, admin_groups, 0, 160, ""),
    NUM(NUMBER, limits, max_clients, 1, 16384, 1024),
    NUM(NUMBER, limits, max_regions, 1, MIB, 1024),
    NUM(SIZE, limits, max_mapped_bytes, 1, 1024 * TIB, 4 * TIB),
    NUM(NUMBER, limits, max_jobs_in_flight, 1, MIB, 4096),
    NUM(SIZE, limits, max_queued_bytes, 4 * KIB, 64 * GIB, 256 * MIB),
    NUM(NUMBER, limits, max_table_sets, 1, MIB, 1024),
    NUM(NUMBER, limits, max_caches, 1, MIB, 256),
    NUM(SIZE, limits, max_write_queue_bytes, 64 * KIB, GIB, 16 * MIB),
    NUM(NUMBER, limits, hello_timeout_ms, 1, 600000, 5000),
    NUM(NUMBER, limits, frame_timeout_ms, 1, 600000, 10000),
    NUM(NUMBER, limits, write_timeout_ms, 1, 600000, 10000),
    NUM(NUMBER, scheduler, total_jobs_in_flight, 1, 16 * MIB, 65536),
    NUM(NUMBER, scheduler, batch_jobs, 1, 65536, 1024),
    NUM(NUMBER, scheduler, batch_seqs, 1, MIB, 16384),
    NUM(NUMBER, scheduler, launches, 1, 2, 2),
    NUM(NUMBER, scheduler, max_launch_us, 0, 60000000, 2000),
    NUM(NUMBER, scheduler, gather_us, 0, 1000000, 0),
    NUM(NUMBER, scheduler, lead_us, 0, 60000000, 75),
    NUM(NUMBER, scheduler, max_backlog_ms, 0, 86400000, 10000),
    NUM(NUMBER, scheduler, default_timeout_ms, 0, 86400000, 30000),
    NUM(NUMBER, scheduler, retry_after_us, 0, 60000000, 10000),
    TXT(scheduler, policy, 1, 64, "auto"),
    {"weights.clients", TEXT, offsetof(struct app_config, weight_clients), 0, 160, 0, ""},
    {"weights.users", TEXT, offsetof(struct app_config, weight_users), 0, 160, 0, ""},
    {"weights.groups", TEXT, offsetof(struct app_config, weight_groups), 0, 160, 0, ""},
    {"weights.default", NUMBER, offsetof(struct app_config, default_weight), 1, 1000, 1, NULL},
    NUM(SIZE, device, workspace_bytes, MIB, 64 * GIB, 256 * MIB),
    NUM(NUMBER, device, cpu_threads, 0, 1024, 0),
    TXT(device, gpu, 1, 160, "0"),
    TXT(device, kernels_dir, 0, 160, ""),
    TXT(device, kernel, 0, 160, ""),
    NUM(NUMBER, device, spin_us, 0, 10000000, 100),
    NUM(SIZE, device, host_bytes, MIB, 64 * GIB, 256 * MIB),
    TXT(device, costs, 0, 160, ""),
    NUM(NUMBER, device, wait_ms, 0, 3600000, 0),
};
#define N_KEYS ((int)(sizeof(keys) / sizeof(keys[0])))

static struct app_config config;
static char why[512];
static char path[] = "/tmp/mlad-config-XXXXXX";

static void begin(void)
{
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    config_defaults(&config);
    why[0] = '\0';
}

static void end(void)
{
    unlink(path);
}

static uint64_t number_at(const struct key *key)
{
    const char *at = (const char *)&config + key->at;
    uint32_t narrow;
    uint64_t wide;
    memcpy(&narrow, at, sizeof(narrow));
    memcpy(&wide, at, sizeof(wide));
    return key->type == OCTAL ? narrow : wide;
}

static const char *text_at(const struct key *key)
{
    return (const char *)&config + key->at;
}

static int set_text(const struct key *key, const char *value)
{
    char assignment[640];
    snprintf(assignment, sizeof(assignment), "%s=%s", key->name, value);
    return config_set(&config, assignment, why, sizeof(why));
}

static int set_number(const struct key *key, uint64_t value)
{
    char text[64];
    snprintf(text, sizeof(text), key->type == OCTAL ? "%" PRIo64 : "%" PRIu64, value);
    return set_text(key, text);
}

static const char *letters(uint64_t n)
{
    static char text[512];
    memset(text, 'x', n);
    text[n] = '\0';
    return text;
}

static int load(const char *text)
{
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
    return config_load(&config, path, why, sizeof(why));
}

/* ---- ranges ---- */

START_TEST(presets)
{
    const struct key *key = &keys[_i];
    if (key->type == TEXT)
        ck_assert_str_eq(text_at(key), key->preset_text);
    else
        ck_assert_uint_eq(number_at(key), key->preset);
}
END_TEST

START_TEST(at_the_bounds)
{
    const struct key *key = &keys[_i];
    if (key->type == TEXT) {
        ck_assert_int_eq(set_text(key, letters(key->most)), 0);
        ck_assert_str_eq(text_at(key), letters(key->most));
        ck_assert_int_eq(set_text(key, letters(key->least)), 0);
        ck_assert_str_eq(text_at(key), letters(key->least));
        return;
    }
    ck_assert_int_eq(set_number(key, key->most), 0);
    ck_assert_uint_eq(number_at(key), key->most);
    ck_assert_int_eq(set_number(key, key->least), 0);
    ck_assert_uint_eq(number_at(key), key->least);
}
END_TEST

/* What is refused changes nothing and is told with the key and its range. */
static void refused(const struct key *key)
{
    char want[256];
    if (key->type == TEXT)
        snprintf(want, sizeof(want), "%s must have %" PRIu64 " to %" PRIu64 " characters", key->name, key->least,
                 key->most);
    else
        snprintf(want, sizeof(want),
                 key->type == OCTAL ? "%s must be %" PRIo64 " to %" PRIo64 : "%s must be %" PRIu64 " to %" PRIu64,
                 key->name, key->least, key->most);
    ck_assert_str_eq(why, want);
    if (key->type == TEXT)
        ck_assert_str_eq(text_at(key), key->preset_text);
    else
        ck_assert_uint_eq(number_at(key), key->preset);
}

START_TEST(above_the_range)
{
    const struct key *key = &keys[_i];
    if (key->type == TEXT) {
        ck_assert_int_eq(set_text(key, letters(key->most + 1)), -1);
        refused(key);
        return;
    }
    ck_assert_int_eq(set_number(key, key->most + 1), -1);
    refused(key);
    ck_assert_int_eq(set_number(key, UINT64_MAX), -1);
    refused(key);
    /* 2^64 and more, in octal too */
    ck_assert_int_eq(set_text(key, "7777777777777777777777777"), -1);
    refused(key);
}
END_TEST

START_TEST(below_the_range)
{
    const struct key *key = &keys[_i];
    if (key->least == 0)
        return;
    if (key->type == TEXT)
        ck_assert_int_eq(set_text(key, letters(key->least - 1)), -1);
    else
        ck_assert_int_eq(set_number(key, key->least - 1), -1);
    refused(key);
}
END_TEST

static const char *const not_numbers[] = {"", "-1", "+1", " 1", "1 ", "0x10", "ten", "1.5", "1e3", "1,000", "1KB", "K"};

START_TEST(not_a_number)
{
    const struct key *key = &keys[_i];
    if (key->type == TEXT)
        return;
    for (size_t i = 0; i < sizeof(not_numbers) / sizeof(not_numbers[0]); i++) {
        char want[256];
        ck_assert_int_eq(set_text(key, not_numbers[i]), -1);
        snprintf(want, sizeof(want), "%s: \"%s\" is not %s", key->name, not_numbers[i],
                 key->type == OCTAL  ? "an octal number"
                 : key->type == SIZE ? "a size (digits and K, M, G or T)"
                                     : "a whole number");
        ck_assert_str_eq(why, want);
        ck_assert_uint_eq(number_at(key), key->preset);
    }
}
END_TEST

START_TEST(suffixes)
{
    static const struct {
        const char *text;
        uint64_t value;
    } sizes[] = {{"8K", 8 * KIB}, {"8k", 8 * KIB}, {"3M", 3 * MIB}, {"3m", 3 * MIB},      {"64G", 64 * GIB},
                 {"5g", 5 * GIB}, {"2T", 2 * TIB}, {"2t", 2 * TIB}, {"1024T", 1024 * TIB}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char assignment[64];
        snprintf(assignment, sizeof(assignment), "limits.max_mapped_bytes=%s", sizes[i].text);
        ck_assert_int_eq(config_set(&config, assignment, why, sizeof(why)), 0);
        ck_assert_uint_eq(config.max_mapped_bytes, sizes[i].value);
    }
    /* 2^24 T are 2^64: no number of 64 bits, however short its text */
    ck_assert_int_eq(config_set(&config, "limits.max_mapped_bytes=16777216T", why, sizeof(why)), -1);
    ck_assert_str_eq(why, "limits.max_mapped_bytes must be 1 to 1125899906842624");
    ck_assert_int_eq(config_set(&config, "limits.max_mapped_bytes=1025T", why, sizeof(why)), -1);
    ck_assert_int_eq(config_set(&config, "limits.max_clients=1K", why, sizeof(why)), -1);
    ck_assert_str_eq(why, "limits.max_clients: \"1K\" is not a whole number");
}
END_TEST

START_TEST(octal)
{
    ck_assert_int_eq(config_set(&config, "daemon.socket_mode=0600", why, sizeof(why)), 0);
    ck_assert_uint_eq(config.socket_mode, 0600);
    ck_assert_int_eq(config_set(&config, "daemon.socket_mode=666", why, sizeof(why)), 0);
    ck_assert_uint_eq(config.socket_mode, 0666);
    ck_assert_int_eq(config_set(&config, "daemon.socket_mode=0688", why, sizeof(why)), -1);
    ck_assert_str_eq(why, "daemon.socket_mode: \"0688\" is not an octal number");
    ck_assert_int_eq(config_set(&config, "daemon.socket_mode=1000", why, sizeof(why)), -1);
    ck_assert_str_eq(why, "daemon.socket_mode must be 0 to 777");
    ck_assert_uint_eq(config.socket_mode, 0666);
}
END_TEST

/* ---- assignments ---- */

static const struct {
    const char *assignment, *why;
} bad_assignments[] = {
    {"", "\"\" is not section.key=value"},
    {"max_clients=5", "\"max_clients=5\" is not section.key=value"},
    {"limits.max_clients", "\"limits.max_clients\" is not section.key=value"},
    {"limits=max.clients", "\"limits=max.clients\" is not section.key=value"},
    {"limits.max_client=5", "unknown key limits.max_client"},
    {"limits.max_clients =5", "unknown key limits.max_clients "},
    {"daemon.max_clients=5", "unknown key daemon.max_clients"},
    {"limit.max_clients=5", "unknown key limit.max_clients"},
    {"Limits.max_clients=5", "unknown key Limits.max_clients"},
    {".=", "unknown key ."},
    /* what no line of a file could say */
    {"access.users=;", "access.users: no control characters, and no ; at its begin or behind a blank"},
    {"access.users=a ;b", "access.users: no control characters, and no ; at its begin or behind a blank"},
    {"access.users=a\t;b", "access.users: no control characters, and no ; at its begin or behind a blank"},
    {"daemon.socket=/tmp/a\nb", "daemon.socket: no control characters, and no ; at its begin or behind a blank"},
    {"daemon.socket=/tmp/\x7f", "daemon.socket: no control characters, and no ; at its begin or behind a blank"},
};

START_TEST(bad_assignment)
{
    struct app_config before = config;
    ck_assert_int_eq(config_set(&config, bad_assignments[_i].assignment, why, sizeof(why)), -1);
    ck_assert_str_eq(why, bad_assignments[_i].why);
    ck_assert_mem_eq(&config, &before, sizeof(config));
}
END_TEST

/* ---- files ---- */

static void why_is(int line, const char *text)
{
    char want[512];
    snprintf(want, sizeof(want), "%s:%d: %s", path, line, text);
    ck_assert_str_eq(why, want);
}

START_TEST(file_is_read_over_what_is_there)
{
    ck_assert_int_eq(load("# a comment\n[limits]\nmax_clients = 7\n\n; another\n[daemon]\nsocket=/tmp/s\n"), 0);
    ck_assert_uint_eq(config.max_clients, 7);
    ck_assert_str_eq(config.socket, "/tmp/s");
    ck_assert_uint_eq(config.max_regions, 1024);
    ck_assert_int_eq(load("[limits]\nmax_regions = 9\n"), 0);
    ck_assert_uint_eq(config.max_clients, 7);
    ck_assert_uint_eq(config.max_regions, 9);
    ck_assert_int_eq(load(""), 0);
}
END_TEST

static const struct {
    const char *text;
    int line;
    const char *why;
} bad_files[] = {
    {"[limits]\n\nmax_clients = 0\n", 3, "limits.max_clients must be 1 to 16384"},
    {"[limits]\nmax_clients = many\n", 2, "limits.max_clients: \"many\" is not a whole number"},
    {"[limits]\nmax_clients =\n", 2, "limits.max_clients: \"\" is not a whole number"},
    {"# one\n[limits]\nmax_clients = 5\nmax_client = 5\n", 4, "unknown key limits.max_client"},
    {"[limit]\nmax_clients = 5\n", 2, "unknown key limit.max_clients"},
    {"max_clients = 5\n", 1, "\"max_clients\" stands before any [section]"},
    {"[daemon]\nsocket /tmp/s\n", 2, "not \"key = value\" in a [section]"},
    {"[daemon\nsocket = /tmp/s\n", 1, "not \"key = value\" in a [section]"},
    {"[access]\nusers =; nobody\n", 2, "access.users: no control characters, and no ; at its begin or behind a blank"},
    {"[daemon]\nsocket_mode = 0999\n", 2, "daemon.socket_mode: \"0999\" is not an octal number"},
    /* the first of several */
    {"[limits]\nmax_regions = 0\nmax_caches = 0\nnonsense = 1\n", 2, "limits.max_regions must be 1 to 1048576"},
    /* twice, and an indented line, which goes on with the key above it */
    {"[limits]\nmax_caches = 5\n[daemon]\n[limits]\nmax_caches = 6\n", 5,
     "limits.max_caches stands there twice, or the line is indented"},
    {"[daemon]\nsocket_group = adm\n  backend = cpu\n", 3,
     "daemon.socket_group stands there twice, or the line is indented"},
};

START_TEST(bad_file)
{
    ck_assert_int_eq(load(bad_files[_i].text), -1);
    why_is(bad_files[_i].line, bad_files[_i].why);
}
END_TEST

START_TEST(no_file)
{
    /* A directory opens and does not read. */
    ck_assert_int_eq(config_load(&config, "/tmp", why, sizeof(why)), -1);
    ck_assert_str_eq(why, "/tmp: is no regular file");
    ck_assert_int_eq(config_load(&config, "/tmp/mlad-config-that-is-not-there", why, sizeof(why)), -1);
    ck_assert_str_eq(why, "/tmp/mlad-config-that-is-not-there: No such file or directory");
}
END_TEST

/* ---- checks across keys ---- */

static const struct {
    const char *assignment, *why; /* NULL: fine */
} checks[] = {
    {"daemon.log_level=error", NULL},
    {"daemon.log_level=debug", NULL},
    {"daemon.log_level=chatty", "daemon.log_level must be error, warning, notice, info or debug, not \"chatty\""},
    {"scheduler.policy=seed", NULL},
    {"scheduler.policy=balanced", NULL},
    {"scheduler.policy=Auto", "scheduler.policy must be seed, balanced or auto, not \"Auto\""},
    {"daemon.backend=abacus", "daemon.backend: this build has no backend \"abacus\"; it has cpu"},
    {"daemon.socket=./s", NULL},
    {"daemon.socket=s", "daemon.socket must be a path that begins with / or ."},
};

START_TEST(check_across)
{
    if (be_find("cpu") == NULL) /* the default: that it is missing is then all that is said */
        return;
    ck_assert_int_eq(config_set(&config, checks[_i].assignment, why, sizeof(why)), 0);
    ck_assert_int_eq(config_check(&config, why, sizeof(why)), checks[_i].why ? -1 : 0);
    if (checks[_i].why)
        ck_assert_str_eq(why, checks[_i].why);
}
END_TEST

START_TEST(defaults_pass_the_check)
{
    ck_assert_int_eq(config_check(&config, why, sizeof(why)), be_find("cpu") == NULL ? -1 : 0);
}
END_TEST

START_TEST(a_port_needs_an_endpoint)
{
    if (be_find("cpu") == NULL)
        return;
    ck_assert_int_eq(config_set(&config, "daemon.http_port=9464", why, sizeof(why)), 0);
    ck_assert_int_eq(config_check(&config, why, sizeof(why)), http_is_built() ? 0 : -1);
    if (!http_is_built())
        ck_assert_str_eq(why, "daemon.http_port: this build has no HTTP endpoint");
}
END_TEST

/* ---- printing ---- */

static char *printed(void)
{
    char *text;
    size_t length;
    FILE *f = open_memstream(&text, &length);
    ck_assert_ptr_nonnull(f);
    config_print(&config, f);
    fclose(f);
    return text;
}

/* 0: presets, 1: every key at its least, 2: every key at its most. */
START_TEST(print_is_read_back)
{
    for (int i = 0; i < N_KEYS && _i > 0; i++) {
        uint64_t value = _i == 1 ? keys[i].least : keys[i].most;
        ck_assert_int_eq(keys[i].type == TEXT ? set_text(&keys[i], letters(value)) : set_number(&keys[i], value), 0);
    }
    struct app_config before = config;
    char *text = printed();
    /* Over other values, so that a key that is not printed shows. */
    for (int i = 0; i < N_KEYS; i++)
        ck_assert_int_eq(keys[i].type == TEXT
                             ? set_text(&keys[i], "other")
                             : set_number(&keys[i], keys[i].least + (keys[i].most - keys[i].least) / 2),
                         0);
    ck_assert_msg(load(text) == 0, "%s", why);
    char *again = printed();
    ck_assert_str_eq(again, text);
    for (int i = 0; i < N_KEYS; i++) {
        const char *at = (const char *)&before + keys[i].at;
        if (keys[i].type == TEXT)
            ck_assert_str_eq(text_at(&keys[i]), at);
        else
            ck_assert_mem_eq(text_at(&keys[i]), at, keys[i].type == OCTAL ? sizeof(uint32_t) : sizeof(uint64_t));
    }
    free(again);
    free(text);
}
END_TEST

/* Each key stands in the output once, under its section, and there is none that this file does not know. */
START_TEST(print_has_every_key_once)
{
    char *text = printed();
    char section[64] = "";
    int found = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char name[160];
        if (sscanf(line, "[%63[a-z]]", section) == 1)
            continue;
        char key[64];
        ck_assert_int_eq(sscanf(line, "%63[a-z_] =", key), 1);
        snprintf(name, sizeof(name), "%s.%s", section, key);
        ck_assert_str_eq(name, keys[found].name);
        found++;
    }
    ck_assert_int_eq(found, N_KEYS);
    free(text);
}
END_TEST

MLA_SUITE(app_config)
{
    TCase *tc = mla_tcase(suite, "config");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_add_loop_test(tc, presets, 0, N_KEYS);
    tcase_add_loop_test(tc, at_the_bounds, 0, N_KEYS);
    tcase_add_loop_test(tc, above_the_range, 0, N_KEYS);
    tcase_add_loop_test(tc, below_the_range, 0, N_KEYS);
    tcase_add_loop_test(tc, not_a_number, 0, N_KEYS);
    tcase_add_test(tc, suffixes);
    tcase_add_test(tc, octal);
    tcase_add_loop_test(tc, bad_assignment, 0, sizeof(bad_assignments) / sizeof(bad_assignments[0]));
    tcase_add_test(tc, file_is_read_over_what_is_there);
    tcase_add_loop_test(tc, bad_file, 0, sizeof(bad_files) / sizeof(bad_files[0]));
    tcase_add_test(tc, no_file);
    tcase_add_loop_test(tc, check_across, 0, sizeof(checks) / sizeof(checks[0]));
    tcase_add_test(tc, defaults_pass_the_check);
    tcase_add_test(tc, a_port_needs_an_endpoint);
    tcase_add_loop_test(tc, print_is_read_back, 0, 3);
    tcase_add_test(tc, print_has_every_key_once);
}
