/* How a context is cut, how many items there are and who else is in the batch must not matter. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

/* K15: a split boundary at 64 of 66 keys, 8 tokens: six of them do not see the second split. No NaN from its -inf. */
START_TEST(k15_split_that_some_tokens_cannot_see)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j =
        dc_add(c, &(struct dc_shape){.heads = 96, .n_seqs = 1, .seqs = SEQS({8, 66}), .ref_head_step = 5, .seed = 15});
    c->request.splits = 2;
    dc_run(c);
    ck_assert_uint_gt(c->plan.n_reduces, 0);
    dc_check(j);
    for (uint32_t t = 0; t < 8; t++)
        ck_assert(isfinite(dc_lse(j, 0, t, 95)));
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* A split that no token sees (a short device length), and a row that no split sees. */
START_TEST(splits_that_nobody_sees)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 16,
                                                    .n_seqs = 1,
                                                    .seqs = SEQS({3, 320}),
                                                    .mask = MLA_MASK_VISIBLE,
                                                    .visible_counts = (const int32_t[]){0, 320, 64},
                                                    .kv_len = DC_REGION,
                                                    .seed = 16});
    c->request.splits = 5;
    dc_run(c);
    dc_check(j);
    ck_assert(dc_lse(j, 0, 0, 3) == -INFINITY);
    j->kv_len[0] = 1;
    j->visible[1] = 0;
    j->visible[2] = 1;
    dc_run(c);
    dc_check(j);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* K21: splits forced to 1 ... 32: each within tolerance of float64, so of each other. Each tile height. */
START_TEST(k21_forced_splits)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const uint32_t splits[] = {1, 2, 3, 5, 8, 16, 32};
    struct dc *c = dc_new(&rig);
    struct dc_job *j =
        dc_add(c, &(struct dc_shape){
                      .heads = 40, .n_seqs = 2, .seqs = SEQS({4, 2100}, {1, 200}), .ref_head_step = 7, .seed = 21});
    for (uint32_t tile = 64; tile <= 256; tile *= 2) {
        for (size_t i = 0; i < 7; i++) {
            dc_replan(c);
            c->request.splits = splits[i];
            c->request.tile_rows = tile;
            dc_run(c);
            ck_assert_uint_eq(c->plan.max_splits, splits[i]);
            dc_check(j);
            j->keep_reference = true;
        }
    }
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* Every policy on a ragged batch. */
START_TEST(each_policy)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 32,
                                                    .n_seqs = 5,
                                                    .seqs = SEQS({1, 1500}, {4, 64}, {2, 0}, {3, 700}, {1, 1}),
                                                    .ref_head_step = 6,
                                                    .seed = 22});
    const enum plan_policy policies[] = {PLAN_SEED, PLAN_BALANCED, PLAN_AUTO, PLAN_UNSPLIT};
    for (size_t i = 0; i < 4; i++) {
        dc_replan(c);
        c->request.policy = policies[i];
        dc_run(c);
        dc_check(j);
        j->keep_reference = true;
    }
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* Bits of the base job of K14 among n others. */
static struct dc_bits among(struct rig *rig, uint32_t n, bool invariant)
{
    struct dc *c = dc_new(rig);
    struct dc_job *base = NULL;
    for (uint32_t i = 0; i <= n; i++) {
        struct dc_seq other[2] = {{1 + i % 5, 17 + 61 * (i % 9), 0}, {i % 3, 100 * (i % 4), 0}};
        struct dc_shape shape = {.heads = 16, .n_seqs = 2, .seqs = other, .seed = 1000 + i};
        if (i == n / 2) {
            shape.n_seqs = 2;
            shape.seqs = SEQS({2, 3000}, {1, 130});
            shape.batch_invariant = invariant;
            shape.seed = 14;
            base = dc_add(c, &shape);
        } else {
            dc_add(c, &shape);
        }
    }
    dc_run(c);
    dc_check_all(c);
    struct dc_bits bits = dc_bits(base);
    dc_free(c);
    return bits;
}

/* K14: alone and among 1, 7, 63 others: bit-equal when batch-invariant; within tolerance when not. Long enough that the
 * policy splits it when it is alone. */
START_TEST(k14_batch_mates)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const uint32_t others[] = {1, 7, 63};
    struct dc_bits alone = among(&rig, 0, true);
    for (size_t i = 0; i < 3; i++) {
        struct dc_bits bits = among(&rig, others[i], true);
        dc_assert_same(&alone, &bits, NULL, "batch-invariant job among others");
        dc_bits_free(&bits);
    }
    struct dc_bits varied = among(&rig, 7, false); /* checked inside */
    dc_bits_free(&varied);
    dc_bits_free(&alone);
    rig_close(&rig);
}
END_TEST

/* K14 on a device whose facts make the policy split a lone job and not a crowd: the plan must hold, not only the bits.
 */
START_TEST(k14_invariant_job_keeps_its_splits)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct plan_device device;
    struct plan_costs costs;
    ck_assert_int_eq(plan_device_preset("h200", &device, &costs), 0);
    uint32_t splits[2];
    for (int crowd = 0; crowd < 2; crowd++) {
        struct dc *c = dc_new(&rig);
        c->request.device = device;
        c->request.costs = costs;
        dc_add(c, &(struct dc_shape){.heads = 16,
                                     .n_seqs = 1,
                                     .seqs = SEQS({1, 4096}),
                                     .pages = DC_ALIAS,
                                     .num_pages = 8,
                                     .batch_invariant = true,
                                     .seed = 14});
        struct dc_seq many[100];
        for (int i = 0; i < 100; i++)
            many[i] = (struct dc_seq){1, 4096, 0};
        if (crowd)
            dc_add(c, &(struct dc_shape){
                          .heads = 16, .n_seqs = 100, .seqs = many, .pages = DC_ALIAS, .num_pages = 8, .seed = 15});
        dc_plan(c);
        splits[crowd] = c->plan.tiles[0].n_items;
        dc_free(c);
    }
    ck_assert_uint_gt(splits[0], 1);
    ck_assert_uint_eq(splits[0], splits[1]);
    rig_close(&rig);
}
END_TEST

/* K22: more than twice as many items as units, launched again and again: no hang, all bit-equal. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define K22_LAUNCHES 50
#else
#define K22_LAUNCHES 200
#endif

START_TEST(k22_many_launches_of_one_plan)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    /* Six that make 16 items, as often as the device needs. */
    const struct dc_seq six[6] = {{1, 200, 0}, {1, 130, 0}, {2, 300, 0}, {1, 65, 0}, {1, 0, 0}, {3, 90, 0}};
    uint32_t n_seqs = 6 * (2 * rig.facts->device.resident_units / 16 + 1);
    struct dc_seq *seqs = calloc(n_seqs, sizeof(*seqs));
    ck_assert_ptr_nonnull(seqs);
    for (uint32_t s = 0; s < n_seqs; s++)
        seqs[s] = six[s % 6];
    struct dc *c = dc_new(&rig);
    struct dc_job *j =
        dc_add(c, &(struct dc_shape){.heads = 16, .n_seqs = n_seqs, .seqs = seqs, .pages = DC_SHUFFLED, .seed = 22});
    free(seqs);
    c->request.splits = 4;
    c->request.tile_rows = 64;
    dc_run(c);
    ck_assert_uint_gt(c->plan.n_items, 2 * rig.facts->device.resident_units);
    dc_check(j);
    struct dc_bits first = dc_bits(j);
    for (int i = 0; i < K22_LAUNCHES; i++) {
        dc_run(c);
        struct dc_bits bits = dc_bits(j);
        dc_assert_same(&first, &bits, NULL, "one plan, launched again");
        dc_bits_free(&bits);
    }
    dc_bits_free(&first);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* K10: 4,095, 4,096, 4,097 sequences of one key in one job; and 65,536: right. */
static void many_sequences(struct rig *rig, uint32_t n, uint32_t heads)
{
    struct dc_seq *seqs = calloc(n, sizeof(*seqs));
    ck_assert_ptr_nonnull(seqs);
    for (uint32_t s = 0; s < n; s++)
        seqs[s] = (struct dc_seq){1, 1, 0};
    struct dc *c = dc_new(rig);
    c->request.tile_rows = 64;
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = heads,
                                                    .n_seqs = n,
                                                    .seqs = seqs,
                                                    .out_type = MLA_DTYPE_BF16,
                                                    .pages = DC_ALIAS,
                                                    .num_pages = 64,
                                                    .user_status = true,
                                                    .seed = n});
    for (uint32_t s = 0; s < n; s++) /* each its own page of 64 */
        j->table[j->table_first[s]] = (int32_t)(s % 64);
    for (uint32_t s = 0; s < 64; s++)
        memset(dc_key(j, s, 0), fp8_encode(0.25 + s), MLA_ABI_QK_DIM);
    dc_run(c);
    ck_assert_uint_eq(c->plan.n_tiles, n);
    dc_check(j);
    dc_free(c);
    free(seqs);
}

START_TEST(k10_thousands_of_sequences)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (uint32_t n = 4095; n <= 4097; n++)
        many_sequences(&rig, n, 2);
    rig_close(&rig);
}
END_TEST

START_TEST(k10_65536_sequences)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    many_sequences(&rig, 65536, 1);
    rig_close(&rig);
}
END_TEST

/* K24: workspace of a plan for B 512, H 32, Q4: only split tiles take any, and with one long context among 511 short
 * ones it follows their number and the splits of the one, not the product. */
START_TEST(k24_workspace_of_a_large_batch)
{
    struct plan_seq seqs[512];
    struct plan_job job = {.n_seqs = 512, .mask = MLA_ABI_MASK_CAUSAL};
    struct plan_request request = {
        .tile_rows = 256, .heads = 32, .jobs = &job, .seqs = seqs, .n_jobs = 1, .n_seqs = 512};
    ck_assert_int_eq(plan_device_preset("h200", &request.device, &request.costs), 0);
    request.workspace_bytes_max = UINT64_MAX;
    for (uint32_t policy = PLAN_SEED; policy <= PLAN_AUTO; policy++) {
        for (uint32_t ragged = 0; ragged < 2; ragged++) {
            struct plan plan = {0};
            for (uint32_t s = 0; s < 512; s++)
                seqs[s] = (struct plan_seq){.q_len = 4, .kv_len = ragged ? 256 : 65536};
            seqs[511].kv_len = 1u << 20;
            request.policy = (enum plan_policy)policy;
            ck_assert_int_eq(plan_bound(&request, &plan.capacity), 0);
            plan.tiles = calloc(plan.capacity.tiles, sizeof(*plan.tiles));
            plan.items = calloc(plan.capacity.items, sizeof(*plan.items));
            plan.reduces = calloc(plan.capacity.reduces + 1u, sizeof(*plan.reduces));
            plan.scratch = malloc(plan.capacity.scratch_bytes + 8);
            ck_assert(plan.tiles && plan.items && plan.reduces && plan.scratch);
            ck_assert_int_eq(plan_build(&request, &plan), 0);
            uint64_t split_items = plan.n_items - (plan.n_tiles - plan.n_reduces);
            ck_assert_uint_eq(plan.n_tiles, 512);
            ck_assert_uint_eq(plan.partial_rows, split_items * 128);
            ck_assert_uint_eq(plan.workspace_bytes, (uint64_t)plan.partial_rows * MLA_ABI_PARTIAL_ROW_BYTES);
            ck_assert_uint_le(plan.n_items, plan.n_tiles + 2 * request.device.resident_units);
            free(plan.tiles);
            free(plan.items);
            free(plan.reduces);
            free(plan.scratch);
        }
    }
}
END_TEST

/* A workspace too small for the policy's choice: less is cut, the result stays right. */
START_TEST(small_workspace)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(
        c, &(struct dc_shape){.heads = 32, .n_seqs = 1, .seqs = SEQS({1, 3000}), .ref_head_step = 5, .seed = 24});
    const uint64_t bytes[] = {0, 64 * MLA_ABI_PARTIAL_ROW_BYTES, 1u << 20};
    for (size_t i = 0; i < 3; i++) {
        dc_replan(c);
        c->request.workspace_bytes_max = bytes[i];
        dc_run(c);
        ck_assert_uint_le(c->plan.workspace_bytes, bytes[i]);
        dc_check(j);
        j->keep_reference = true;
    }
    dc_free(c);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(backend_splits)
{
    TCase *tc = mla_tcase_timeout(suite, "splits and batches", 60);
    rig_add(tc, k15_split_that_some_tokens_cannot_see);
    rig_add(tc, splits_that_nobody_sees);
    rig_add(tc, k21_forced_splits);
    rig_add(tc, each_policy);
    rig_add(tc, k14_batch_mates);
    rig_add(tc, k14_invariant_job_keeps_its_splits);
    rig_add(tc, k22_many_launches_of_one_plan);
    rig_add(tc, k10_thousands_of_sequences);
    rig_add(tc, k10_65536_sequences);
    tcase_add_test(tc, k24_workspace_of_a_large_batch);
    rig_add(tc, small_workspace);
}
