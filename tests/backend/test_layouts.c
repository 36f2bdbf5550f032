/* Where bytes lie must not matter: strides, layouts, page ids, gaps, ends of mappings. */
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

/* Runs one job alone, checks it, gives its bits. */
static struct dc_bits run_alone(struct rig *rig, const struct dc_shape *shape)
{
    struct dc *c = dc_new(rig);
    struct dc_job *j = dc_add(c, shape);
    dc_run(c);
    dc_check(j);
    struct dc_bits bits = dc_bits(j);
    dc_free(c);
    return bits;
}

static void assert_same_and_free(struct dc_bits *want, struct dc_bits *got, const char *what)
{
    dc_assert_same(want, got, NULL, what);
    dc_bits_free(got);
}

/* K9: page ids around 2^31 and 2^32 bytes of a sparse 5 GB pool: the same bits as the same data on low ids. */
START_TEST(k9_page_ids_past_31_and_32_bits_of_bytes)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const int32_t high[] = {58254, 58255, 58256, 116508, 116509, 116510};
    struct dc_shape shape = {
        .heads = 96, .n_seqs = 1, .seqs = SEQS({1, 6 * 64 - 5}), .seed = 9, .sparse = true, .pages = DC_IDENTITY};
    struct dc_bits low = run_alone(&rig, &shape);
    shape.num_pages = 135634; /* 64 * 576 bytes each: 5.0 GB */
    shape.page_ids = high;
    struct dc_bits bits = run_alone(&rig, &shape);
    assert_same_and_free(&low, &bits, "page ids past 2^31 and 2^32 bytes");
    dc_bits_free(&low);
    rig_close(&rig);
}
END_TEST

/* K16: Q, rope, pool, table, lengths, counts, O, LSE and status words each end where readable memory ends. A read or
 * write past one is a fault of the process. */
START_TEST(k16_everything_ends_at_the_end_of_its_mapping)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const uint32_t types[] = {MLA_DTYPE_F32, MLA_DTYPE_BF16, MLA_DTYPE_E4M3};
    for (uint32_t n = 0; n < 6; n++) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = n % 2 ? 96 : 5,
                                                        .n_seqs = 2,
                                                        .seqs = SEQS({1, 70}, {3, n < 3 ? 65 : 128}),
                                                        .mask = n % 2 ? MLA_MASK_VISIBLE : MLA_MASK_CAUSAL,
                                                        .out_type = types[n % 3],
                                                        .q_layout = (enum dc_layout)(n % 4),
                                                        .o_layout = (enum dc_layout)(n % 4),
                                                        .lse_layout = (enum dc_layout)(n % 4),
                                                        .split_rope = n >= 3,
                                                        .row_stride = n == 5 ? 592 : 0,
                                                        .num_pages = 4,
                                                        .pages = DC_IDENTITY,
                                                        .table = DC_REGION,
                                                        .kv_len = DC_REGION,
                                                        .visible = DC_REGION,
                                                        .user_status = true,
                                                        .guard = true,
                                                        .seed = n});
        c->request.splits = n == 4 ? 2 : 0;
        dc_run(c);
        dc_check(j);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* K18: which pages hold a context is invisible in its bits. */
START_TEST(k18_permuted_page_ids)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc_shape shape = {.heads = 96,
                             .n_seqs = 3,
                             .seqs = SEQS({1, 700}, {4, 333}, {2, 64}),
                             .num_pages = 97,
                             .pages = DC_IDENTITY,
                             .ref_head_step = 19,
                             .seed = 18};
    struct dc_bits identity = run_alone(&rig, &shape);
    shape.pages = DC_SHUFFLED;
    struct dc_bits shuffled = run_alone(&rig, &shape);
    assert_same_and_free(&identity, &shuffled, "permuted page ids");
    dc_bits_free(&identity);
    rig_close(&rig);
}
END_TEST

static void heads_and_tokens(struct rig *rig, uint32_t heads)
{
    const uint32_t q_lens[] = {1, 3, 4, 7, 8};
    for (size_t i = 0; i < 5; i++) {
        struct dc_seq seqs[1] = {{q_lens[i], 97, 0}};
        struct dc_shape shape = {.heads = heads, .n_seqs = 1, .seqs = seqs, .ref_head_step = 3, .seed = heads + i};
        struct dc_bits thd = run_alone(rig, &shape);
        shape.q_layout = DC_HTD;
        shape.o_layout = DC_HTD;
        shape.lse_layout = DC_HTD;
        struct dc_bits htd = run_alone(rig, &shape);
        assert_same_and_free(&thd, &htd, "[H][T][d] against [T][H][d]");
        dc_bits_free(&thd);
    }
}

/* K26: H 1 ... 128 with Q 1 ... 8, rows as [T][H][d] and as [H][T][d]: right, and bit-equal to each other. */
START_TEST(k26_heads_and_tokens)
{
    const uint32_t heads[] = {1, 6, 12, 24, 48, 96, 128};
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (size_t i = 0; i < 7; i++)
        heads_and_tokens(&rig, heads[i]);
    rig_close(&rig);
}
END_TEST

/* Every layout of Q with every layout of O, one or two Q pointers, all output types, LSE there or not. */
START_TEST(layouts_of_q_with_layouts_of_o)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const uint32_t types[] = {MLA_DTYPE_F32, MLA_DTYPE_BF16, MLA_DTYPE_E4M3};
    for (uint32_t type = 0; type < 3; type++) {
        struct dc_shape shape = {.heads = 10,
                                 .n_seqs = 3,
                                 .seqs = SEQS({2, 70}, {3, 130}, {1, 5}),
                                 .out_type = types[type],
                                 .out_scale = 0.02f,
                                 .seed = 26};
        struct dc_bits plain = run_alone(&rig, &shape);
        for (int layout = 0; layout < DC_LAYOUTS * DC_LAYOUTS; layout++) {
            shape.q_layout = (enum dc_layout)(layout / DC_LAYOUTS);
            shape.o_layout = (enum dc_layout)(layout % DC_LAYOUTS);
            shape.lse_layout = (enum dc_layout)((layout + 2) % DC_LAYOUTS);
            shape.split_rope = layout % 2 != 0;
            struct dc_bits bits = run_alone(&rig, &shape);
            assert_same_and_free(&plain, &bits, "layouts");
        }
        shape.no_lse = true;
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(c, &shape);
        dc_run(c);
        dc_check(j);
        dc_free(c);
        dc_bits_free(&plain);
    }
    rig_close(&rig);
}
END_TEST

/* K27: ragged q_len 8, 3, 1, 0, 8, compact output: right, and nothing is written behind any row. */
START_TEST(k27_ragged_tokens_with_canaries)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const enum dc_layout layouts[] = {DC_THD, DC_HTD, DC_PADDED, DC_STHD, DC_SHTD};
    const uint32_t types[] = {MLA_DTYPE_E4M3, MLA_DTYPE_BF16, MLA_DTYPE_F32};
    for (uint32_t n = 0; n < 10; n++) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 96,
                                                        .n_seqs = 5,
                                                        .seqs = SEQS({8, 130}, {3, 66}, {1, 200}, {0, 64}, {8, 9}),
                                                        .o_layout = layouts[n % 5],
                                                        .lse_layout = layouts[n % 5],
                                                        .out_type = types[n % 3],
                                                        .out_scale = 0.01f,
                                                        .ref_head_step = 24,
                                                        .seed = n});
        c->request.splits = n / 5 * 2; /* written by items, and by the reducer */
        dc_run(c);
        dc_check(j);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* K28: a page stride with a gap, a row stride with a gap, table entries of 128 and 256 tokens: bit-equal to packed. */
START_TEST(k28_strides_and_entries)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc_shape packed = {
        .heads = 96, .n_seqs = 2, .seqs = SEQS({2, 300}, {1, 129}), .ref_head_step = 10, .seed = 28};
    struct dc_bits want = run_alone(&rig, &packed);
    struct dc_shape shape = packed;
    shape.page_stride = 64 * 576 + 4096;
    struct dc_bits got = run_alone(&rig, &shape);
    assert_same_and_free(&want, &got, "page stride");
    shape = packed;
    shape.row_stride = 592;
    got = run_alone(&rig, &shape);
    assert_same_and_free(&want, &got, "row stride");
    for (uint32_t per_entry = 2; per_entry <= 4; per_entry += 2) {
        shape = packed;
        shape.pages_per_entry = per_entry;
        shape.row_stride = 640;
        shape.page_stride = 64 * 640 + 16;
        shape.table = DC_REGION;
        got = run_alone(&rig, &shape);
        assert_same_and_free(&want, &got, "entries of several pages");
    }
    dc_bits_free(&want);
    rig_close(&rig);
}
END_TEST

/* K28: two layers interleaved page by page in one pool, decoded in one launch: each bit-equal to its packed pool. */
START_TEST(k28_two_interleaved_layers)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const uint64_t page = 64 * 576;
    struct dc_shape shape = {
        .heads = 96, .n_seqs = 2, .seqs = SEQS({1, 300}, {2, 65}), .num_pages = 9, .ref_head_step = 10, .seed = 1};
    struct dc_bits want[2];
    want[0] = run_alone(&rig, &shape);
    shape.seed = 2;
    want[1] = run_alone(&rig, &shape);

    struct dc *c = dc_new(&rig);
    shape.page_stride = 2 * page;
    shape.pool_bytes = 18 * page;
    shape.seed = 1;
    struct dc_job *layer0 = dc_add(c, &shape);
    shape.pool_of = layer0;
    shape.plane_offset = page;
    shape.seed = 2;
    struct dc_job *layer1 = dc_add(c, &shape);
    dc_run(c);
    dc_check(layer0);
    dc_check(layer1);
    struct dc_bits got0 = dc_bits(layer0);
    struct dc_bits got1 = dc_bits(layer1);
    assert_same_and_free(&want[0], &got0, "layer 0");
    assert_same_and_free(&want[1], &got1, "layer 1");
    dc_bits_free(&want[0]);
    dc_bits_free(&want[1]);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* One launch of jobs that differ in everything but heads: scales, masks, types, layouts, pools, tables. */
START_TEST(unlike_jobs_in_one_launch)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    dc_add(c,
           &(struct dc_shape){.heads = 24, .n_seqs = 2, .seqs = SEQS({1, 100}, {5, 77}), .q_scale = 0.5f, .seed = 1});
    dc_add(c, &(struct dc_shape){.heads = 24,
                                 .n_seqs = 1,
                                 .seqs = SEQS({8, 650}),
                                 .mask = MLA_MASK_NONE,
                                 .out_type = MLA_DTYPE_E4M3,
                                 .out_scale = 0.003f,
                                 .kv_scale = 0.25f,
                                 .o_layout = DC_HTD,
                                 .seed = 2});
    dc_add(c, &(struct dc_shape){.heads = 24,
                                 .n_seqs = 3,
                                 .seqs = SEQS({1, 9}, {0, 8}, {2, 64}),
                                 .mask = MLA_MASK_VISIBLE,
                                 .out_type = MLA_DTYPE_BF16,
                                 .softmax_scale = 0.1f,
                                 .kv_len = DC_HOST,
                                 .pages_per_entry = 2,
                                 .split_rope = true,
                                 .seed = 3});
    dc_add(c, &(struct dc_shape){.heads = 24,
                                 .n_seqs = 1,
                                 .seqs = SEQS({3, 200}),
                                 .q_scale = 3,
                                 .kv_scale = 0.4f,
                                 .q_layout = DC_SHTD,
                                 .no_lse = true,
                                 .batch_invariant = true,
                                 .seed = 4});
    dc_run(c);
    dc_check_all(c);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(backend_layouts)
{
    TCase *tc = mla_tcase(suite, "layouts");
    rig_add(tc, k9_page_ids_past_31_and_32_bits_of_bytes);
    rig_add(tc, k16_everything_ends_at_the_end_of_its_mapping);
    rig_add(tc, k18_permuted_page_ids);
    rig_add(tc, k26_heads_and_tokens);
    rig_add(tc, layouts_of_q_with_layouts_of_o);
    rig_add(tc, k27_ragged_tokens_with_canaries);
    rig_add(tc, k28_strides_and_entries);
    rig_add(tc, k28_two_interleaved_layers);
    rig_add(tc, unlike_jobs_in_one_launch);
}
