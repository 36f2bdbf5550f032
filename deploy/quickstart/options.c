#include <errno.h>
#include <getopt.h>
#include <stdlib.h>

#include "deploy/quickstart/worker.h"

static const char usage[] =
    "usage: mla_quickstart_worker --name NAME --own CACHE | --attach CACHE [options]\n"
    "  --own CACHE      make a cache, fill it, publish it under this name, wait for one that attaches, decode\n"
    "  --attach CACHE   attach to the cache of that name (made by this user with the same --seed), decode\n"
    "  --socket PATH    of the daemon (default $MLAD_SOCKET, else /run/mlad/mlad.sock)\n"
    "  --heads N --q-len N --kv-len N,N,...   the shape: one context length per sequence\n"
    "  --layers N --pages N                   of the cache that --own makes\n"
    "  --rounds N       decodes per layer; contexts grow by q-len from round to round\n"
    "  --seed N         of everything in the cache and of the queries\n"
    "  --table FILE     one row per answer goes there (default: stdout); --header prints their heading\n"
    "Exit codes: 0 every answer is right, 1 one is wrong or something failed, 2 usage.\n";

static _Noreturn void refuse(const char *option, const char *value)
{
    fprintf(stderr, "mla_quickstart_worker: --%s: \"%s\" will not do; see --help\n", option, value);
    exit(2);
}

static uint32_t number(const char *option, const char *text, uint32_t min, uint32_t max, char **end)
{
    errno = 0;
    unsigned long v = strtoul(text, end, 10);
    if (errno != 0 || *end == text || v < min || v > max)
        refuse(option, text);
    return (uint32_t)v;
}

static void lengths(const char *text, struct worker_options *o)
{
    const char *at = text;
    char *end;
    for (o->n_seqs = 0; o->n_seqs < WORKER_SEQS_MAX; at = end + 1) {
        o->kv_len[o->n_seqs++] = number("kv-len", at, 1, 1 << 20, &end);
        if (*end == '\0')
            return;
        if (*end != ',')
            break;
    }
    refuse("kv-len", text);
}

enum { NAME = 256, OWN, ATTACH, SOCKET, HEADS, Q_LEN, KV_LEN, LAYERS, PAGES, ROUNDS, SEED, TABLE, HEADER, HELP };
static const struct option list[] = {
    {"name", required_argument, NULL, NAME},
    {"own", required_argument, NULL, OWN},
    {"attach", required_argument, NULL, ATTACH},
    {"socket", required_argument, NULL, SOCKET},
    {"heads", required_argument, NULL, HEADS},
    {"q-len", required_argument, NULL, Q_LEN},
    {"kv-len", required_argument, NULL, KV_LEN},
    {"layers", required_argument, NULL, LAYERS},
    {"pages", required_argument, NULL, PAGES},
    {"rounds", required_argument, NULL, ROUNDS},
    {"seed", required_argument, NULL, SEED},
    {"table", required_argument, NULL, TABLE},
    {"header", no_argument, NULL, HEADER},
    {"help", no_argument, NULL, HELP},
    {NULL, 0, NULL, 0},
};

static void set_number(int id, struct worker_options *o)
{
    struct {
        int id;
        const char *name;
        uint32_t max;
        uint32_t *at;
    } numbers[] = {
        {HEADS, "heads", 128, &o->heads},   {Q_LEN, "q-len", 64, &o->q_len},      {LAYERS, "layers", 64, &o->layers},
        {PAGES, "pages", 65536, &o->pages}, {ROUNDS, "rounds", 1000, &o->rounds},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        char *end = NULL;
        if (numbers[i].id != id)
            continue;
        *numbers[i].at = number(numbers[i].name, optarg, 1, numbers[i].max, &end);
        if (*end != '\0')
            refuse(numbers[i].name, optarg);
    }
}

void worker_parse(int argc, char **argv, struct worker_options *o)
{
    int id;
    *o = (struct worker_options){.heads = 96,
                                 .q_len = 4,
                                 .n_seqs = 1,
                                 .kv_len = {1024},
                                 .layers = 1,
                                 .pages = 64,
                                 .rounds = 1,

                                 .seed = 1};
    while ((id = getopt_long(argc, argv, "", list, NULL)) != -1) {
        char *end = NULL;
        switch (id) {
        case NAME:
            o->name = optarg;
            break;
        case OWN:
        case ATTACH:
            o->cache = optarg;
            o->owner = id == OWN;
            break;
        case SOCKET:
            o->socket = optarg;
            break;
        case KV_LEN:
            lengths(optarg, o);
            break;
        case SEED:
            o->seed = strtoull(optarg, &end, 10);
            if (*end != '\0')
                refuse("seed", optarg);
            break;
        case TABLE:
            o->table = optarg;
            break;
        case HEADER:
            worker_header(stdout);
            exit(0);
        case HELP:
            fputs(usage, stdout);
            exit(0);
        case '?':
            fputs(usage, stderr);
            exit(2);
        default:
            set_number(id, o);
        }
    }
    if (optind < argc || o->name == NULL || o->cache == NULL) {
        fputs(usage, stderr);
        exit(2);
    }
}
