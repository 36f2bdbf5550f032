#include "tests/unit/test_plan_support.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/check_main.h"

void test_shape_make(struct test_shape *shape, const char *preset, uint32_t heads, uint32_t batch, uint32_t q_len,
                     uint32_t kv_len, enum plan_policy policy)
{
    memset(shape, 0, sizeof(*shape));
    ck_assert_uint_le(batch, 1024);
    for (uint32_t i = 0; i < batch; i++)
        shape->seqs[i] = (struct plan_seq){.q_len = q_len, .kv_len = kv_len};
    shape->job = (struct plan_job){.n_seqs = batch, .mask = MLA_ABI_MASK_CAUSAL};
    shape->request = (struct plan_request){
        .policy = policy,
        .tile_rows = 256,
        .heads = heads,
        .workspace_bytes_max = UINT64_MAX,
        .jobs = &shape->job,
        .seqs = shape->seqs,
        .n_jobs = 1,
        .n_seqs = batch,
    };
    ck_assert_int_eq(plan_device_preset(preset, &shape->request.device, &shape->request.costs), 0);
    shape->request.device.max_pages_per_item = 0;
}

void test_shape_sms(struct test_shape *shape, uint32_t sms)
{
    shape->request.device.sms = sms;
    shape->request.device.resident_units = sms / shape->request.device.ctas_per_unit;
}

int test_plan_try(const struct plan_request *request, struct test_plan *out)
{
    struct plan_capacity capacity;
    memset(out, 0, sizeof(*out));
    int rc = plan_bound(request, &capacity);
    if (rc != 0)
        return rc;
    /* Each by itself, so that sanitizers see what is read or written past its end. */
    const size_t bytes[TEST_PLAN_ARRAYS] = {capacity.scratch_bytes, capacity.tiles * sizeof(struct mla_abi_tile),
                                            capacity.items * sizeof(struct mla_abi_item),
                                            capacity.reduces * sizeof(struct mla_abi_reduce)};
    for (int i = 0; i < TEST_PLAN_ARRAYS; i++) {
        out->memory[i] = malloc(bytes[i]);
        ck_assert(bytes[i] == 0 || out->memory[i] != NULL);
    }
    out->plan.capacity = capacity;
    out->plan.scratch = out->memory[0];
    out->plan.tiles = out->memory[1];
    out->plan.items = out->memory[2];
    out->plan.reduces = out->memory[3];
    return plan_build(request, &out->plan);
}

void test_plan_make(const struct plan_request *request, struct test_plan *out)
{
    char why[256];
    ck_assert_int_eq(test_plan_try(request, out), 0);
    int rc = plan_check(request, &out->plan, why, sizeof(why));
    ck_assert_msg(rc == 0, "plan_check: %s", why);
    ck_assert_uint_eq(out->plan.predicted_ns, plan_predict_ns(request, &out->plan));
}

void test_plan_free(struct test_plan *plan)
{
    for (int i = 0; i < TEST_PLAN_ARRAYS; i++)
        free(plan->memory[i]);
    memset(plan, 0, sizeof(*plan));
}

uint32_t test_random_below(struct test_random *random, uint32_t below)
{
    random->state = random->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(((random->state >> 32) * below) >> 32);
}

/* Lengths from empty to 128K, short ones as often as long ones. */
static uint32_t random_kv_len(struct test_random *random)
{
    uint32_t bits = test_random_below(random, 18);
    return test_random_below(random, 4) == 0 ? bits % 3 : test_random_below(random, 1u << bits) + (1u << bits) / 2;
}

void test_ragged_make(struct test_random *random, struct test_ragged *out)
{
    static const uint32_t q_lens[] = {0, 1, 1, 2, 3, 4, 4, 5, 8, 8, 17, 64};
    static const uint32_t tile_rows[] = {64, 128, 256, 256};
    static const uint32_t masks[] = {MLA_ABI_MASK_NONE, MLA_ABI_MASK_CAUSAL, MLA_ABI_MASK_CAUSAL, MLA_ABI_MASK_VISIBLE};
    static const uint32_t units[] = {1, 2, 4, 16, 33, 37, 66, 67, 112};
    uint32_t n_seqs = test_random_below(random, 65);
    uint32_t n_jobs = n_seqs == 0 ? test_random_below(random, 2) : 1 + test_random_below(random, 5);
    bool equal = test_random_below(random, 3) == 0;
    memset(out, 0, sizeof(*out));
    uint32_t q_len = q_lens[test_random_below(random, 12)];
    uint32_t kv_len = random_kv_len(random);
    for (uint32_t i = 0; i < n_seqs; i++) {
        out->seqs[i].q_len = equal ? q_len : q_lens[test_random_below(random, 12)];
        out->seqs[i].kv_len = equal ? kv_len : random_kv_len(random);
    }
    uint32_t next = 0;
    for (uint32_t j = 0; j < n_jobs; j++) {
        uint32_t n = j + 1 == n_jobs ? n_seqs - next : test_random_below(random, n_seqs - next + 1);
        out->jobs[j] = (struct plan_job){.first_seq = next,
                                         .n_seqs = n,
                                         .mask = masks[test_random_below(random, 4)],
                                         .batch_invariant = test_random_below(random, 4) == 0};
        next += n;
    }
    out->request = (struct plan_request){
        .policy = (enum plan_policy)(1 + test_random_below(random, 4)),
        .tile_rows = tile_rows[test_random_below(random, 4)],
        .heads = 1 + test_random_below(random, 128),
        .workspace_bytes_max = UINT64_MAX,
        .jobs = out->jobs,
        .seqs = out->seqs,
        .n_jobs = n_jobs,
        .n_seqs = n_seqs,
    };
    ck_assert_int_eq(plan_device_preset(test_random_below(random, 2) ? "h200" : "reference", &out->request.device,
                                        &out->request.costs),
                     0);
    out->request.device.resident_units = units[test_random_below(random, 9)];
    uint32_t widest =
        (out->request.tile_rows + out->request.device.rows_per_unit - 1) / out->request.device.rows_per_unit;
    if (out->request.device.resident_units < widest)
        out->request.device.resident_units = widest;
    out->request.device.min_pages_per_split = 1 + test_random_below(random, 16);
    out->request.device.max_pages_per_item = 0;
}
