#include "daemon/app/costs.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(member) offsetof(struct costs_file, member)

static const struct {
    const char *name;
    size_t at;
    uint32_t min;
} numbers[] = {
    {"rows_per_unit", AT(rows_per_unit), 1},
    {"launch_ns", AT(costs.launch_ns), 0},
    {"fill_ns", AT(costs.fill_ns), 0},
    {"page_ns", AT(costs.page_ns), 1},
    {"drain_ns", AT(costs.drain_ns), 0},
    {"partial_ns", AT(costs.partial_ns), 0},
    {"reduce_launch_ns", AT(costs.reduce_launch_ns), 0},
    {"reduce_bytes_per_us", AT(costs.reduce_bytes_per_us), 1},
    {"reduce_fixed_ns", AT(costs.reduce_fixed_ns), 0},
};
#define N_NUMBERS (sizeof(numbers) / sizeof(numbers[0]))
#define DEVICE    N_NUMBERS /* its place among those that were seen */

struct load {
    struct costs_file *out;
    bool seen[N_NUMBERS + 1];
    char why[160]; /* "": nothing is wrong */
};

static int set_number(struct load *load, size_t i, const char *value)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(value, &end, 10);
    if (!isdigit((unsigned char)value[0]) || *end != '\0' || errno != 0 || v < numbers[i].min || v > UINT32_MAX) {
        snprintf(load->why, sizeof(load->why), "%s must be a number from %u to %u", numbers[i].name, numbers[i].min,
                 UINT32_MAX);
        return 0;
    }
    uint32_t narrow = (uint32_t)v;
    memcpy((char *)load->out + numbers[i].at, &narrow, sizeof(narrow));
    return 1;
}

static int on_pair(void *user, const char *section, const char *name, const char *value)
{
    struct load *load = user;
    size_t i = 0;
    if (load->why[0] != '\0') /* inih goes on after an error; the first one is the one it names */
        return 0;
    while (i < N_NUMBERS && strcmp(numbers[i].name, name) != 0)
        i++;
    bool known = strcmp(section, "costs") == 0 && (i < N_NUMBERS || strcmp(name, "device") == 0);
    if (!known || load->seen[i]) {
        snprintf(load->why, sizeof(load->why), "%s.%s %s", section, name, known ? "stands there twice" : "is no key");
        return 0;
    }
    load->seen[i] = true;
    if (i < N_NUMBERS)
        return set_number(load, i, value);
    snprintf(load->out->device, sizeof(load->out->device), "%s", value);
    return 1;
}

int costs_load(const char *path, struct costs_file *out, char *why, size_t why_bytes)
{
    struct load load = {.out = out};
    memset(out, 0, sizeof(*out));
    errno = 0;
    int line = ini_parse(path, on_pair, &load);
    if (line == -1) {
        snprintf(why, why_bytes, "%s: %s", path, strerror(errno));
        return -1;
    }
    if (line != 0) {
        snprintf(why, why_bytes, "%s:%d: %s", path, line,
                 load.why[0] != '\0' ? load.why : "not \"key = value\" in a [section]");
        return -1;
    }
    for (size_t i = 0; i <= N_NUMBERS; i++)
        if (!load.seen[i]) {
            snprintf(why, why_bytes, "%s: costs.%s is missing", path, i == DEVICE ? "device" : numbers[i].name);
            return -1;
        }
    return 0;
}
