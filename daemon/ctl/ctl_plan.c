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

static int variant_make(FILE *err, const struct ctl_plan_options *o, const char *name, uint32_t tile_rows,
                        uint32_t unit_ctas, bool padded, struct variant *v)
{
    struct plan_request *r = &v->request;
    v->name = name;
    (void)plan_device_preset(unit_ctas == 4 ? "reference" : "h200", &r->device, &r->costs);
    r->device.sms = o->sms;
    r->device.resident_units = o->sms / unit_ctas;
    r->policy = o->policy;
    r->tile_rows = tile_rows;
    r->heads = padded ? o->pad_heads : o->heads;
    r->splits = o->splits;
    r->workspace_bytes_max = UINT64_MAX;
    v->useful_rows = (uint64_t)o->batch * o->q_len * o->heads;
    if (!fill_seqs(o, padded, v))
        goto no_memory;
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
    snprintf(unit, sizeof(unit), "%ux%u", v->request.device.ctas_per_unit, v->request.device.rows_per_unit);
    json_object(j, NULL);
    json_string(j, "variant", v->name);
    json_string(j, "unit", unit);
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
    json_double(j, "predicted_us", (double)v->plan.predicted_ns / 1000.0);
    json_string(j, "predicted_by", "cost model, not measured");
    if (o->dump) {
        char *text = dump_of(v);
        json_string(j, "dump", text != NULL ? text : "");
        free(text);
    }
    json_end(j);
}

static void print_text(FILE *out, const struct ctl_plan_options *o, const struct variant *v, size_t n)
{
    fprintf(out, "%u heads, q_len %u, batch %u, kv_len %u, causal, on %u SMs; policy %s", o->heads, o->q_len, o->batch,
            o->kv_len, o->sms, ctl_plan_policy_name(o->policy));
    if (o->splits != 0)
        fprintf(out, ", %u splits forced", o->splits);
    fprintf(out, "\n\n%-12s %-6s %5s %8s %8s %11s %9s %8s %6s %6s %13s %12s\n", "plan", "unit", "units", "cut by",
            "tiles", "useful_rows", "row_slots", "items", "splits", "waves", "workspace_MiB", "predicted_us");
    for (size_t i = 0; i < n; i++) {
        const struct plan *p = &v[i].plan;
        const struct plan_device *d = &v[i].request.device;
        char unit[32];
        snprintf(unit, sizeof(unit), "%ux%u", d->ctas_per_unit, d->rows_per_unit);
        fprintf(out, "%-12s %-6s %5u %8s %8u %11" PRIu64 " %9" PRIu64 " %8u %6u %6u %13.1f %12.1f\n", v[i].name, unit,
                d->resident_units, o->splits != 0 ? "forced" : ctl_plan_policy_name(p->chosen), p->n_tiles,
                v[i].useful_rows, p->row_slots, p->n_items, p->max_splits, p->waves,
                (double)p->workspace_bytes / (1024 * 1024), (double)p->predicted_ns / 1000.0);
    }
    fprintf(out, "\npredicted_us is what the cost model says (a model of the H200's kernels, scaled by SMs), not a "
                 "measurement.\n");
    for (size_t i = 0; i < n && o->dump; i++) {
        char *text = dump_of(&v[i]);
        fprintf(out, "\n%s\n%s", v[i].name, text != NULL ? text : "");
        free(text);
    }
}

static const char *tile_name(uint32_t tile_rows)
{
    return tile_rows == 256 ? "native M256" : tile_rows == 128 ? "native M128" : "native M64";
}

int ctl_plan_to(FILE *out, FILE *err, int argc, char **argv)
{
    struct ctl_plan_options o;
    struct variant v[VARIANTS_MAX] = {0};
    size_t n = 0;
    int rc = ctl_plan_parse(err, argc, argv, &o);
    if (rc != 0)
        return rc;
    if (o.help) {
        ctl_plan_usage(out);
        return CTL_PLAN_OK;
    }
    if (o.compare) {
        /* 128-row tiles would leave half of each 4x256 unit idle: they run in units of half the size. */
        rc = variant_make(err, &o, tile_name(256), 256, o.unit_ctas, false, &v[n++]);
        if (rc == 0)
            rc = variant_make(err, &o, tile_name(128), 128, 2, false, &v[n++]);
        if (rc == 0)
            rc = variant_make(err, &o, "padded M256", 256, o.unit_ctas, true, &v[n++]);
    } else {
        bool padded = o.pad_heads != 0;
        rc = variant_make(err, &o, padded ? "padded" : tile_name(o.tile_rows), o.tile_rows, o.unit_ctas, padded,
                          &v[n++]);
    }
    if (rc == 0 && o.json) {
        struct json j;
        json_init(&j, out);
        if (o.compare)
            json_array(&j, NULL);
        for (size_t i = 0; i < n; i++)
            print_json(&j, &o, &v[i]);
        if (o.compare)
            json_end_array(&j);
        fputc('\n', out);
    } else if (rc == 0) {
        print_text(out, &o, v, n);
    }
    for (size_t i = 0; i < n; i++)
        variant_free(&v[i]);
    return rc;
}

int ctl_plan(int argc, char **argv)
{
    int rc = ctl_plan_to(stdout, stderr, argc, argv);
    return rc == CTL_PLAN_OK && fflush(stdout) != 0 ? CTL_PLAN_FAILED : rc;
}
