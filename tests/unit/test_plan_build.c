/* Requests that make no sense, limits, batch invariance, workspace. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/unit/test_plan_support.h"

static int build_result(const struct plan_request *request)
{
    struct test_plan built;
    int rc = test_plan_try(request, &built);
    test_plan_free(&built);
    return rc;
}

START_TEST(refuses_nonsense)
{
    struct test_shape good;
    test_shape_make(&good, "h200", 96, 4, 8, 1000, PLAN_AUTO);
    ck_assert_int_eq(build_result(&good.request), 0);
#define REFUSES(change, result)                                                                                        \
    do {                                                                                                               \
        struct plan_request r = good.request;                                                                          \
        change;                                                                                                        \
        ck_assert_msg(build_result(&r) == (result), "%s: %d", #change, build_result(&r));                              \
    } while (0)
    REFUSES(r.heads = 0, -EINVAL);
    REFUSES(r.heads = 129, -EINVAL);
    REFUSES(r.tile_rows = 0, -EINVAL);
    REFUSES(r.tile_rows = 96, -EINVAL);
    REFUSES(r.policy = (enum plan_policy)0, -EINVAL);
    REFUSES(r.policy = (enum plan_policy)5, -EINVAL);
    REFUSES(r.device.resident_units = 0, -EINVAL);
    REFUSES(r.device.resident_units = 1, -EINVAL); /* a full tile takes two */
    REFUSES(r.device.resident_units = 65537, -EINVAL);
    REFUSES(r.device.rows_per_unit = 0, -EINVAL);
    REFUSES(r.device.min_pages_per_split = 0, -EINVAL);
    REFUSES(r.costs.page_ns = 0, -EINVAL);
    REFUSES(r.costs.reduce_bytes_per_us = 0, -EINVAL);
    REFUSES(r.n_seqs = 3, -EINVAL);
    REFUSES(r.n_jobs = 0, -EINVAL);
    struct plan_job jobs[2] = {{.n_seqs = 2, .mask = MLA_ABI_MASK_NONE},
                               {.first_seq = 2, .n_seqs = 2, .mask = MLA_ABI_MASK_CAUSAL}};
    REFUSES((r.jobs = jobs, r.n_jobs = 2), 0);
    jobs[1].first_seq = 1;
    REFUSES((r.jobs = jobs, r.n_jobs = 2), -EINVAL);
    jobs[1].first_seq = 2;
    jobs[1].mask = 0;
    REFUSES((r.jobs = jobs, r.n_jobs = 2), -EINVAL);
    jobs[1].mask = 4;
    REFUSES((r.jobs = jobs, r.n_jobs = 2), -EINVAL);
#undef REFUSES
    good.seqs[0].q_len = UINT32_MAX;
    ck_assert_int_eq(build_result(&good.request), -EOVERFLOW);
    good.seqs[0] = (struct plan_seq){.q_len = 8, .kv_len = UINT32_MAX};
    good.request.costs.page_ns = UINT32_MAX;
    good.request.n_jobs = good.request.n_seqs = 1;
    good.job.n_seqs = 1;
    ck_assert_int_eq(build_result(&good.request), 0);
    good.seqs[0].q_len = 30000000; /* 11,250,000 tiles of 2^26 pages of 2^32 ns */
    ck_assert_int_eq(build_result(&good.request), -EOVERFLOW);
}
END_TEST

START_TEST(nothing_to_do)
{
    struct test_shape shape;
    struct test_plan built;
    test_shape_make(&shape, "h200", 96, 4, 0, 1000, PLAN_AUTO);
    test_plan_make(&shape.request, &built);
    ck_assert_uint_eq(built.plan.n_tiles, 0);
    ck_assert_uint_eq(built.plan.n_items, 0);
    ck_assert_uint_eq(built.plan.waves, 0);
    ck_assert_uint_eq(built.plan.predicted_ns, 0);
    test_plan_free(&built);
    struct plan_request none = shape.request;
    none.jobs = NULL;
    none.seqs = NULL;
    none.n_jobs = none.n_seqs = 0;
    test_plan_make(&none, &built);
    ck_assert_uint_eq(built.plan.n_tiles, 0);
    test_plan_free(&built);
}
END_TEST

START_TEST(small_arrays_are_no_space)
{
    struct test_shape shape;
    struct test_plan built;
    test_shape_make(&shape, "h200", 96, 4, 8, 65536, PLAN_BALANCED);
    test_plan_make(&shape.request, &built);
    const struct plan_capacity had = built.plan.capacity;
    const uint32_t n_items = built.plan.n_items;
    const uint32_t n_reduces = built.plan.n_reduces;
    ck_assert_uint_gt(n_reduces, 0);
    built.plan.capacity.tiles = 11;
    ck_assert_int_eq(plan_build(&shape.request, &built.plan), -ENOSPC);
    built.plan.capacity = had;
    built.plan.capacity.items = n_items - 1;
    ck_assert_int_eq(plan_build(&shape.request, &built.plan), -ENOSPC);
    built.plan.capacity = had;
    built.plan.capacity.reduces = n_reduces - 1;
    ck_assert_int_eq(plan_build(&shape.request, &built.plan), -ENOSPC);
    built.plan.capacity = had;
    built.plan.capacity.scratch_bytes--;
    ck_assert_int_eq(plan_build(&shape.request, &built.plan), -ENOSPC);
    built.plan.capacity = had;
    ck_assert_int_eq(plan_build(&shape.request, &built.plan), 0);
    test_plan_free(&built);
}
END_TEST

/* Cuts of a job's tiles: page_end of each item of each tile, as text. */
static size_t cuts_of(const struct plan *plan, uint32_t first_seq, uint32_t n_seqs, uint32_t *cuts, size_t max)
{
    size_t n = 0;
    for (uint32_t t = 0; t < plan->n_tiles; t++) {
        const struct mla_abi_tile *tile = &plan->tiles[t];
        if (tile->seq < first_seq || tile->seq >= first_seq + n_seqs)
            continue;
        for (uint32_t k = 0; k < tile->n_items; k++) {
            ck_assert_uint_lt(n, max);
            cuts[n++] = plan->items[tile->first_item + k].page_end;
        }
    }
    return n;
}

START_TEST(invariant_jobs_do_not_see_their_mates)
{
    enum { CUTS = 8192 };
    static uint32_t alone[CUTS];
    static uint32_t among[CUTS];
    struct test_random random = {.state = 77};
    int split = 0;
    for (int round = 0; round < 400; round++) {
        struct test_ragged ragged;
        struct test_plan built;
        test_ragged_make(&random, &ragged);
        if (ragged.request.n_jobs == 0)
            continue;
        uint32_t j = test_random_below(&random, ragged.request.n_jobs);
        ragged.jobs[j].batch_invariant = true;
        uint32_t first = ragged.jobs[j].first_seq;
        uint32_t n = ragged.jobs[j].n_seqs;
        test_plan_make(&ragged.request, &built);
        size_t n_among = cuts_of(&built.plan, first, n, among, CUTS);
        test_plan_free(&built);
        /* Alone, under another policy. */
        struct plan_job job = ragged.jobs[j];
        struct plan_request request = ragged.request;
        job.first_seq = 0;
        request.policy = (enum plan_policy)(1 + test_random_below(&random, 4));
        request.jobs = &job;
        request.n_jobs = 1;
        request.seqs = &ragged.seqs[first];
        request.n_seqs = n;
        test_plan_make(&request, &built);
        split += built.plan.n_reduces > 0;
        size_t n_alone = cuts_of(&built.plan, 0, n, alone, CUTS);
        test_plan_free(&built);
        ck_assert_uint_eq(n_among, n_alone);
        ck_assert_mem_eq(among, alone, n_alone * sizeof(alone[0]));
        /* The choice is that of AUTO for the job alone. */
        job.batch_invariant = false;
        request.policy = PLAN_AUTO;
        test_plan_make(&request, &built);
        size_t n_auto = cuts_of(&built.plan, 0, n, among, CUTS);
        test_plan_free(&built);
        ck_assert_uint_eq(n_auto, n_alone);
        ck_assert_mem_eq(among, alone, n_alone * sizeof(alone[0]));
    }
    ck_assert_int_gt(split, 100);
}
END_TEST

START_TEST(workspace_is_kept)
{
    struct test_random random = {.state = 5};
    int less = 0;
    for (int round = 0; round < 600; round++) {
        struct test_ragged ragged;
        struct test_plan built;
        test_ragged_make(&random, &ragged);
        for (uint32_t j = 0; j < ragged.request.n_jobs; j++)
            ragged.jobs[j].batch_invariant = false;
        test_plan_make(&ragged.request, &built);
        uint64_t wanted = built.plan.workspace_bytes;
        test_plan_free(&built);
        if (wanted == 0)
            continue;
        /* test_plan_make has plan_check compare the workspace with the limit. */
        for (uint32_t part = 0; part < 4; part++) {
            ragged.request.workspace_bytes_max = (wanted - 1) * part / 3;
            test_plan_make(&ragged.request, &built);
            less += built.plan.workspace_bytes > 0;
            if (part == 0)
                ck_assert_uint_eq(built.plan.n_reduces, 0);
            test_plan_free(&built);
        }
        ragged.request.workspace_bytes_max = UINT64_MAX;
    }
    ck_assert_int_gt(less, 100);
}
END_TEST

START_TEST(workspace_cuts_less_but_well)
{
    /* B1 Q8 on 33 units wants 33 items, 8448 partial rows. Room for 12 of 256 rows: 4 items per tile, 256 pages each.
     */
    struct test_shape shape;
    struct test_plan built;
    for (int policy = PLAN_SEED; policy <= PLAN_AUTO; policy++) {
        test_shape_make(&shape, "reference", 96, 1, 8, 65536, (enum plan_policy)policy);
        shape.request.workspace_bytes_max = 12 * 256 * MLA_ABI_PARTIAL_ROW_BYTES;
        test_plan_make(&shape.request, &built);
        ck_assert_uint_eq(built.plan.n_items, 12);
        const struct plan_costs *c = &shape.request.costs;
        uint64_t item_ns = (uint64_t)c->fill_ns + c->drain_ns + c->partial_ns + (uint64_t)256 * c->page_ns;
        uint64_t reduce_ns = (uint64_t)c->reduce_launch_ns + c->reduce_fixed_ns +
                             (uint64_t)12 * 256 * MLA_ABI_PARTIAL_ROW_BYTES * 1000 / c->reduce_bytes_per_us;
        ck_assert_uint_ge(built.plan.predicted_ns, c->launch_ns + item_ns + reduce_ns);
        ck_assert_uint_le(built.plan.predicted_ns, (c->launch_ns + item_ns + reduce_ns) * 102 / 100);
        test_plan_free(&built);
    }
}
END_TEST

START_TEST(forced_splits_and_invariant_jobs_need_their_workspace)
{
    struct test_shape shape;
    struct test_plan built;
    test_shape_make(&shape, "reference", 96, 2, 8, 65536, PLAN_AUTO);
    shape.request.splits = 4;
    shape.request.workspace_bytes_max = 2 * 12 * 256 * MLA_ABI_PARTIAL_ROW_BYTES;
    test_plan_make(&shape.request, &built);
    ck_assert_uint_eq(built.plan.n_items, 24);
    test_plan_free(&built);
    shape.request.workspace_bytes_max--;
    ck_assert_int_eq(build_result(&shape.request), -ENOSPC);

    /* Two jobs of 33 items each when alone: together only with room for both. */
    struct plan_job jobs[2] = {
        {.first_seq = 0, .n_seqs = 1, .mask = MLA_ABI_MASK_CAUSAL, .batch_invariant = true},
        {.first_seq = 1, .n_seqs = 1, .mask = MLA_ABI_MASK_CAUSAL, .batch_invariant = true},
    };
    shape.request.splits = 0;
    shape.request.jobs = jobs;
    shape.request.n_jobs = 2;
    shape.request.workspace_bytes_max = 2 * 33 * 256 * MLA_ABI_PARTIAL_ROW_BYTES;
    test_plan_make(&shape.request, &built);
    ck_assert_uint_eq(built.plan.n_items, 66);
    test_plan_free(&built);
    shape.request.workspace_bytes_max--;
    ck_assert_int_eq(build_result(&shape.request), -ENOSPC);
    shape.request.workspace_bytes_max = UINT64_MAX;
    jobs[1].batch_invariant = false;
    test_plan_make(&shape.request, &built); /* the mate is cut as the batch likes */
    ck_assert_uint_ge(built.plan.n_items, 36);
    test_plan_free(&built);
}
END_TEST

START_TEST(one_and_a_half_waves_do_not_run_as_two)
{
    /* B16 Q8 on 33 units: 48 tiles. Unsplit two waves of 1024 pages; even work is 48 * 1024 / 33 = 1489.5 pages. */
    struct test_shape shape;
    struct test_plan built;
    test_shape_make(&shape, "reference", 96, 16, 8, 65536, PLAN_UNSPLIT);
    test_plan_make(&shape.request, &built);
    const struct plan_costs *c = &shape.request.costs;
    ck_assert_uint_eq(built.plan.predicted_ns,
                      c->launch_ns + 2 * ((uint64_t)c->fill_ns + c->drain_ns + (uint64_t)1024 * c->page_ns));
    test_plan_free(&built);
    for (int policy = PLAN_BALANCED; policy <= PLAN_AUTO; policy++) {
        shape.request.policy = (enum plan_policy)policy;
        test_plan_make(&shape.request, &built);
        ck_assert_uint_eq(built.plan.chosen, PLAN_BALANCED);
        ck_assert_uint_lt(built.plan.predicted_ns, (uint64_t)1489500 * c->page_ns / 1000 * 103 / 100);
        ck_assert_uint_le(built.plan.n_items, 48 + 33);
        test_plan_free(&built);
    }
}
END_TEST

/* A page comes from memory once for all tiles of a sequence: they are cut alike, and their items begin together. */
START_TEST(tiles_of_a_sequence_go_together)
{
    static const uint32_t batches[] = {1, 4, 16, 64}, q_lens[] = {4, 8};
    const uint32_t batch = batches[_i / 2], q_len = q_lens[_i % 2];
    struct test_shape shape;
    struct test_plan built;
    test_shape_make(&shape, "h200", 96, batch, q_len, 65536, PLAN_AUTO);
    test_plan_make(&shape.request, &built);
    const struct plan *plan = &built.plan;
    ck_assert_uint_gt(plan->n_items, plan->n_tiles); /* else there is nothing to see */
    for (uint32_t t = 1; t < plan->n_tiles; t++) {
        const struct mla_abi_tile *before = &plan->tiles[t - 1], *tile = &plan->tiles[t];
        if (tile->seq != before->seq)
            continue;
        uint32_t tiles = (q_len * 96 + 255) / 256;
        ck_assert_uint_eq(tile->n_items, before->n_items);
        for (uint32_t k = 0; k < tile->n_items; k++) {
            const struct mla_abi_item *mine = &plan->items[tile->first_item + k * tiles];
            ck_assert_uint_eq(mine->tile, t);
            ck_assert_uint_eq(mine[-1].tile, t - 1);
            ck_assert_uint_eq(mine->page_begin, mine[-1].page_begin);
            ck_assert_uint_eq(mine->page_end, mine[-1].page_end);
        }
    }
    test_plan_free(&built);
}
END_TEST

/* Units a sequence of which 66 is no multiple would leave some idle: that costs more than it is worth. */
START_TEST(no_units_are_idle_for_it)
{
    static const uint32_t q_lens[] = {4, 5, 7, 10, 12, 16};
    struct test_shape shape;
    struct test_plan built;
    test_shape_make(&shape, "h200", 128, 9, q_lens[_i], 65536, PLAN_AUTO);
    test_plan_make(&shape.request, &built);
    const struct plan_costs *c = &shape.request.costs;
    uint64_t even = 9 * q_lens[_i] * UINT64_C(1024) * c->page_ns / 66;
    ck_assert_uint_lt(built.plan.predicted_ns, even + even / 32 + 40000);
    test_plan_free(&built);
}
END_TEST

/* A few more units' worth of tiles than there are units, beside the cuts of a batch-invariant job: whole, the last ones
 * run behind all others. The reducer runs anyway, so cutting costs little. */
START_TEST(short_contexts_are_cut_beside_others)
{
    static const struct {
        const char *preset;
        uint32_t seqs, q_len;
        uint64_t most_ns; /* 44,679 and 35,635 whole */
    } rows[] = {{"sm90-32", 24, 4, 42634}, {"sm90", 13, 8, 34034}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct test_shape shape;
        struct test_plan built;
        test_shape_make(&shape, rows[i].preset, 96, rows[i].seqs, rows[i].q_len, 384, PLAN_AUTO);
        shape.seqs[0].kv_len = 2048;
        const struct plan_job jobs[] = {{.n_seqs = 1, .mask = MLA_ABI_MASK_CAUSAL, .batch_invariant = true},
                                        {.first_seq = 1, .n_seqs = rows[i].seqs - 1, .mask = MLA_ABI_MASK_CAUSAL}};
        shape.request.jobs = jobs;
        shape.request.n_jobs = 2;
        test_plan_make(&shape.request, &built);
        ck_assert_uint_eq(built.plan.chosen, PLAN_BALANCED);
        ck_assert_uint_le(built.plan.predicted_ns, rows[i].most_ns);
        test_plan_free(&built);
    }
}
END_TEST

/* 2^24 keys are 262,144 pages: 128 items of 2,048, whatever is asked for, and 4 more pages make one more. */
START_TEST(long_contexts_are_cut)
{
    struct test_shape shape;
    struct test_plan built;
    for (int policy = PLAN_SEED; policy <= PLAN_UNSPLIT; policy++) {
        for (uint32_t splits = 0; splits <= 1; splits++) {
            test_shape_make(&shape, "h200", 128, 40, 2, 131072, (enum plan_policy)policy);
            shape.seqs[7].kv_len = 1u << 24;
            shape.seqs[8].kv_len = 131072 + 4 * 64;
            shape.request.device.max_pages_per_item = 2048;
            shape.request.splits = splits;
            test_plan_make(&shape.request, &built); /* and checks it */
            ck_assert_uint_ge(built.plan.tiles[7].n_items, 128);
            ck_assert_uint_ge(built.plan.tiles[8].n_items, 2);
            if (splits == 1 || policy == PLAN_UNSPLIT) {
                ck_assert_uint_eq(built.plan.tiles[7].n_items, 128);
                ck_assert_uint_eq(built.plan.tiles[8].n_items, 2);
                ck_assert_uint_eq(built.plan.tiles[9].n_items, 1);
            }
            ck_assert_uint_eq(plan_least_partial_bytes(&shape.request, UINT64_MAX),
                              (uint64_t)130 * 256 * MLA_ABI_PARTIAL_ROW_BYTES);
            test_plan_free(&built);
            shape.request.workspace_bytes_max = (uint64_t)130 * 256 * MLA_ABI_PARTIAL_ROW_BYTES - 1;
            ck_assert_int_eq(build_result(&shape.request), -ENOSPC);
        }
    }
}
END_TEST

START_TEST(workspace_grows_with_tiles_and_splits)
{
    /* B512 H32 Q4: 512 tiles of 128 rows. At most a cut per unit: 66 more items, 132 partials; the product would be
     * 512 tiles times the splits of any. */
    struct test_shape shape;
    struct test_plan built;
    for (int policy = PLAN_SEED; policy <= PLAN_AUTO; policy++) {
        test_shape_make(&shape, "h200", 32, 512, 4, 131072, (enum plan_policy)policy);
        shape.seqs[7].kv_len = 16u << 20; /* one far longer than the rest: it alone is cut often */
        test_plan_make(&shape.request, &built);
        ck_assert_uint_le(built.plan.n_items, 512 + 66);
        ck_assert_uint_le(built.plan.workspace_bytes, 132 * 128 * (uint64_t)MLA_ABI_PARTIAL_ROW_BYTES);
        test_plan_free(&built);
    }
    for (uint32_t batch = 128; batch <= 512; batch *= 2) {
        test_shape_make(&shape, "h200", 96, batch, 8, 65536, PLAN_BALANCED);
        test_plan_make(&shape.request, &built);
        ck_assert_uint_le(built.plan.n_items, 3 * batch + 66);
        test_plan_free(&built);
    }
}
END_TEST

START_TEST(sixty_five_thousand_sequences)
{
    enum { N = 65536 };
    struct plan_seq *seqs = calloc(N, sizeof(*seqs));
    ck_assert_ptr_nonnull(seqs);
    for (uint32_t i = 0; i < N; i++)
        seqs[i] = (struct plan_seq){.q_len = 1, .kv_len = 1};
    struct plan_job job = {.n_seqs = N, .mask = MLA_ABI_MASK_CAUSAL};
    struct test_shape shape;
    struct test_plan built;
    test_shape_make(&shape, "h200", 96, 1, 1, 1, PLAN_AUTO);
    shape.request.jobs = &job;
    shape.request.seqs = seqs;
    for (uint32_t n = 4095; n <= N; n = n == 4097 ? N : n + 1) {
        job.n_seqs = n;
        shape.request.n_seqs = n;
        test_plan_make(&shape.request, &built);
        ck_assert_uint_eq(built.plan.n_items, n);
        test_plan_free(&built);
        if (n == N)
            break;
    }
    free(seqs);
}
END_TEST

START_TEST(presets)
{
    struct plan_device device;
    struct plan_costs costs;
    ck_assert_int_eq(plan_device_preset("h200", &device, &costs), 0);
    ck_assert_uint_eq(device.sms, 132);
    ck_assert_uint_eq(device.ctas_per_unit * device.resident_units, 132);
    ck_assert_uint_eq(device.rows_per_unit, 128);
    ck_assert_int_eq(plan_device_preset("reference", &device, &costs), 0);
    ck_assert_uint_eq(device.resident_units, 33);
    ck_assert_uint_eq(device.rows_per_unit, 256);
    ck_assert_int_eq(plan_device_preset("h100", &device, &costs), -ENOENT);
}
END_TEST

MLA_SUITE(plan_build)
{
    TCase *tc = mla_tcase(suite, "build");
    tcase_add_test(tc, refuses_nonsense);
    tcase_add_test(tc, nothing_to_do);
    tcase_add_test(tc, small_arrays_are_no_space);
    tcase_add_test(tc, invariant_jobs_do_not_see_their_mates);
    tcase_add_test(tc, workspace_is_kept);
    tcase_add_test(tc, workspace_cuts_less_but_well);
    tcase_add_test(tc, forced_splits_and_invariant_jobs_need_their_workspace);
    tcase_add_test(tc, one_and_a_half_waves_do_not_run_as_two);
    tcase_add_loop_test(tc, tiles_of_a_sequence_go_together, 0, 8);
    tcase_add_loop_test(tc, no_units_are_idle_for_it, 0, 6);
    tcase_add_test(tc, short_contexts_are_cut_beside_others);
    tcase_add_test(tc, long_contexts_are_cut);
    tcase_add_test(tc, workspace_grows_with_tiles_and_splits);
    tcase_add_test(tc, sixty_five_thousand_sequences);
    tcase_add_test(tc, presets);
}
