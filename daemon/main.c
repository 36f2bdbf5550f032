/* mlad: command line and configuration; the rest is daemon/app. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/app/app.h"

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

int main(int argc, char **argv)
{
    static struct app_config config;
    static char program[] = "mlad"; /* what getopt's messages begin with */
    char why[512];
    if (argc > 0)
        argv[0] = program;
    int usage_error = 0, check_only = 0, c;
    const char *path = config_path(argc, argv, &usage_error);
    if (usage_error) {
        fputs(usage, stderr);
        return APP_EXIT_USAGE;
    }
    config_defaults(&config);
    if (path != NULL && config_load(&config, path, why, sizeof(why)) != 0)
        return bad(APP_EXIT_START, why);
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        int r = 0;
        const char *option = "";
        switch (c) {
        case OPT_SOCKET:
            option = "--socket";
            r = set(&config, "daemon.socket=", optarg, why, sizeof(why));
            break;
        case OPT_BACKEND:
            option = "--backend";
            r = set(&config, "daemon.backend=", optarg, why, sizeof(why));
            break;
        case OPT_LOG_LEVEL:
            option = "--log-level";
            r = set(&config, "daemon.log_level=", optarg, why, sizeof(why));
            break;
        case OPT_SET:
            option = "--set";
            r = set(&config, "", optarg, why, sizeof(why));
            break;
        case OPT_CHECK:
            check_only = 1;
            break;
        case OPT_VERSION:
            puts("mlad " MLAD_VERSION);
            return APP_EXIT_OK;
        case OPT_HELP:
            fputs(usage, stdout);
            return APP_EXIT_OK;
        default:
            break;
        }
        if (r != 0) {
            fprintf(stderr, "mlad: %s: %s\n", option, why);
            return APP_EXIT_USAGE;
        }
    }
    if (config_check(&config, why, sizeof(why)) != 0)
        return bad(APP_EXIT_START, why);
    if (check_only) {
        config_print(&config, stdout);
        return APP_EXIT_OK;
    }
    enum mla_log_level level = MLA_LOG_INFO;
    mla_log_level_parse(config.log_level, &level);
    signal(SIGPIPE, SIG_IGN); /* whoever reads the log may go */
    mla_log_init();
    mla_log_set_level(level);
    int code = app_run(&config);
    if (code == APP_EXIT_DEVICE_LOST || code == APP_EXIT_DRAIN_TIMEOUT) {
        /* Threads of the backend still run: nothing that ends with the process may be taken from under them. */
        fflush(NULL);
        _exit(code);
    }
    return code;
}
