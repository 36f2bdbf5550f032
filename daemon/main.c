/* mlad: command line and configuration; the rest is daemon/app. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/app/access.h"
#include "daemon/app/app.h"
#include "daemon/app/service.h"
#include "daemon/app/weights.h"

#define CONFIG_PATH "/etc/mlad/mlad.conf"

static const char usage[] =
    "usage: mlad [options]\n"
    "  --config FILE        configuration (default " CONFIG_PATH " when it exists)\n"
    "  --socket PATH        same as --set daemon.socket=PATH\n"
    "  --backend NAME       same as --set daemon.backend=NAME\n"
    "  --log-level LEVEL    error, warning, notice, info or debug\n"
    "  --set SECTION.KEY=V  overrides one key of the configuration; may be repeated\n"
    "  --check-config       checks the configuration, prints it whole, exits\n"
    "  --version, --help\n"
    "Exit codes: 0 drained, 1 could not start, 2 usage, 3 device lost, 4 drain deadline passed.\n";

enum { OPT_CONFIG = 256, OPT_SOCKET, OPT_BACKEND, OPT_LOG_LEVEL, OPT_SET, OPT_CHECK, OPT_VERSION, OPT_HELP };

static const struct option options[] = {
    {"config", required_argument, NULL, OPT_CONFIG},
    {"socket", required_argument, NULL, OPT_SOCKET},
    {"backend", required_argument, NULL, OPT_BACKEND},
    {"log-level", required_argument, NULL, OPT_LOG_LEVEL},
    {"set", required_argument, NULL, OPT_SET},
    {"check-config", no_argument, NULL, OPT_CHECK},
    {"version", no_argument, NULL, OPT_VERSION},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static int bad(int code, const char *why)
{
    fprintf(stderr, "mlad: %s\n", why);
    return code;
}

/* The file is read before any override, wherever --config stands. */
static const char *config_path(int argc, char **argv, int *usage_error)
{
    const char *path = access(CONFIG_PATH, R_OK) == 0 ? CONFIG_PATH : NULL;
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == '?')
            *usage_error = 1;
        if (c == OPT_CONFIG)
            path = optarg;
    }
    if (optind < argc) {
        fprintf(stderr, "mlad: unexpected argument \"%s\"\n", argv[optind]);
        *usage_error = 1;
    }
    optind = 1;
    return path;
}

static int set(struct app_config *config, const char *key, const char *value, char *why, size_t why_bytes)
{
    char assignment[CONFIG_TEXT_BYTES + 64];
    if ((size_t)snprintf(assignment, sizeof(assignment), "%s%s", key, value) >= sizeof(assignment)) {
        snprintf(why, why_bytes, "the value is too long");
        return -1;
    }
    return config_set(config, assignment, why, why_bytes);
}

/* The command line as it came, for the first reading of the configuration and for every later one. */
static struct command {
    int argc;
    char **argv;
    const char *path; /* of the file; NULL: none */
} command;

/* One option. 0, an enum app_exit with why filled, or one of OPT_CHECK, OPT_VERSION and OPT_HELP. */
static int take(int option, struct app_config *config, char *why, size_t why_bytes)
{
    static const struct {
        int option;
        const char *name, *key;
    } setters[] = {{OPT_SOCKET, "--socket", "daemon.socket="},
                   {OPT_BACKEND, "--backend", "daemon.backend="},
                   {OPT_LOG_LEVEL, "--log-level", "daemon.log_level="},
                   {OPT_SET, "--set", ""}};
    for (size_t i = 0; i < sizeof(setters) / sizeof(setters[0]); i++) {
        char inner[CONFIG_TEXT_BYTES + 256];
        if (setters[i].option != option || set(config, setters[i].key, optarg, inner, sizeof(inner)) == 0)
            continue;
        snprintf(why, why_bytes, "%s: %s", setters[i].name, inner);
        return APP_EXIT_USAGE;
    }
    return option == OPT_CHECK || option == OPT_VERSION || option == OPT_HELP ? option : 0;
}

/* File, then command line, then what both together must fulfil. As take(). */
static int read_all(struct app_config *config, char *why, size_t why_bytes)
{
    static struct access_rights rights;
    static struct weight_rules weights;
    int check_only = 0, c;
    config_defaults(config);
    if (command.path != NULL && config_load(config, command.path, why, why_bytes) != 0)
        return APP_EXIT_START;
    optind = 1;
    while ((c = getopt_long(command.argc, command.argv, "", options, NULL)) != -1) {
        int r = take(c, config, why, why_bytes);
        if (r != 0 && r != OPT_CHECK)
            return r;
        check_only |= r == OPT_CHECK;
    }
    if (config_check(config, why, why_bytes) != 0 || access_resolve(&rights, config, why, why_bytes) != 0 ||
        weights_resolve(&weights, config, why, why_bytes) != 0)
        return APP_EXIT_START;
    return check_only ? OPT_CHECK : 0;
}

static int load_again(struct app_config *config, char *why, size_t why_bytes)
{
    return read_all(config, why, why_bytes) == 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
    static struct app_config config;
    static char program[] = "mlad"; /* what getopt's messages begin with */
    char why[512];
    if (argc > 0)
        argv[0] = program;
    int usage_error = 0;
    command = (struct command){argc, argv, config_path(argc, argv, &usage_error)};
    if (usage_error) {
        fputs(usage, stderr);
        return APP_EXIT_USAGE;
    }
    int r = read_all(&config, why, sizeof(why));
    switch (r) {
    case 0:
        break;
    case OPT_CHECK:
        config_print(&config, stdout);
        return APP_EXIT_OK;
    case OPT_VERSION:
        puts("mlad " MLAD_VERSION);
        return APP_EXIT_OK;
    case OPT_HELP:
        fputs(usage, stdout);
        return APP_EXIT_OK;
    default:
        service_failed("configuration", why);
        return bad(r, why);
    }
    enum mla_log_level level = MLA_LOG_INFO;
    mla_log_level_parse(config.log_level, &level);
    signal(SIGPIPE, SIG_IGN); /* whoever reads the log may go */
    mla_log_init();
    mla_log_set_level(level);
    int code = app_run(&config, load_again);
    if (code == APP_EXIT_DEVICE_LOST || code == APP_EXIT_DRAIN_TIMEOUT) {
        /* Threads of the backend still run: nothing that ends with the process may be taken from under them. */
        fflush(NULL);
        _exit(code);
    }
    return code;
}
