/* mlactl: global options, the connection, and the subcommand. */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/ctl/ctl.h"

static const char usage[] =
    "usage: mlactl [options] COMMAND\n"
    "  health    state of the daemon; exit 0 when it is ready, 5 when degraded, else 1\n"
    "  status    the daemon: device, memory, jobs\n"
    "  clients   one line per connection\n"
    "  caches    one line per cache\n"
    "  metrics   in Prometheus' text format\n"
    "  top       jobs, batches, latencies and clients, drawn anew every --interval SECONDS (1); --once: since the\n"
    "            daemon's start\n"
    "  drain     no new work; the daemon exits when all is answered (--deadline SECONDS: at the latest then)\n"
    "  evict ID  ends a client's connection, by its id of \"clients\"\n"
    "  reload    the daemon reads its configuration again\n"
    "  plan      the plan of a shape, without a daemon (mlactl plan --help)\n"
    "options:\n"
    "  --socket PATH     default $MLAD_SOCKET, else /run/mlad/mlad.sock\n"
    "  --timeout SECONDS for the whole of it (default 5)\n"
    "  --json            one JSON document instead of text\n"
    "  --version, --help\n"
    "Exit codes: 0 done, 1 not ready, 2 usage, 3 no daemon answers, 4 refused by the daemon, 5 degraded.\n";

static const struct {
    const char *name;
    int (*run)(struct ctl *ctl);
} commands[] = {
    {"health", ctl_health}, {"status", ctl_status},   {"clients", ctl_clients},
    {"caches", ctl_caches}, {"metrics", ctl_metrics}, {"drain", ctl_drain},
    {"top", ctl_top},       {"evict", ctl_evict},     {"reload", ctl_reload},
};

enum { OPT_SOCKET = 256, OPT_TIMEOUT, OPT_JSON, OPT_DEADLINE, OPT_INTERVAL, OPT_ONCE, OPT_VERSION, OPT_HELP };
static const struct option options[] = {
    {"socket", required_argument, NULL, OPT_SOCKET},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {"json", no_argument, NULL, OPT_JSON},
    {"deadline", required_argument, NULL, OPT_DEADLINE},
    {"interval", required_argument, NULL, OPT_INTERVAL},
    {"once", no_argument, NULL, OPT_ONCE},
    {"version", no_argument, NULL, OPT_VERSION},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

int ctl_fail(const struct ctl *ctl, const char *what)
{
    const struct mla_error_info *e = mla_last_error(ctl->client);
    fprintf(stderr, "mlactl: %s: %s%s%s: %s\n", what, mla_errname(e->status), e->field[0] ? " in " : "", e->field,
            e->text[0] ? e->text : mla_strerror(e->status));
    return e->status == MLA_DISCONNECTED || e->status == MLA_PENDING ? CTL_EXIT_CONNECT : CTL_EXIT_REFUSED;
}

#define INTERVAL_LEAST_US 10000u /* of top: it asks the daemon each time */

/* Seconds with a fraction, to microseconds. */
static int parse_seconds(const char *option, const char *text, uint64_t *us)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !(v >= 0 && v <= 1e9)) {
        fprintf(stderr, "mlactl: %s must be a number of seconds from 0 to 1e9, not \"%s\"\n", option, text);
        return -1;
    }
    *us = (uint64_t)(v * 1e6);
    return 0;
}

static int parse_client(const char *text, uint64_t *id)
{
    char *end;
    errno = 0;
    *id = strtoull(text, &end, 16);
    if (errno == 0 && isxdigit((unsigned char)text[0]) && *end == '\0')
        return 0;
    fprintf(stderr, "mlactl: evict needs a client's id, as \"mlactl clients\" shows it, not \"%s\"\n", text);
    return -1;
}

/* Whether nobody answered, or somebody who said no (too many clients, no right to the socket, another version). */
static int open_exit(enum mla_status status)
{
    switch (status) {
    case MLA_DISCONNECTED:
    case MLA_TIMED_OUT:
    case MLA_PENDING:
    case MLA_SYSTEM_ERROR:
    case MLA_OUT_OF_MEMORY:
    case MLA_INVALID_ARGUMENT:
        return CTL_EXIT_CONNECT;
    default:
        return CTL_EXIT_REFUSED;
    }
}

static int run(int (*command)(struct ctl *ctl), struct ctl *ctl, const char *socket)
{
    struct mla_options o;
    struct mla_error_info error;
    mla_options_init(&o);
    o.recover_us = 0;
    o.socket_path = socket;
    o.name = "mlactl";
    o.timeout_us = ctl->timeout_us;
    if (mla_open(&o, &ctl->client, &error) != MLA_OK) {
        fprintf(stderr, "mlactl: %s: %s\n", mla_errname(error.status),
                error.text[0] ? error.text : mla_strerror(error.status));
        return open_exit(error.status);
    }
    int code = command(ctl);
    mla_close(ctl->client);
    return code;
}

/* Options up to the first word that is none; optind is then that word's. -1: go on, else the exit code. */
static int parse(int argc, char **argv, struct ctl *ctl, const char **socket)
{
    int c;
    optind = 0; /* from the start, whatever was parsed before */
    while ((c = getopt_long(argc, argv, "+", options, NULL)) != -1) {
        switch (c) {
        case OPT_SOCKET:
            *socket = optarg;
            break;
        case OPT_TIMEOUT:
            if (parse_seconds("--timeout", optarg, &ctl->timeout_us) != 0)
                return CTL_EXIT_USAGE;
            break;
        case OPT_JSON:
            ctl->json = true;
            break;
        case OPT_DEADLINE:
            if (parse_seconds("--deadline", optarg, &ctl->deadline_us) != 0)
                return CTL_EXIT_USAGE;
            ctl->has_deadline = true;
            break;
        case OPT_INTERVAL:
            if (parse_seconds("--interval", optarg, &ctl->interval_us) != 0)
                return CTL_EXIT_USAGE;
            if (ctl->interval_us < INTERVAL_LEAST_US) {
                fprintf(stderr, "mlactl: --interval must be at least %g seconds, not \"%s\"\n",
                        (double)INTERVAL_LEAST_US / 1e6, optarg);
                return CTL_EXIT_USAGE;
            }
            break;
        case OPT_ONCE:
            ctl->once = true;
            break;
        case OPT_VERSION:
            printf("mlactl %s\n", mla_version());
            return CTL_EXIT_OK;
        case OPT_HELP:
            fputs(usage, stdout);
            return CTL_EXIT_OK;
        default:
            fputs(usage, stderr);
            return CTL_EXIT_USAGE;
        }
    }
    return -1;
}

/* plan has options of its own; of those before it only --json means something to it. */
static int plan(bool json, int argc, char **argv)
{
    char **more = calloc((size_t)argc + 2, sizeof(*more));
    char option[] = "--json";
    if (more == NULL) {
        fprintf(stderr, "mlactl: out of memory\n");
        return CTL_EXIT_NOT_READY;
    }
    more[0] = argv[0];
    more[1] = option;
    memcpy(more + (json ? 2 : 1), argv + 1, (size_t)(argc - 1) * sizeof(*more));
    int code = ctl_plan(argc + json, more);
    free(more);
    return code;
}

int main(int argc, char **argv)
{
    static char program[] = "mlactl"; /* what getopt's messages begin with */
    if (argc > 0)
        argv[0] = program;
    struct ctl ctl = {.timeout_us = 5000000, .interval_us = 1000000};
    const char *socket = NULL, *command = NULL;
    int code = parse(argc, argv, &ctl, &socket);
    if (code >= 0)
        return code;
    int rest = argc - optind;
    char **words = argv + optind;
    if (rest > 0)
        command = words[0];
    if (command != NULL && strcmp(command, "plan") == 0)
        return plan(ctl.json, rest, words);
    if (command != NULL) { /* options may stand behind the command too */
        words[0] = argv[0];
        code = parse(rest, words, &ctl, &socket);
        if (code >= 0)
            return code;
        if (strcmp(command, "evict") == 0 && parse_client(optind < rest ? words[optind++] : "", &ctl.client_id) != 0)
            return CTL_EXIT_USAGE;
        if (optind < rest) {
            fprintf(stderr, "mlactl: unexpected argument \"%s\"\n", words[optind]);
            return CTL_EXIT_USAGE;
        }
    }
    for (size_t i = 0; command != NULL && i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(commands[i].name, command) == 0)
            return run(commands[i].run, &ctl, socket);
    if (command != NULL)
        fprintf(stderr, "mlactl: unknown command \"%s\"\n", command);
    fputs(usage, stderr);
    return CTL_EXIT_USAGE;
}
