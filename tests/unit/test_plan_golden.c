/* Golden plans. The tables were worked out by hand from the definitions, not taken from the program:
 *
 *   tiles of a sequence   H96 Q4 = 384 rows = 256 + 128; H96 Q8 = 768 rows = 3 x 256 = 6 x 128
 *   need                  4x256: a unit per tile, Q4 2 and Q8 3 per sequence; 2x128: 384 / 128 = 3 and 768 / 128 = 6
 *   S                     need >= units: 1; else floor(2 * units / need), never limited by ceil(1024 / 8) = 128
 *   items                 S * tiles * batch
 *   waves                 ceil(S * need / units)
 *
 * for batches 1, 4, 16, 64, e.g. 33 units, B4 Q8: need = 4 * 3 = 12 < 33, S = floor(66 / 12) = 5, items = 5 * 12 = 60,
 * waves = ceil(60 / 33) = 2. */
#include "tests/support/check_main.h"
#include "tests/unit/test_plan_support.h"

struct golden {
    uint32_t splits;
    uint32_t items;
    uint32_t waves;
};

static const uint32_t batches[4] = {1, 4, 16, 64};

/* units of 4 x 256 rows: [units][Q4, Q8][batch] */
static const struct {
    uint32_t sms;
    uint32_t units;
    struct golden shape[2][4];
} seed_4x256[] = {
    {132,
     33,
     {{{33, 66, 2}, {8, 64, 2}, {2, 64, 2}, {1, 128, 4}},   /* need 2, 8, 32, 128: 66/2, 66/8, 66/32, full */
      {{22, 66, 2}, {5, 60, 2}, {1, 48, 2}, {1, 192, 6}}}}, /* need 3, 12, 48, 192: 66/3, 66/12, full, full */
    {148,
     37,
     {{{37, 74, 2}, {9, 72, 2}, {2, 64, 2}, {1, 128, 4}},   /* 74/2, 74/8, 74/32; ceil(128/37) = 4 */
      {{24, 72, 2}, {6, 72, 2}, {1, 48, 2}, {1, 192, 6}}}}, /* 74/3, 74/12; ceil(192/37) = 6 */
    {152,
     38,
     {{{38, 76, 2}, {9, 72, 2}, {2, 64, 2}, {1, 128, 4}},   /* 76/2, 76/8, 76/32 */
      {{25, 75, 2}, {6, 72, 2}, {1, 48, 2}, {1, 192, 6}}}}, /* 76/3, 76/12; ceil(192/38) = 6 */
    {224,
     56,
     {{{56, 112, 2}, {14, 112, 2}, {3, 96, 2}, {1, 128, 3}}, /* 112/2, 112/8, 112/32; ceil(128/56) = 3 */
      {{37, 111, 2}, {9, 108, 2}, {2, 96, 2}, {1, 192, 4}}}} /* 112/3, 112/12, 112/48; ceil(192/56) = 4 */
};

/* 66 units of 2 x 128 rows: need 3, 12, 48, 192 and 6, 24, 96, 384 units; items count tiles, not units */
static const struct golden seed_2x128[2][4] = {
    {{44, 88, 2}, {11, 88, 2}, {2, 64, 2}, {1, 128, 3}}, /* 132/3, 132/12, 132/48 = 2.75; ceil(192/66) = 3 */
    {{22, 66, 2}, {5, 60, 2}, {1, 48, 2}, {1, 192, 6}},  /* 132/6, 132/24 = 5.5; ceil(96/66) = 2, ceil(384/66) = 6 */
};

static void check_seed(const char *preset, uint32_t sms, uint32_t units, uint32_t q_len, uint32_t batch,
                       const struct golden *want)
{
    static const uint32_t kv_lens[] = {65536, 131072};
    for (int k = 0; k < 2; k++) {
        struct test_shape shape;
        struct test_plan built;
        test_shape_make(&shape, preset, 96, batch, q_len, kv_lens[k], PLAN_SEED);
        test_shape_sms(&shape, sms);
        ck_assert_uint_eq(shape.request.device.resident_units, units);
        test_plan_make(&shape.request, &built);
        ck_assert_uint_eq(built.plan.n_tiles, batch * (q_len == 4 ? 2 : 3));
        ck_assert_uint_eq(built.plan.max_splits, want->splits);
        ck_assert_uint_eq(built.plan.n_items, want->items);
        ck_assert_uint_eq(built.plan.waves, want->waves);
        ck_assert_uint_eq(built.plan.n_reduces, want->splits > 1 ? built.plan.n_tiles : 0);
        for (uint32_t t = 0; t < built.plan.n_tiles; t++) {
            ck_assert_uint_eq(built.plan.tiles[t].pages, kv_lens[k] / 64);
            ck_assert_uint_eq(built.plan.tiles[t].n_items, want->splits);
        }
        test_plan_free(&built);
    }
}

START_TEST(seed_on_the_reference_shapes)
{
    for (size_t d = 0; d < sizeof(seed_4x256) / sizeof(seed_4x256[0]); d++)
        for (int q = 0; q < 2; q++)
            for (int b = 0; b < 4; b++)
                check_seed("reference", seed_4x256[d].sms, seed_4x256[d].units, q == 0 ? 4 : 8, batches[b],
                           &seed_4x256[d].shape[q][b]);
    for (int q = 0; q < 2; q++)
        for (int b = 0; b < 4; b++)
            check_seed("h200", 132, 66, q == 0 ? 4 : 8, batches[b], &seed_2x128[q][b]);
}
END_TEST

START_TEST(seed_is_limited_by_pages)
{
    /* 10 pages, 8 per split at least: ceil(10 / 8) = 2 items although 22 would fill the units; 5 + 5 pages. */
    struct test_shape shape;
    struct test_plan built;
    test_shape_make(&shape, "reference", 96, 1, 8, 640, PLAN_SEED);
    test_plan_make(&shape.request, &built);
    ck_assert_uint_eq(built.plan.max_splits, 2);
    ck_assert_uint_eq(built.plan.items[0].page_end, 5);
    ck_assert_uint_eq(built.plan.items[1].page_end, 10);
    test_plan_free(&built);
}
END_TEST

START_TEST(tiles_of_the_reference_heads)
{
    static const struct {
        uint32_t q_len, tile_rows, tiles, last_rows;
        const char *preset;
        uint64_t useful, slots;
    } rows[] = {
        {8, 256, 3, 256, "reference", 768, 768},  {8, 128, 6, 128, "h200", 768, 768},
        {8, 128, 6, 128, "reference", 768, 1536}, /* a 256-row unit is half used by a 128-row tile */
        {8, 64, 12, 64, "h200", 768, 1536},       {4, 256, 2, 128, "reference", 384, 512},
        {4, 256, 2, 128, "h200", 384, 384}, /* the half-full tile takes one pair */
        {1, 256, 1, 96, "h200", 96, 128},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct test_shape shape;
        struct test_plan built;
        test_shape_make(&shape, rows[i].preset, 96, 1, rows[i].q_len, 65536, PLAN_UNSPLIT);
        shape.request.tile_rows = rows[i].tile_rows;
        test_plan_make(&shape.request, &built);
        ck_assert_uint_eq(built.plan.n_tiles, rows[i].tiles);
        ck_assert_uint_eq(built.plan.tiles[rows[i].tiles - 1].rows, rows[i].last_rows);
        ck_assert_uint_eq(built.plan.useful_rows, rows[i].useful);
        ck_assert_uint_eq(built.plan.row_slots, rows[i].slots);
        test_plan_free(&built);
    }
    /* Heads padded to 128, Q8 sent as two Q4: 2 x 512 rows = 4 tiles. */
    struct test_shape shape;
    struct test_plan built;
    test_shape_make(&shape, "reference", 128, 2, 4, 65536, PLAN_UNSPLIT);
    test_plan_make(&shape.request, &built);
    ck_assert_uint_eq(built.plan.n_tiles, 4);
    ck_assert_uint_eq(built.plan.row_slots, 1024);
    test_plan_free(&built);
}
END_TEST

START_TEST(visible_pages)
{
    static const struct {
        uint32_t mask, q_len, kv_len, token, pages;
    } rows[] = {
        {MLA_ABI_MASK_NONE, 4, 0, 3, 0},
        {MLA_ABI_MASK_NONE, 4, 1, 0, 1},
        {MLA_ABI_MASK_NONE, 4, 64, 0, 1},
        {MLA_ABI_MASK_VISIBLE, 4, 65, 0, 2},
        {MLA_ABI_MASK_CAUSAL, 1, 64, 0, 1},
        {MLA_ABI_MASK_CAUSAL, 1, 65, 0, 2},
        {MLA_ABI_MASK_CAUSAL, 8, 66, 5, 1}, /* sees 66 - 8 + 5 + 1 = 64 keys */
        {MLA_ABI_MASK_CAUSAL, 8, 66, 6, 2},
        {MLA_ABI_MASK_CAUSAL, 8, 3, 4, 0},
        {MLA_ABI_MASK_CAUSAL, 8, 3, 5, 1},
        {MLA_ABI_MASK_CAUSAL, 8, 0, 7, 0},
        {MLA_ABI_MASK_CAUSAL, 1, UINT32_MAX, 0, 67108864},
        {MLA_ABI_MASK_CAUSAL, UINT32_MAX, 1, UINT32_MAX - 1, 1},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        ck_assert_uint_eq(plan_visible_pages(rows[i].mask, rows[i].q_len, rows[i].kv_len, rows[i].token),
                          rows[i].pages);
}
END_TEST

START_TEST(short_causal_contexts)
{
    /* q_len 8, kv_len 3, 128 heads: 2 tokens per tile; tokens 0 to 4 see nothing, so do tiles 0 and 1. */
    struct test_shape shape;
    struct test_plan built;
    test_shape_make(&shape, "h200", 128, 1, 8, 3, PLAN_AUTO);
    test_plan_make(&shape.request, &built);
    ck_assert_uint_eq(built.plan.n_tiles, 4);
    ck_assert_uint_eq(built.plan.n_items, 4);
    for (uint32_t t = 0; t < 4; t++) {
        const struct mla_abi_tile *tile = &built.plan.tiles[t];
        ck_assert_uint_eq(tile->pages, t < 2 ? 0 : 1);
        ck_assert_uint_eq(tile->n_items, 1);
        ck_assert_uint_eq(built.plan.items[tile->first_item].page_end, tile->pages);
        ck_assert_uint_eq(built.plan.items[tile->first_item].partial_row, MLA_ABI_NO_PARTIAL);
    }
    test_plan_free(&built);
}
END_TEST

/* Sequence 0: 384 rows that see nothing. Sequence 1: 96 rows, 16 pages; need 3 of 33 units, so S = min(22, 16 / 8) = 2.
 * Model: launch 8944; an item of 8 pages 2000 + 1000 + 1 + 8 * 1195 = 12561; reduction 700 + 2500 + 192 * 2052 bytes
 * at 4,000,000 per us = 98; together 24803. */
START_TEST(dump_is_stable)
{
    static const char want[] = "device sms 132 unit 4x256 units 33 min_pages 8\n"
                               "request heads 96 tile_rows 256 seqs 2 jobs 1 policy seed splits 0\n"
                               "plan chosen seed tiles 3 items 4 reduces 1 max_splits 2 item_units 4 waves 1\n"
                               "rows useful 480 slots 768 partial 192 workspace_bytes 393984 model_ns 24803\n"
                               "tile 0 seq 0 rows 0+256 pages 0 items 2+1\n"
                               "tile 1 seq 0 rows 256+128 pages 0 items 3+1\n"
                               "tile 2 seq 1 rows 0+96 pages 16 items 0+2\n"
                               "item 0 tile 2 pages 0..8 partial 0\n"
                               "item 1 tile 2 pages 8..16 partial 96\n"
                               "item 2 tile 0 pages 0..0 partial none\n"
                               "item 3 tile 1 pages 0..0 partial none\n"
                               "reduce 0 tile 2 partial 0 n 2 rows 96\n";
    struct test_shape shape;
    struct test_plan built;
    char text[2048];
    test_shape_make(&shape, "reference", 96, 2, 4, 0, PLAN_SEED);
    shape.seqs[1] = (struct plan_seq){.q_len = 1, .kv_len = 1024};
    test_plan_make(&shape.request, &built);
    ck_assert_uint_eq(plan_dump(&shape.request, &built.plan, text, sizeof(text)), sizeof(want) - 1);
    ck_assert_str_eq(text, want);
    char small[10];
    ck_assert_uint_eq(plan_dump(&shape.request, &built.plan, small, sizeof(small)), sizeof(want) - 1);
    ck_assert_str_eq(small, "device sm");
    ck_assert_uint_eq(plan_dump(&shape.request, &built.plan, NULL, 0), sizeof(want) - 1);
    test_plan_free(&built);
}
END_TEST

MLA_SUITE(plan_golden)
{
    TCase *tc = mla_tcase(suite, "golden");
    tcase_add_test(tc, seed_on_the_reference_shapes);
    tcase_add_test(tc, seed_is_limited_by_pages);
    tcase_add_test(tc, tiles_of_the_reference_heads);
    tcase_add_test(tc, visible_pages);
    tcase_add_test(tc, short_causal_contexts);
    tcase_add_test(tc, dump_is_stable);
}
