/* A short list of shapes for compute-sanitizer, which slows kernels down a thousand times: each way through the kernels
 * once, on the smallest shapes that take it. Outputs are checked as everywhere. */
#include "tests/gpu/rig_library.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

static void decode(struct rig *rig, const struct dc_shape *shape, uint32_t splits)
{
    struct dc *c = dc_new(rig);
    dc_add(c, shape);
    c->request.splits = splits;
    dc_run(c);
    dc_check_all(c);
    dc_free(c);
}

/* Empty, within a page, up to its end, past it; more rows than a tile of heads holds. */
START_TEST(lengths)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    decode(&rig, &(struct dc_shape){.heads = 6, .n_seqs = 4, .seqs = SEQS({1, 0}, {2, 1}, {3, 64}, {1, 130})}, 1);
    decode(&rig, &(struct dc_shape){.heads = 96, .n_seqs = 1, .seqs = SEQS({3, 100})}, 1);
    rig_close(&rig);
}
END_TEST

/* Partial outputs and the reducer. */
START_TEST(splits)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    decode(&rig, &(struct dc_shape){.heads = 12, .n_seqs = 2, .seqs = SEQS({2, 300}, {1, 66})}, 3);
    decode(&rig, &(struct dc_shape){.heads = 16, .n_seqs = 1, .seqs = SEQS({4, 200}), .out_type = MLA_DTYPE_E4M3}, 2);
    rig_close(&rig);
}
END_TEST

/* Everything in device memory, the other layouts, strides with room between. */
START_TEST(layouts)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    decode(&rig,
           &(struct dc_shape){.heads = 12,
                              .n_seqs = 2,
                              .seqs = SEQS({3, 70, 80}, {1, 64, 64}),
                              .mask = MLA_MASK_VISIBLE,
                              .out_type = MLA_DTYPE_BF16,
                              .q_layout = DC_HTD,
                              .o_layout = DC_PADDED,
                              .lse_layout = DC_HTD,
                              .split_rope = true,
                              .user_status = true,
                              .table = DC_REGION,
                              .kv_len = DC_REGION,
                              .visible = DC_REGION,
                              .row_stride = 592,
                              .page_stride = 64 * 592 + 4096},
           0);
    rig_close(&rig);
}
END_TEST

/* A page id out of range is found, not followed. */
START_TEST(faults)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j =
        dc_add(c, &(struct dc_shape){.heads = 8, .n_seqs = 2, .seqs = SEQS({1, 200}, {1, 100}), .table = DC_REGION});
    j->table[j->table_first[0] + 2] = -1;
    dc_run(c);
    ck_assert_uint_eq(j->status[0], dc_fault(MLA_PAGE_OUT_OF_RANGE, 2));
    dc_check_all(c);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(sanitizer)
{
    TCase *tc = mla_tcase_timeout(suite, "sanitizer", 300);
    rig_add(tc, lengths);
    rig_add(tc, splits);
    rig_add(tc, layouts);
    rig_add(tc, faults);
}
