/* Bytes become a request; what plan_build makes of it within the arrays of plan_bound must pass plan_check, cost what
 * plan_predict_ns says, and come out the same twice.
 *
 * Layout: 24 bytes of request (see fill_request), then sequences of 6 bytes: u16 q_len, u24 kv_len, u8 of which bit 7
 * begins a new job, bit 6 makes that job batch-invariant and bits 0-1 are its mask. Little-endian. */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <string.h>

#include "kernels/plan/plan.h"

#define SEQS_MAX  256u
#define ITEMS_MAX (1u << 12) /* larger ones are only slower: test_mlad_loop has them */
/* Laying a tile costs a step per unit that it takes, some fifty times over; real devices have at most a few a tile. */
#define STEPS_MAX (1u << 14)

struct input {
    struct plan_request request;
    struct plan_job jobs[SEQS_MAX];
    struct plan_seq seqs[SEQS_MAX];
};

static uint32_t get(const uint8_t *p, unsigned bytes)
{
    uint32_t v = 0;
    for (unsigned i = 0; i < bytes; i++)
        v |= (uint32_t)p[i] << (8 * i);
    return v;
}

static void fill_request(const uint8_t *p, struct input *in)
{
    static const uint32_t tile_rows[] = {64, 128, 256, 96};
    in->request = (struct plan_request){
        .device = {.sms = 132,
                   .ctas_per_unit = 2,
                   .rows_per_unit = get(p, 2),
                   .resident_units = get(p + 2, 2),
                   .min_pages_per_split = get(p + 4, 1)},
        .costs = {.launch_ns = 5600,
                  .fill_ns = get(p + 6, 2),
                  .page_ns = get(p + 8, 2),
                  .drain_ns = get(p + 10, 2),
                  .partial_ns = get(p + 12, 2),
                  .reduce_launch_ns = 700,
                  .reduce_bytes_per_us = get(p + 14, 3),
                  .reduce_fixed_ns = 3000},
        .policy = (enum plan_policy)(p[17] & 7),
        .tile_rows = tile_rows[p[17] >> 3 & 3],
        .heads = get(p + 18, 1),
        .splits = p[19] & 0x80 ? 0 : p[19],
        .workspace_bytes_max = p[20] & 0x80 ? UINT64_MAX : (uint64_t)get(p + 20, 4) << 8,
        .jobs = in->jobs,
        .seqs = in->seqs,
    };
}

static void fill_seqs(const uint8_t *p, size_t size, struct input *in)
{
    struct plan_request *r = &in->request;
    for (; size >= 6 && r->n_seqs < SEQS_MAX; p += 6, size -= 6) {
        if (r->n_jobs == 0 || (p[5] & 0x80) != 0)
            in->jobs[r->n_jobs++] =
                (struct plan_job){.first_seq = r->n_seqs, .mask = p[5] & 3, .batch_invariant = (p[5] & 0x40) != 0};
        in->jobs[r->n_jobs - 1].n_seqs++;
        in->seqs[r->n_seqs++] = (struct plan_seq){.q_len = get(p, 2), .kv_len = get(p + 2, 3)};
    }
}

static struct plan make_arrays(const struct plan_capacity *c)
{
    struct plan plan = {
        .tiles = calloc(c->tiles, sizeof(struct mla_abi_tile)),
        .items = calloc(c->items, sizeof(struct mla_abi_item)),
        .reduces = calloc(c->reduces, sizeof(struct mla_abi_reduce)),
        .scratch = malloc(c->scratch_bytes),
        .capacity = *c,
    };
    FUZZ_CHECK(plan.tiles != NULL && plan.items != NULL && plan.reduces != NULL && plan.scratch != NULL);
    return plan;
}

static void free_arrays(struct plan *plan)
{
    free(plan->tiles);
    free(plan->items);
    free(plan->reduces);
    free(plan->scratch);
}

static void check_built(const struct plan_request *request, const struct plan *plan, const struct plan *again)
{
    char why[256];
    if (plan_check(request, plan, why, sizeof(why)) != 0) {
        fprintf(stderr, "plan_check: %s\n", why);
        abort();
    }
    FUZZ_CHECK(plan->workspace_bytes <= request->workspace_bytes_max);
    FUZZ_CHECK(plan->predicted_ns == plan_predict_ns(request, plan));
    FUZZ_CHECK(again->n_items == plan->n_items);
    FUZZ_CHECK(memcmp(again->items, plan->items, plan->n_items * sizeof(plan->items[0])) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct input in;
    struct plan_capacity bound;
    if (size < 24)
        return 0;
    memset(&in, 0, sizeof(in));
    fill_request(data, &in);
    fill_seqs(data + 24, size - 24, &in);
    int rc = plan_bound(&in.request, &bound);
    FUZZ_CHECK(rc == 0 || rc == -EINVAL || rc == -EOVERFLOW);
    if (rc != 0 || bound.tiles > ITEMS_MAX || bound.items > ITEMS_MAX)
        return 0;
    uint32_t units = (in.request.tile_rows + in.request.device.rows_per_unit - 1) / in.request.device.rows_per_unit;
    if ((uint64_t)bound.tiles * units > STEPS_MAX)
        return 0;
    bool invariant = false;
    for (uint32_t j = 0; j < in.request.n_jobs; j++)
        invariant = invariant || in.jobs[j].batch_invariant;
    struct plan plan = make_arrays(&bound);
    struct plan again = make_arrays(&bound);
    rc = plan_build(&in.request, &plan);
    FUZZ_CHECK(plan_build(&in.request, &again) == rc);
    if (rc == 0)
        check_built(&in.request, &plan, &again);
    else
        FUZZ_CHECK(rc == -EOVERFLOW || (rc == -ENOSPC && (in.request.splits != 0 || invariant)));
    free_arrays(&plan);
    free_arrays(&again);
    return 0;
}
