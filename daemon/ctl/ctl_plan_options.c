#include "daemon/ctl/ctl_plan.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "proto/limits.h"

#define SMS_MAX       4096u
#define SPLITS_MAX    4096u
#define BANDWIDTH_MAX 1000000u
#define H200_READ_GB  4620u /* measured */

void ctl_plan_usage(FILE *out)
{
    fputs(
        "Usage: mlactl plan --heads N --q-len N --kv-len N [options]\n"
        "\n"
        "Prints how mlad would cut a batch of equal sequences (causal, 64-token pages), without a daemon.\n"
        "Times are those of a model, never measurements: predicted_us of the cost model, whose constants are the\n"
        "H200's kernels', and roofline_us of a part whose SMs are as fast as the H200's. So it also says what a part\n"
        "that nobody here has would do: --sms 132-224. Plans are for the kind of kernels that the library takes\n"
        "for the shape on such a part, by what a page costs each kind on the H200.\n"
        "\n"
        "  --heads N          query heads, 1 to 128\n"
        "  --q-len N          query tokens per sequence, 1 to 4096\n"
        "  --kv-len N         context length in tokens, 0 to 16777216\n"
        "  --batch N          sequences, 1 to 16384 (default 1)\n"
        "  --sms N            SMs of the device, up to 4096 (default 132); or a range, FROM-TO or FROM-TO:STEP\n"
        "                     (steps of 4), one line for each\n"
        "  --bandwidth GB/S   of its memory, for the roofline, 1 to 1000000 (default 4620, read on the H200)\n"
        "  --unit U           auto (default), or CTAs of a unit and the rows it holds: 2x128, 2x96, 1x64, 1x48\n"
        "                     or 1x32, the kinds there are, or 4x256, native tiles of 256 rows, which no kernel has\n"
        "  --tile N           rows of a tile: 256 (default), 128 or 64\n"
        "  --pad-heads N      heads padded to N (up to 128) and sent as requests of at most 4 query tokens\n"
        "  --policy P         seed, balanced, auto (default) or unsplit\n"
        "  --splits N         cut every tile into N items, 1 to 4096, instead of by a policy\n"
        "  --compare          native 256-row tiles, native 128-row tiles and the padded form side by side;\n"
        "                     with --unit 4x256, 128-row tiles run in units of 2x128\n"
        "  --dump             every tile, item and reduction as well\n"
        "  --json             as JSON\n"
        "  --help             this text\n",
        out);
}

static const struct {
    const char *name;
    enum plan_policy policy;
} policies[] = {{"seed", PLAN_SEED}, {"balanced", PLAN_BALANCED}, {"auto", PLAN_AUTO}, {"unsplit", PLAN_UNSPLIT}};

const char *ctl_plan_policy_name(enum plan_policy policy)
{
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++)
        if (policies[i].policy == policy)
            return policies[i].name;
    return "unknown";
}

static int refuse(FILE *err, const char *option, const char *takes, const char *got)
{
    fprintf(err, "mlactl plan: --%s takes %s, not \"%s\"\n", option, takes, got);
    return CTL_PLAN_USAGE;
}

static int number(FILE *err, const char *option, const char *text, uint32_t low, uint32_t high, uint32_t *value)
{
    char *end;
    char takes[64];
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno == 0 && text[0] >= '0' && text[0] <= '9' && *end == '\0' && v >= low && v <= high) {
        *value = (uint32_t)v;
        return 0;
    }
    snprintf(takes, sizeof(takes), "a number from %u to %u", low, high);
    return refuse(err, option, takes, text);
}

enum option_id {
    OPT_HEADS = 256,
    OPT_Q_LEN,
    OPT_BATCH,
    OPT_KV_LEN,
    OPT_SMS,
    OPT_BANDWIDTH,
    OPT_UNIT,
    OPT_TILE,
    OPT_PAD_HEADS,
    OPT_POLICY,
    OPT_SPLITS,
    OPT_COMPARE,
    OPT_JSON,
    OPT_DUMP,
    OPT_HELP
};

static const struct option long_options[] = {
    {"heads", required_argument, NULL, OPT_HEADS},
    {"q-len", required_argument, NULL, OPT_Q_LEN},
    {"batch", required_argument, NULL, OPT_BATCH},
    {"kv-len", required_argument, NULL, OPT_KV_LEN},
    {"sms", required_argument, NULL, OPT_SMS},
    {"bandwidth", required_argument, NULL, OPT_BANDWIDTH},
    {"unit", required_argument, NULL, OPT_UNIT},
    {"tile", required_argument, NULL, OPT_TILE},
    {"pad-heads", required_argument, NULL, OPT_PAD_HEADS},
    {"policy", required_argument, NULL, OPT_POLICY},
    {"splits", required_argument, NULL, OPT_SPLITS},
    {"compare", no_argument, NULL, OPT_COMPARE},
    {"json", no_argument, NULL, OPT_JSON},
    {"dump", no_argument, NULL, OPT_DUMP},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

/* "132", "132-224", "132-224:8" */
static int range_of_sms(FILE *err, const char *text, struct ctl_plan_options *o)
{
    char first[16] = "", last[16] = "", step[16] = "";
    const char *dash = strchr(text, '-'), *colon = strchr(text, ':');
    o->sms_step = 4;
    if (dash == NULL || dash == text) {
        int rc = number(err, "sms", text, 1, SMS_MAX, &o->sms);
        o->sms_to = o->sms;
        return rc;
    }
    snprintf(first, sizeof(first), "%.*s", (int)(dash - text), text);
    snprintf(last, sizeof(last), "%.*s", colon != NULL ? (int)(colon - dash - 1) : (int)strlen(dash + 1), dash + 1);
    snprintf(step, sizeof(step), "%s", colon != NULL ? colon + 1 : "4");
    int rc = colon != NULL && colon < dash ? refuse(err, "sms", "a range such as 132-224:8", text) : 0;
    if (rc == 0)
        rc = number(err, "sms", first, 1, SMS_MAX, &o->sms);
    if (rc == 0)
        rc = number(err, "sms", last, o->sms, SMS_MAX, &o->sms_to);
    if (rc == 0)
        rc = number(err, "sms", step, 1, SMS_MAX, &o->sms_step);
    return rc;
}

/* The kinds of the H200, and behind them the one of the reference workload's post. */
static size_t all_kinds(struct plan_kind *all)
{
    const struct plan_kind *kinds;
    size_t n = plan_kinds(&kinds);
    memcpy(all, kinds, n * sizeof(*all));
    all[n] = (struct plan_kind){.name = "none", .tile_rows = MLA_ABI_TILE_ROWS};
    (void)plan_device_preset("reference", &all[n].device, &all[n].costs);
    return n + 1;
}

static int parse_unit(FILE *err, const char *text, struct ctl_plan_options *o)
{
    struct plan_kind all[PLAN_KINDS_MAX + 1];
    char takes[128] = "auto", unit[24];
    size_t n = all_kinds(all);
    o->unit_ctas = o->unit_rows = 0;
    if (strcmp(text, "auto") == 0)
        return 0;
    for (size_t i = 0; i < n; i++) {
        snprintf(unit, sizeof(unit), "%ux%u", all[i].device.ctas_per_unit, all[i].device.rows_per_unit);
        if (strcmp(text, unit) == 0) {
            o->unit_ctas = all[i].device.ctas_per_unit;
            o->unit_rows = all[i].device.rows_per_unit;
            return 0;
        }
        size_t used = strlen(takes);
        snprintf(takes + used, sizeof(takes) - used, "%s%s", i + 1 == n ? " or " : ", ", unit);
    }
    return refuse(err, "unit", takes, text);
}

size_t ctl_plan_kinds(const struct ctl_plan_options *o, uint32_t sms, uint32_t tile_rows, struct plan_kind *kinds)
{
    struct plan_kind all[PLAN_KINDS_MAX + 1];
    size_t n = all_kinds(all), kept = 0;
    for (size_t i = 0; i < n; i++) {
        struct plan_device *d = &all[i].device;
        bool named = d->ctas_per_unit == o->unit_ctas && d->rows_per_unit == o->unit_rows;
        if (o->unit_ctas != 0 ? !named : i + 1 == n) /* the last is no kernel */
            continue;
        assert(d->ctas_per_unit > 0 && d->rows_per_unit > 0);
        d->sms = sms;
        d->resident_units = sms / d->ctas_per_unit;
        all[i].tile_rows = tile_rows;
        if (d->resident_units >= (tile_rows + d->rows_per_unit - 1) / d->rows_per_unit)
            kinds[kept++] = all[i];
    }
    return kept;
}

/* SMs that a part needs so that there is a kind. */
static uint32_t least_sms(const struct ctl_plan_options *o)
{
    struct plan_kind kinds[PLAN_KINDS_MAX];
    uint32_t sms = 1;
    while (sms < SMS_MAX && ctl_plan_kinds(o, sms, o->tile_rows, kinds) == 0)
        sms++;
    return sms;
}

static int parse_words(FILE *err, int id, const char *text, struct ctl_plan_options *o)
{
    if (id == OPT_UNIT)
        return parse_unit(err, text, o);
    if (id == OPT_TILE) {
        if (strcmp(text, "256") != 0 && strcmp(text, "128") != 0 && strcmp(text, "64") != 0)
            return refuse(err, "tile", "256, 128 or 64", text);
        o->tile_rows = (uint32_t)strtoul(text, NULL, 10);
        return 0;
    }
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
        if (strcmp(text, policies[i].name) == 0) {
            o->policy = policies[i].policy;
            return 0;
        }
    }
    return refuse(err, "policy", "seed, balanced, auto or unsplit", text);
}

static int parse_one(FILE *err, int id, const char *text, struct ctl_plan_options *o)
{
    switch (id) {
    case OPT_HEADS:
        return number(err, "heads", text, 1, MLA_HEADS_MAX, &o->heads);
    case OPT_Q_LEN:
        return number(err, "q-len", text, 1, MLA_Q_LEN_MAX, &o->q_len);
    case OPT_BATCH:
        return number(err, "batch", text, 1, MLA_SEQS_PER_JOB_MAX, &o->batch);
    case OPT_KV_LEN:
        return number(err, "kv-len", text, 0, MLA_KV_LEN_MAX, &o->kv_len);
    case OPT_SMS:
        return range_of_sms(err, text, o);
    case OPT_BANDWIDTH:
        return number(err, "bandwidth", text, 1, BANDWIDTH_MAX, &o->bandwidth_gb);
    case OPT_PAD_HEADS:
        return number(err, "pad-heads", text, 1, MLA_HEADS_MAX, &o->pad_heads);
    case OPT_SPLITS:
        return number(err, "splits", text, 1, SPLITS_MAX, &o->splits);
    case OPT_COMPARE:
        o->compare = true;
        return 0;
    case OPT_JSON:
        o->json = true;
        return 0;
    case OPT_DUMP:
        o->dump = true;
        return 0;
    case OPT_HELP:
        o->help = true;
        return 0;
    default:
        return parse_words(err, id, text, o);
    }
}

/* What only the options together show. */
static int check_together(FILE *err, const bool given[OPT_HELP + 1], struct ctl_plan_options *o)
{
    static const struct {
        int id;
        const char *name;
    } needed[] = {{OPT_HEADS, "heads"}, {OPT_Q_LEN, "q-len"}, {OPT_KV_LEN, "kv-len"}};
    char text[16];
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        if (!given[needed[i].id]) {
            fprintf(err, "mlactl plan: --%s is needed; see mlactl plan --help\n", needed[i].name);
            return CTL_PLAN_USAGE;
        }
    }
    if (o->compare && given[OPT_TILE]) {
        fprintf(err, "mlactl plan: --tile does not go with --compare, which shows 256 and 128\n");
        return CTL_PLAN_USAGE;
    }
    if (o->dump && o->sms_to != o->sms) {
        fprintf(err, "mlactl plan: --dump goes with one number of --sms, not with a range\n");
        return CTL_PLAN_USAGE;
    }
    if (o->compare && o->pad_heads == 0)
        o->pad_heads = MLA_HEADS_MAX;
    snprintf(text, sizeof(text), "%u", o->pad_heads);
    if (o->pad_heads != 0 && o->pad_heads < o->heads)
        return number(err, "pad-heads", text, o->heads, MLA_HEADS_MAX, &o->pad_heads);
    uint32_t ctas = least_sms(o);
    snprintf(text, sizeof(text), "%u", o->sms);
    if (o->sms < ctas)
        return number(err, "sms", text, ctas, SMS_MAX, &o->sms);
    uint64_t rows_per_token = o->pad_heads > o->heads ? o->pad_heads : o->heads;
    uint64_t most = MLA_ROWS_PER_JOB_MAX / (rows_per_token * o->q_len);
    snprintf(text, sizeof(text), "%u", o->batch);
    if (o->batch > most)
        return number(err, "batch", text, 1, (uint32_t)most, &o->batch);
    return 0;
}

int ctl_plan_parse(FILE *err, int argc, char **argv, struct ctl_plan_options *o)
{
    bool given[OPT_HELP + 1] = {false};
    *o = (struct ctl_plan_options){.batch = 1,
                                   .sms = 132,
                                   .sms_to = 132,
                                   .sms_step = 1,
                                   .tile_rows = 256,
                                   .bandwidth_gb = H200_READ_GB,
                                   .policy = PLAN_AUTO};
    optind = 0; /* getopt starts afresh: callers may have used it before */
    opterr = 0;
    for (;;) {
        int before = optind < 1 ? 1 : optind;
        int id = getopt_long(argc, argv, "+:", long_options, NULL);
        if (id == -1)
            break;
        if (id == '?' || id == ':') {
            fprintf(err, "mlactl plan: %s: %s; see mlactl plan --help\n", argv[before],
                    id == ':' ? "needs a value" : "no such option");
            return CTL_PLAN_USAGE;
        }
        given[id] = true;
        int rc = parse_one(err, id, optarg, o);
        if (rc != 0)
            return rc;
        if (o->help)
            return 0;
    }
    if (optind < argc) {
        fprintf(err, "mlactl plan: \"%s\" is no option; see mlactl plan --help\n", argv[optind]);
        return CTL_PLAN_USAGE;
    }
    return check_together(err, given, o);
}
