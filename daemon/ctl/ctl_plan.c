#include "daemon/ctl/ctl_plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/util/json.h"
#include "proto/limits.h"

#define ITEMS_MAX    (1u << 24)
#define PADDED_Q_LEN 4u
#define VARIANTS_MAX 3u

/* One way to run the shape, and its plan. */
struct variant {
    const char *name;
    const char *kernels; /* what it is for: the kind, or "none" */
    struct plan_request request;
    struct plan_job job;
    struct plan plan;
    uint64_t useful_rows; /* of the real heads */
    struct plan_seq *seqs;
};

static void variant_free(struct variant *v)
{
    free(v->seqs);
    free(v->plan.tiles);
    free(v->plan.items);
    free(v->plan.reduces);
    free(v->plan.scratch);
}

/* The batch's sequences; padded: each as requests of up to 4 tokens, of which the earlier end their context earlier. */
static bool fill_seqs(const struct ctl_plan_options *o, bool padded, struct variant *v)
{
    uint32_t per = padded ? PADDED_Q_LEN : o->q_len;
    uint32_t requests = (o->q_len + per - 1) / per;
    uint32_t n = 0;
    v->seqs = calloc((size_t)o->batch * requests, sizeof(*v->seqs));
    if (v->seqs == NULL)
        return false;
    for (uint32_t b = 0; b < o->batch; b++) {
        for (uint32_t first = 0; first < o->q_len; first += per) {
            uint32_t q_len = o->q_len - first < per ? o->q_len - first : per;
            uint32_t later = o->q_len - first - q_len;
            v->seqs[n++] = (struct plan_seq){.q_len = q_len, .kv_len = o->kv_len > later ? o->kv_len - later : 0};
        }
    }
    v->request.seqs = v->seqs;
    v->request.n_seqs = n;
    v->job = (struct plan_job){.n_seqs = n, .mask = MLA_ABI_MASK_CAUSAL};
    v->request.jobs = &v->job;
    v->request.n_jobs = 1;
    return true;
}

static bool make_arrays(struct plan *plan)
{
    const struct plan_capacity *c = &plan->capacity;
    plan->tiles = calloc(c->tiles + (size_t)1, sizeof(*plan->tiles));
    plan->items = calloc(c->items + (size_t)1, sizeof(*plan->items));
    plan->reduces = calloc(c->reduces + (size_t)1, sizeof(*plan->reduces));
    plan->scratch = malloc(c->scratch_bytes + 1);
    return plan->tiles != NULL && plan->items != NULL && plan->reduces != NULL && plan->scratch != NULL;
}

/* What the plan is for: of the kinds that there may be, the one that libmla-kernels would take. */
static void take_kind(const struct ctl_plan_options *o, uint32_t sms, struct variant *v)
{
    struct plan_kind kinds[PLAN_KINDS_MAX];
    size_t n = ctl_plan_kinds(o, sms, v->request.tile_rows, kinds);
    const struct plan_kind *kind = &kinds[plan_choose(kinds, n, &v->request)];
    v->kernels = kind->name;
    v->request.device = kind->device;
    v->request.costs = kind->costs;
}

static int variant_make(FILE *err, const struct ctl_plan_options *o, const char *name, uint32_t tile_rows, bool padded,
                        uint32_t sms, struct variant *v)
{
    struct plan_request *r = &v->request;
    v->name = name;
    r->policy = o->policy;
    r->tile_rows = tile_rows;
    r->heads = padded ? o->pad_heads : o->heads;
    r->splits = o->splits;
    r->workspace_bytes_max = UINT64_MAX;
    v->useful_rows = (uint64_t)o->batch * o->q_len * o->heads;
    if (!fill_seqs(o, padded, v))
        goto no_memory;
    take_kind(o, sms, v);
    int rc = plan_bound(r, &v->plan.capacity);
    if (rc == 0 && v->plan.capacity.items > ITEMS_MAX && o->splits != 0) {
        fprintf(err, "mlactl plan: --splits %u makes more than %u items of this shape\n", o->splits, ITEMS_MAX);
        return CTL_PLAN_USAGE;
    }
    if (rc == 0 && !make_arrays(&v->plan))
        goto no_memory;
    if (rc == 0)
        rc = plan_build(r, &v->plan);
    if (rc != 0) {
        fprintf(err, "mlactl plan: %s: no plan: %s\n", name, strerror(-rc));
        return CTL_PLAN_FAILED;
    }
    return 0;
no_memory:
    fprintf(err, "mlactl plan: out of memory\n");
    return CTL_PLAN_FAILED;
}

static char *dump_of(const struct variant *v)
{
    size_t length = plan_dump(&v->request, &v->plan, NULL, 0);
    char *text = malloc(length + 1);
    if (text != NULL)
        plan_dump(&v->request, &v->plan, text, length + 1);
    return text;
}

static void print_json(struct json *j, const struct ctl_plan_options *o, const struct variant *v)
{
    char unit[32];
    struct ctl_plan_model model;
    ctl_plan_model(o, &v->request, &v->plan, &model);
    snprintf(unit, sizeof(unit), "%ux%u", v->request.device.ctas_per_unit, v->request.device.rows_per_unit);
    json_object(j, NULL);
    json_string(j, "variant", v->name);
    json_u64(j, "sms", v->request.device.sms);
    json_string(j, "unit", unit);
    json_string(j, "kernels", v->kernels);
    json_string(j, "kernels_by", o->unit_ctas != 0 ? "forced" : "chosen as libmla-kernels does");
    json_string(j, "policy", ctl_plan_policy_name(o->policy));
    json_string(j, "chosen", o->splits != 0 ? "forced" : ctl_plan_policy_name(v->plan.chosen));
    json_u64(j, "tile_rows", v->request.tile_rows);
    json_u64(j, "tiles", v->plan.n_tiles);
    json_u64(j, "useful_rows", v->useful_rows);
    json_u64(j, "row_slots", v->plan.row_slots);
    json_u64(j, "items", v->plan.n_items);
    json_u64(j, "item_units", v->plan.item_units);
    json_u64(j, "units", v->request.device.resident_units);
    json_u64(j, "splits", v->plan.max_splits);
    json_u64(j, "waves", v->plan.waves);
    json_u64(j, "reduces", v->plan.n_reduces);
    json_u64(j, "workspace_bytes", v->plan.workspace_bytes);
    json_double(j, "row_occupancy", model.rows);
    json_double(j, "unit_occupancy", model.busy);
    json_double(j, "predicted_us", (double)v->plan.predicted_ns / 1000.0);
    json_string(j, "predicted_by", "cost model, not measured");
    json_double(j, "flop", model.flop);
    json_double(j, "bytes", model.bytes);
    json_double(j, "roofline_flop_us", model.flop_us);
    json_double(j, "roofline_bytes_us", model.bytes_us);
    json_double(j, "roofline_us", model.roofline_us);
    json_string(j, "roofline_by", "model: SMs as fast as the H200's, not measured");
    if (o->dump) {
        char *text = dump_of(v);
        json_string(j, "dump", text != NULL ? text : "");
        free(text);
    }
    json_end(j);
}

static void print_title(FILE *out, const struct ctl_plan_options *o)
{
    fprintf(out, "%u heads, q_len %u, batch %u, kv_len %u, causal, on %u", o->heads, o->q_len, o->batch, o->kv_len,
            o->sms);
    if (o->sms_to != o->sms)
        fprintf(out, " to %u", o->sms_to);
    fprintf(out, " SMs; policy %s", ctl_plan_policy_name(o->policy));
    if (o->splits != 0)
        fprintf(out, ", %u splits forced", o->splits);
    fprintf(out, "\n\n%-12s %4s %-8s %-6s %5s %8s %8s %11s %9s %6s %8s %6s %6s %6s %13s %12s %11s\n", "plan", "SMs",
            "kernels", "unit", "units", "cut by", "tiles", "useful_rows", "row_slots", "rows_%", "items", "splits",
            "waves", "busy_%", "workspace_MiB", "predicted_us", "roofline_us");
}

static void print_rows(FILE *out, const struct ctl_plan_options *o, const struct variant *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct plan *p = &v[i].plan;
        const struct plan_device *d = &v[i].request.device;
        struct ctl_plan_model model;
        char unit[32];
        ctl_plan_model(o, &v[i].request, p, &model);
        snprintf(unit, sizeof(unit), "%ux%u", d->ctas_per_unit, d->rows_per_unit);
        fprintf(out,
                "%-12s %4u %-8s %-6s %5u %8s %8u %11" PRIu64 " %9" PRIu64
                " %6.1f %8u %6u %6u %6.1f %13.1f %12.1f %11.1f\n",
                v[i].name, d->sms, v[i].kernels, unit, d->resident_units,
                o->splits != 0 ? "forced" : ctl_plan_policy_name(p->chosen), p->n_tiles, v[i].useful_rows, p->row_slots,
                100 * model.rows, p->n_items, p->max_splits, p->waves, 100 * model.busy,
                (double)p->workspace_bytes / (1024 * 1024), (double)p->predicted_ns / 1000.0, model.roofline_us);
    }
}

static void print_dumps(FILE *out, const struct variant *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *text = dump_of(&v[i]);
        fprintf(out, "\n%s\n%s", v[i].name, text != NULL ? text : "");
        free(text);
    }
}

static void print_foot(FILE *out, const struct ctl_plan_options *o)
{
    fprintf(out,
            "\nA model, not a measurement: predicted_us is the cost model's, whose constants are the H200's kernels';\n"
            "kernels %s.\n"
            "roofline_us is FLOP at the rate of SMs that each do a page as fast as the H200's, or bytes at %u GB/s,\n"
            "whichever takes longer. busy_%% is the share of the units' time in which they work on items.\n",
            o->unit_ctas != 0 ? "are those that --unit names" : "are chosen as libmla-kernels chooses for the shape",
            o->bandwidth_gb);
}

static const char *tile_name(uint32_t tile_rows)
{
    return tile_rows == 256 ? "native M256" : tile_rows == 128 ? "native M128" : "native M64";
}

/* The plans of one part; v has room for VARIANTS_MAX, *n is set whatever comes of it. */
static int make_all(FILE *err, const struct ctl_plan_options *o, uint32_t sms, struct variant *v, size_t *n)
{
    *n = 1;
    if (!o->compare) {
        bool padded = o->pad_heads != 0;
        return variant_make(err, o, padded ? "padded" : tile_name(o->tile_rows), o->tile_rows, padded, sms, v);
    }
    /* 128-row tiles would leave half of each 4x256 unit idle: they run in units of half the size. */
    struct ctl_plan_options halved = *o;
    if (o->unit_ctas == 4) {
        halved.unit_ctas = 2;
        halved.unit_rows = 128;
    }
    int rc = variant_make(err, o, tile_name(256), 256, false, sms, &v[0]);
    if (rc == 0)
        rc = variant_make(err, &halved, tile_name(128), 128, false, sms, &v[(*n)++]);
    if (rc == 0)
        rc = variant_make(err, o, "padded M256", 256, true, sms, &v[(*n)++]);
    return rc;
}

static int print_all(FILE *out, FILE *err, const struct ctl_plan_options *o)
{
    struct json j;
    bool many = o->compare || o->sms_to != o->sms;
    json_init(&j, out);
    for (uint32_t sms = o->sms; sms <= o->sms_to; sms += o->sms_step) {
        struct variant v[VARIANTS_MAX] = {0};
        size_t n;
        int rc = make_all(err, o, sms, v, &n);
        if (rc == 0 && sms == o->sms && !o->json)
            print_title(out, o);
        if (rc == 0 && sms == o->sms && o->json && many)
            json_array(&j, NULL);
        for (size_t i = 0; rc == 0 && o->json && i < n; i++)
            print_json(&j, o, &v[i]);
        if (rc == 0 && !o->json)
            print_rows(out, o, v, n);
        if (rc == 0 && !o->json && o->dump)
            print_dumps(out, v, n);
        for (size_t i = 0; i < n; i++)
            variant_free(&v[i]);
        if (rc != 0)
            return rc;
    }
    if (o->json && many)
        json_end_array(&j);
    if (o->json)
        fputc('\n', out);
    else
        print_foot(out, o);
    return 0;
}

int ctl_plan_to(FILE *out, FILE *err, int argc, char **argv)
{
    struct ctl_plan_options o;
    int rc = ctl_plan_parse(err, argc, argv, &o);
    if (rc != 0)
        return rc;
    if (o.help) {
        ctl_plan_usage(out);
        return CTL_PLAN_OK;
    }
    return print_all(out, err, &o);
}

int ctl_plan(int argc, char **argv)
{
    int rc = ctl_plan_to(stdout, stderr, argc, argv);
    return rc == CTL_PLAN_OK && fflush(stdout) != 0 ? CTL_PLAN_FAILED : rc;
}
