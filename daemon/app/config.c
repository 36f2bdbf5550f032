#include "daemon/app/config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/app/http.h"
#include "daemon/backend/backend.h"
#include "daemon/sched/sched.h"

enum key_type { KEY_U64, KEY_BYTES, KEY_OCTAL32, KEY_TEXT };

struct key {
    const char *section, *name;
    enum key_type type;
    size_t at;
    uint64_t min, max;
    const char *preset;
};

#define AT(member) offsetof(struct app_config, member)
#define GIB        (UINT64_C(1) << 30)

/* Longer than any name of these is, and short enough for inih, which cuts lines at 200 characters. */
#define NAME_MAX_CHARS 64

/* The one list of keys: defaults, ranges, printing and reading follow from it. */
static const struct key keys[] = {
    {"daemon", "socket", KEY_TEXT, AT(socket), 1, 107, "/run/mlad/mlad.sock"},
    {"daemon", "socket_mode", KEY_OCTAL32, AT(socket_mode), 0, 0777, "0660"},
    {"daemon", "socket_group", KEY_TEXT, AT(socket_group), 0, NAME_MAX_CHARS, ""},
    {"daemon", "backend", KEY_TEXT, AT(backend), 1, NAME_MAX_CHARS, "cpu"},
    {"daemon", "log_level", KEY_TEXT, AT(log_level), 1, NAME_MAX_CHARS, "info"},
    {"daemon", "drain_timeout_ms", KEY_U64, AT(drain_timeout_ms), 0, 3600000, "10000"},
    {"daemon", "spin_us", KEY_U64, AT(loop_spin_us), 0, 10000000, "0"},
    {"daemon", "http_port", KEY_U64, AT(http_port), 0, 65535, "0"},
    {"access", "users", KEY_TEXT, AT(users), 0, 160, ""},
    {"access", "groups", KEY_TEXT, AT(groups), 0, 160, ""},
    {"access", "admin_users", KEY_TEXT, AT(admin_users), 0, 160, ""},
    {"access", "admin_groups", KEY_TEXT, AT(admin_groups), 0, 160, ""},
    {"limits", "max_clients", KEY_U64, AT(max_clients), 1, 16384, "1024"},
    {"limits", "max_regions", KEY_U64, AT(max_regions), 1, 1 << 20, "1024"},
    {"limits", "max_mapped_bytes", KEY_BYTES, AT(max_mapped_bytes), 1, UINT64_C(1) << 50, "4T"},
    {"limits", "max_jobs_in_flight", KEY_U64, AT(max_jobs_in_flight), 1, 1 << 20, "4096"},
    {"limits", "max_queued_bytes", KEY_BYTES, AT(max_queued_bytes), 1 << 12, 64 * GIB, "256M"},
    {"limits", "max_table_sets", KEY_U64, AT(max_table_sets), 1, 1 << 20, "1024"},
    {"limits", "max_caches", KEY_U64, AT(max_caches), 1, 1 << 20, "256"},
    {"limits", "max_write_queue_bytes", KEY_BYTES, AT(max_write_queue_bytes), 1 << 16, GIB, "16M"},
    {"limits", "hello_timeout_ms", KEY_U64, AT(hello_timeout_ms), 1, 600000, "5000"},
    {"limits", "frame_timeout_ms", KEY_U64, AT(frame_timeout_ms), 1, 600000, "10000"},
    {"limits", "write_timeout_ms", KEY_U64, AT(write_timeout_ms), 1, 600000, "10000"},
    {"scheduler", "total_jobs_in_flight", KEY_U64, AT(total_jobs_in_flight), 1, 1 << 24, "65536"},
    {"scheduler", "batch_jobs", KEY_U64, AT(batch_jobs), 1, 1 << 16, "1024"},
    {"scheduler", "batch_seqs", KEY_U64, AT(batch_seqs), 1, 1 << 20, "16384"},
    {"scheduler", "launches", KEY_U64, AT(launches), 1, SCHED_BATCHES, "2"},
    {"scheduler", "max_launch_us", KEY_U64, AT(max_launch_us), 0, 60000000, "2000"},
    {"scheduler", "gather_us", KEY_U64, AT(gather_us), 0, 1000000, "0"},
    {"scheduler", "lead_us", KEY_U64, AT(lead_us), 0, 60000000, "75"},
    {"scheduler", "max_backlog_ms", KEY_U64, AT(max_backlog_ms), 0, 86400000, "10000"},
    {"scheduler", "default_timeout_ms", KEY_U64, AT(default_timeout_ms), 0, 86400000, "30000"},
    {"scheduler", "retry_after_us", KEY_U64, AT(retry_after_us), 0, 60000000, "10000"},
    {"scheduler", "policy", KEY_TEXT, AT(policy), 1, NAME_MAX_CHARS, "auto"},
    {"weights", "clients", KEY_TEXT, AT(weight_clients), 0, 160, ""},
    {"weights", "users", KEY_TEXT, AT(weight_users), 0, 160, ""},
    {"weights", "groups", KEY_TEXT, AT(weight_groups), 0, 160, ""},
    {"weights", "default", KEY_U64, AT(default_weight), 1, SCHED_WEIGHT_MAX, "1"},
    {"device", "workspace_bytes", KEY_BYTES, AT(workspace_bytes), 1 << 20, 64 * GIB, "256M"},
    {"device", "cpu_threads", KEY_U64, AT(cpu_threads), 0, 1024, "0"},
    {"device", "gpu", KEY_TEXT, AT(gpu), 1, 160, "0"},
    {"device", "kernels_dir", KEY_TEXT, AT(kernels_dir), 0, 160, ""},
    {"device", "kernel", KEY_TEXT, AT(kernel), 0, 160, ""},
    {"device", "spin_us", KEY_U64, AT(spin_us), 0, 10000000, "100"},
    {"device", "host_bytes", KEY_BYTES, AT(host_bytes), 1 << 20, 64 * GIB, "256M"},
    {"device", "costs", KEY_TEXT, AT(costs), 0, 160, ""},
    {"device", "wait_ms", KEY_U64, AT(wait_ms), 0, 3600000, "0"},
};
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))

static const struct key *find_key(const char *section, size_t section_len, const char *name)
{
    for (size_t i = 0; i < N_KEYS; i++)
        if (strlen(keys[i].section) == section_len && memcmp(keys[i].section, section, section_len) == 0 &&
            strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

/* Digits, and for sizes an optional K, M, G or T (powers of 1024). */
static int parse_number(const char *text, int base, bool suffix, uint64_t *out)
{
    if (!isdigit((unsigned char)text[0]))
        return -EINVAL;
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, base);
    if (errno != 0)
        return -ERANGE;
    unsigned shift = 0;
    if (suffix && *end != '\0') {
        static const char letters[] = "KMGT";
        const char *at = strchr(letters, toupper((unsigned char)*end));
        if (at == NULL)
            return -EINVAL;
        shift = 10 * (unsigned)(at - letters + 1);
        end++;
    }
    if (*end != '\0')
        return -EINVAL;
    if (v > UINT64_MAX >> shift)
        return -ERANGE;
    *out = (uint64_t)v << shift;
    return 0;
}

/* Whether a file can say it: without characters that end a line, or that begin a remark there. */
static bool is_line_text(const char *value)
{
    for (const char *p = value; *p != '\0'; p++)
        if ((iscntrl((unsigned char)*p) && *p != '\t') || (*p == ';' && (p == value || isspace((unsigned char)p[-1]))))
            return false;
    return true;
}

static int set_key(struct app_config *config, const struct key *key, const char *value, char *why, size_t why_bytes)
{
    char *at = (char *)config + key->at;
    if (key->type == KEY_TEXT) {
        size_t n = strlen(value);
        if (n < key->min || n > key->max || n >= CONFIG_TEXT_BYTES) {
            snprintf(why, why_bytes, "%s.%s must have %llu to %llu characters", key->section, key->name,
                     (unsigned long long)key->min, (unsigned long long)key->max);
            return -1;
        }
        if (!is_line_text(value)) {
            snprintf(why, why_bytes, "%s.%s: no control characters, and no ; at its begin or behind a blank",
                     key->section, key->name);
            return -1;
        }
        memcpy(at, value, n + 1);
        return 0;
    }
    uint64_t v = 0;
    int r = parse_number(value, key->type == KEY_OCTAL32 ? 8 : 10, key->type == KEY_BYTES, &v);
    if (r == -EINVAL) {
        snprintf(why, why_bytes, "%s.%s: \"%.64s\" is not %s", key->section, key->name, value,
                 key->type == KEY_OCTAL32 ? "an octal number"
                 : key->type == KEY_BYTES ? "a size (digits and K, M, G or T)"
                                          : "a whole number");
        return -1;
    }
    if (r < 0 || v < key->min || v > key->max) {
        snprintf(why, why_bytes, key->type == KEY_OCTAL32 ? "%s.%s must be %llo to %llo" : "%s.%s must be %llu to %llu",
                 key->section, key->name, (unsigned long long)key->min, (unsigned long long)key->max);
        return -1;
    }
    if (key->type == KEY_OCTAL32) {
        uint32_t narrow = (uint32_t)v;
        memcpy(at, &narrow, sizeof(narrow));
    } else {
        memcpy(at, &v, sizeof(v));
    }
    return 0;
}

void config_defaults(struct app_config *config)
{
    char why[256];
    memset(config, 0, sizeof(*config));
    for (size_t i = 0; i < N_KEYS; i++)
        if (set_key(config, &keys[i], keys[i].preset, why, sizeof(why)) != 0)
            abort(); /* the table itself is wrong */
}

struct load {
    struct app_config *config;
    FILE *file;
    int line;     /* read last */
    int why_line; /* what why is about */
    char *why;
    size_t why_bytes;
    bool seen[N_KEYS];
};

static char *read_line(char *text, int bytes, void *stream)
{
    struct load *load = stream;
    load->line++;
    return fgets(text, bytes, load->file);
}

static int on_pair(void *user, const char *section, const char *name, const char *value)
{
    struct load *load = user;
    if (load->why[0] != '\0') /* inih goes on after an error; the first one is the one it names */
        return 0;
    load->why_line = load->line;
    const struct key *key = find_key(section, strlen(section), name);
    if (key == NULL) {
        if (section[0] == '\0')
            snprintf(load->why, load->why_bytes, "\"%.64s\" stands before any [section]", name);
        else
            snprintf(load->why, load->why_bytes, "unknown key %.64s.%.64s", section, name);
        return 0;
    }
    /* inih hands an indented line over as a further value of the key above it. */
    if (load->seen[key - keys]) {
        snprintf(load->why, load->why_bytes, "%s.%s stands there twice, or the line is indented", section, name);
        return 0;
    }
    load->seen[key - keys] = true;
    return set_key(load->config, key, value, load->why, load->why_bytes) == 0;
}

/* A reload happens between requests, so nothing that may keep the reader waiting, or has no end, is a configuration. */
static FILE *open_file(const char *path)
{
    struct stat is = {0}, null;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return NULL;
    bool fine =
        fstat(fd, &is) == 0 &&
        (S_ISREG(is.st_mode) || (S_ISCHR(is.st_mode) && stat("/dev/null", &null) == 0 && null.st_rdev == is.st_rdev));
    FILE *file = fine ? fdopen(fd, "r") : NULL;
    if (file == NULL) {
        int why = fine ? errno : EINVAL;
        close(fd);
        errno = why;
    }
    return file;
}

int config_load(struct app_config *config, const char *path, char *why, size_t why_bytes)
{
    char inner[256] = "";
    struct load load = {.config = config, .why = inner, .why_bytes = sizeof(inner)};
    load.file = open_file(path);
    if (load.file == NULL) {
        snprintf(why, why_bytes, "%s: %s", path, errno == EINVAL ? "is no regular file" : strerror(errno));
        return -1;
    }
    int line = ini_parse_stream(read_line, &load, on_pair, &load);
    bool failed = ferror(load.file) != 0;
    fclose(load.file);
    if (line == 0 && !failed)
        return 0;
    if (line <= 0)
        snprintf(why, why_bytes, "%s: cannot be read", path);
    else
        snprintf(why, why_bytes, "%s:%d: %s", path, line,
                 line == load.why_line ? inner : "not \"key = value\" in a [section]");
    return -1;
}

int config_set(struct app_config *config, const char *assignment, char *why, size_t why_bytes)
{
    const char *dot = strchr(assignment, '.');
    const char *equals = dot == NULL ? NULL : strchr(dot, '=');
    char name[64];
    if (equals == NULL || (size_t)(equals - dot - 1) >= sizeof(name)) {
        snprintf(why, why_bytes, "\"%.64s\" is not section.key=value", assignment);
        return -1;
    }
    memcpy(name, dot + 1, (size_t)(equals - dot - 1));
    name[equals - dot - 1] = '\0';
    const struct key *key = find_key(assignment, (size_t)(dot - assignment), name);
    if (key == NULL) {
        snprintf(why, why_bytes, "unknown key %.*s", (int)(equals - assignment), assignment);
        return -1;
    }
    return set_key(config, key, equals + 1, why, why_bytes);
}

int config_check(const struct app_config *config, char *why, size_t why_bytes)
{
    enum mla_log_level level;
    if (mla_log_level_parse(config->log_level, &level) != 0) {
        snprintf(why, why_bytes, "daemon.log_level must be error, warning, notice, info or debug, not \"%s\"",
                 config->log_level);
        return -1;
    }
    if (strcmp(config->policy, "seed") != 0 && strcmp(config->policy, "balanced") != 0 &&
        strcmp(config->policy, "auto") != 0) {
        snprintf(why, why_bytes, "scheduler.policy must be seed, balanced or auto, not \"%s\"", config->policy);
        return -1;
    }
    if (be_find(config->backend) == NULL) {
        snprintf(why, why_bytes, "daemon.backend: this build has no backend \"%s\"%s%s", config->backend,
                 be_all[0] == NULL ? "" : "; it has ", be_all[0] == NULL ? "" : be_all[0]->name);
        return -1;
    }
    if (config->socket[0] != '/' && config->socket[0] != '.') {
        snprintf(why, why_bytes, "daemon.socket must be a path that begins with / or .");
        return -1;
    }
    if (config->http_port != 0 && !http_is_built()) {
        snprintf(why, why_bytes, "daemon.http_port: this build has no HTTP endpoint");
        return -1;
    }
    return 0;
}

static bool is_live(const struct key *key)
{
    static const char *const names[] = {"log_level", "drain_timeout_ms", "default_timeout_ms", "retry_after_us"};
    if (strcmp(key->section, "limits") == 0 || strcmp(key->section, "access") == 0 ||
        strcmp(key->section, "weights") == 0)
        return true;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(key->name, names[i]) == 0)
            return true;
    return false;
}

size_t config_reload(struct app_config *live, const struct app_config *fresh, char *later, size_t later_bytes)
{
    size_t changed = 0, used = 0;
    later[0] = '\0';
    for (size_t i = 0; i < N_KEYS; i++) {
        const struct key *key = &keys[i];
        char *to = (char *)live + key->at;
        const char *from = (const char *)fresh + key->at;
        size_t bytes = key->type == KEY_TEXT      ? CONFIG_TEXT_BYTES
                       : key->type == KEY_OCTAL32 ? sizeof(uint32_t)
                                                  : sizeof(uint64_t);
        if (key->type == KEY_TEXT ? strcmp(to, from) == 0 : memcmp(to, from, bytes) == 0)
            continue;
        if (is_live(key)) {
            memcpy(to, from, bytes);
            changed++;
        } else if (used < later_bytes) {
            int n = snprintf(later + used, later_bytes - used, "%s%s.%s", used > 0 ? " " : "", key->section, key->name);
            used += n > 0 ? (size_t)n : 0;
        }
    }
    return changed;
}

void config_print(const struct app_config *config, FILE *out)
{
    const char *section = "";
    for (size_t i = 0; i < N_KEYS; i++) {
        const struct key *key = &keys[i];
        const char *at = (const char *)config + key->at;
        if (strcmp(section, key->section) != 0) {
            fprintf(out, "%s[%s]\n", section[0] == '\0' ? "" : "\n", key->section);
            section = key->section;
        }
        if (key->type == KEY_TEXT) {
            fprintf(out, "%s = %s\n", key->name, at);
        } else if (key->type == KEY_OCTAL32) {
            uint32_t v;
            memcpy(&v, at, sizeof(v));
            fprintf(out, "%s = %04o\n", key->name, v);
        } else {
            uint64_t v;
            memcpy(&v, at, sizeof(v));
            fprintf(out, "%s = %llu\n", key->name, (unsigned long long)v);
        }
    }
}
