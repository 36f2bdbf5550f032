/* plan_check refuses every kind of damage: each mutation is applied to a valid plan, on its own. */
#include <errno.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/unit/test_plan_support.h"

/* H96 Q8 B2, two splits forced: sequence 0 has 40 pages, its tiles 0-2 are cut in two (items 0-5); sequence 1 has one
 * page, its tiles 3-5 stay whole (items 6-8). */
static struct test_shape shape;
static struct test_plan built;

static void setup(void)
{
    test_shape_make(&shape, "reference", 96, 2, 8, 40 * 64, PLAN_SEED);
    shape.seqs[1].kv_len = 64;
    shape.request.splits = 2;
    shape.request.workspace_bytes_max = 3 * 2 * 256 * MLA_ABI_PARTIAL_ROW_BYTES;
    test_plan_make(&shape.request, &built);
    ck_assert_uint_eq(built.plan.n_tiles, 6);
    ck_assert_uint_eq(built.plan.n_items, 9);
    ck_assert_uint_eq(built.plan.n_reduces, 3);
    ck_assert_uint_eq(built.plan.partial_rows, 1536);
    ck_assert_uint_eq(built.plan.tiles[0].first_item, 0);
    ck_assert_uint_eq(built.plan.tiles[1].first_item, 2);
}

static void teardown(void)
{
    test_plan_free(&built);
}

static void refused(const char *what, const char *says)
{
    char why[256] = "";
    ck_assert_msg(plan_check(&shape.request, &built.plan, why, sizeof(why)) == -EINVAL, "%s is let through", what);
    ck_assert_msg(strstr(why, says) != NULL, "%s: \"%s\" does not say \"%s\"", what, why, says);
    ck_assert_int_eq(plan_check(&shape.request, &built.plan, NULL, 0), -EINVAL);
}

#define MUTATION(name, says, change)                                                                                   \
    START_TEST(name)                                                                                                   \
    {                                                                                                                  \
        struct plan *plan = &built.plan;                                                                               \
        (void)plan;                                                                                                    \
        change;                                                                                                        \
        refused(#change, says);                                                                                        \
    }                                                                                                                  \
    END_TEST

/* Items. */
MUTATION(dropped_item, "in the range of tile 0", {
    plan->tiles[0].n_items = 1;
    plan->n_items--;
    memmove(&plan->items[1], &plan->items[2], 7 * sizeof(plan->items[0]));
    plan->items[0].partial_row = MLA_ABI_NO_PARTIAL;
    for (uint32_t t = 1; t < 6; t++)
        plan->tiles[t].first_item--;
    plan->tiles[0].n_items = 2;
})
MUTATION(last_item_dropped, "from", {
    plan->tiles[0].n_items = 1;
    plan->items[0].partial_row = MLA_ABI_NO_PARTIAL;
})
MUTATION(uncounted_item, "the tiles have", {
    plan->n_items++;
    plan->capacity.items++;
})
MUTATION(overlapping_pages, "begins at page", plan->items[1].page_begin--)
MUTATION(gap_in_pages, "begins at page", plan->items[1].page_begin++)
MUTATION(shared_page, "begins at page", plan->items[0].page_end++)
MUTATION(empty_split, "ends at page", {
    plan->items[0].page_end = 0;
    plan->items[1].page_begin = 0;
})
MUTATION(reversed_item, "ends at page", plan->items[1].page_end = 3)
MUTATION(pages_past_the_tile, "ends at page", plan->items[1].page_end++)
MUTATION(missing_last_page, "from 39 on", plan->items[1].page_end--)
MUTATION(item_of_another_tile, "of tile 1", plan->items[0].tile = 1)
MUTATION(items_of_two_tiles_swapped, "in the range of", {
    struct mla_abi_item item = plan->items[1];
    plan->items[1] = plan->items[2];
    plan->items[2] = item;
})
MUTATION(two_tiles_share_items, "in the range of", plan->tiles[1].first_item = 0)
MUTATION(items_past_the_end, "are not among", plan->tiles[5].first_item = 9)
MUTATION(items_past_all_numbers, "are not among", plan->tiles[5].first_item = UINT32_MAX)
MUTATION(tile_without_items, "are not among", plan->tiles[5].n_items = 0)

/* Partials. */
MUTATION(whole_tile_with_partial, "has a partial", plan->items[8].partial_row = 0)
MUTATION(split_without_partial, "partial", plan->items[1].partial_row = MLA_ABI_NO_PARTIAL)
MUTATION(all_splits_without_partial, "partial", {
    plan->items[0].partial_row = MLA_ABI_NO_PARTIAL;
    plan->items[1].partial_row = MLA_ABI_NO_PARTIAL;
})
MUTATION(partials_not_consecutive, "partial at row", plan->items[1].partial_row++)
MUTATION(same_partial_twice, "partial at row", plan->items[1].partial_row = plan->items[0].partial_row)
MUTATION(partials_of_two_tiles_meet, "meet", {
    plan->items[2].partial_row -= 256;
    plan->items[3].partial_row -= 256;
    plan->reduces[1].partial_row -= 256;
})
MUTATION(partials_past_the_workspace, "behind the workspace", {
    plan->items[4].partial_row += 1;
    plan->items[5].partial_row += 1;
    plan->reduces[2].partial_row += 1;
})
MUTATION(workspace_counted_too_small, "behind the workspace", {
    plan->partial_rows -= 256;
    plan->workspace_bytes -= 256 * MLA_ABI_PARTIAL_ROW_BYTES;
})
MUTATION(workspace_counted_too_large, "partials end", {
    plan->partial_rows += 256;
    plan->workspace_bytes += 256 * MLA_ABI_PARTIAL_ROW_BYTES;
    shape.request.workspace_bytes_max += 256 * MLA_ABI_PARTIAL_ROW_BYTES;
})
MUTATION(workspace_bytes_wrong, "workspace_bytes", plan->workspace_bytes--)
MUTATION(workspace_over_its_limit, "larger than", shape.request.workspace_bytes_max--)

/* Reduces. */
MUTATION(missing_reduce, "2 reduces for 3", plan->n_reduces--)
MUTATION(reduce_twice, "meet", plan->reduces[1] = plan->reduces[0])
MUTATION(reduce_of_a_whole_tile, "reduce 1", plan->reduces[1].tile = 4)
MUTATION(reduce_of_no_tile, "tile 6", plan->reduces[1].tile = 6)
MUTATION(reduce_of_another_tile, "reads from", plan->reduces[1].tile = 2)
MUTATION(reduce_of_fewer_partials, "combines 1", plan->reduces[1].n_partials--)
MUTATION(reduce_of_more_partials, "combines 3", plan->reduces[1].n_partials++)
MUTATION(reduce_of_fewer_rows, "255 rows", plan->reduces[1].rows--)
MUTATION(reduce_elsewhere, "reads from", plan->reduces[1].partial_row++)

/* Tiles. */
MUTATION(missing_tile, "are in no tile", plan->n_tiles--)
MUTATION(surplus_tile, "belongs to no rows", {
    static struct mla_abi_tile more[7];
    memcpy(more, plan->tiles, 6 * sizeof *more);
    more[6] = more[5];
    plan->tiles = more;
    plan->n_tiles++;
    plan->capacity.tiles++;
})
MUTATION(rows_twice, "begins at row", plan->tiles[1].first_row = 0)
MUTATION(rows_left_out, "begins at row", plan->tiles[0].rows--)
MUTATION(tile_too_high, "has 257 rows", plan->tiles[0].rows++)
MUTATION(tile_without_rows, "has 0 rows", plan->tiles[0].rows = 0)
MUTATION(rows_past_the_sequence, "has 256 rows", { shape.seqs[1].q_len = 7; })
MUTATION(tile_of_another_sequence, "of sequence 1 instead", plan->tiles[2].seq = 1)
MUTATION(too_few_pages, "has 39 pages", plan->tiles[0].pages--)
MUTATION(too_many_pages, "has 41 pages", plan->tiles[0].pages++)

/* Sums and capacities. */
MUTATION(more_items_than_the_array, "more than the arrays", plan->capacity.items = 8)
MUTATION(more_tiles_than_the_array, "more than the arrays", plan->capacity.tiles = 5)
MUTATION(more_reduces_than_the_array, "more than the arrays", plan->capacity.reduces = 2)
MUTATION(useful_rows_wrong, "useful_rows", plan->useful_rows++)
MUTATION(row_slots_wrong, "row_slots", plan->row_slots--)
MUTATION(max_splits_wrong, "max_splits", plan->max_splits++)
MUTATION(item_units_wrong, "item_units", plan->item_units++)
MUTATION(waves_wrong, "waves", plan->waves++)
MUTATION(more_splits_than_forced, "at most 1", shape.request.splits = 1)
MUTATION(shorter_splits_than_allowed, "at most 1", {
    shape.request.splits = 0;
    shape.request.device.min_pages_per_split = 40;
})
MUTATION(request_without_sense, "no sense", shape.request.heads = 0)

START_TEST(single_empty_item)
{
    /* A tile without pages has exactly one item, from 0 to 0. */
    test_plan_free(&built);
    shape.seqs[1].kv_len = 0;
    test_plan_make(&shape.request, &built);
    ck_assert_uint_eq(built.plan.tiles[5].pages, 0);
    uint32_t i = built.plan.tiles[5].first_item;
    built.plan.items[i].page_end = 1;
    refused("a page of a tile without pages", "ends at page 1");
    built.plan.items[i].page_end = 0;
    ck_assert_int_eq(plan_check(&shape.request, &built.plan, NULL, 0), 0);
}
END_TEST

MLA_SUITE(plan_check)
{
    TCase *tc = mla_tcase(suite, "mutations");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, dropped_item);
    tcase_add_test(tc, last_item_dropped);
    tcase_add_test(tc, uncounted_item);
    tcase_add_test(tc, overlapping_pages);
    tcase_add_test(tc, gap_in_pages);
    tcase_add_test(tc, shared_page);
    tcase_add_test(tc, empty_split);
    tcase_add_test(tc, reversed_item);
    tcase_add_test(tc, pages_past_the_tile);
    tcase_add_test(tc, missing_last_page);
    tcase_add_test(tc, item_of_another_tile);
    tcase_add_test(tc, items_of_two_tiles_swapped);
    tcase_add_test(tc, two_tiles_share_items);
    tcase_add_test(tc, items_past_the_end);
    tcase_add_test(tc, items_past_all_numbers);
    tcase_add_test(tc, tile_without_items);
    tcase_add_test(tc, whole_tile_with_partial);
    tcase_add_test(tc, split_without_partial);
    tcase_add_test(tc, all_splits_without_partial);
    tcase_add_test(tc, partials_not_consecutive);
    tcase_add_test(tc, same_partial_twice);
    tcase_add_test(tc, partials_of_two_tiles_meet);
    tcase_add_test(tc, partials_past_the_workspace);
    tcase_add_test(tc, workspace_counted_too_small);
    tcase_add_test(tc, workspace_counted_too_large);
    tcase_add_test(tc, workspace_bytes_wrong);
    tcase_add_test(tc, workspace_over_its_limit);
    tcase_add_test(tc, missing_reduce);
    tcase_add_test(tc, reduce_twice);
    tcase_add_test(tc, reduce_of_a_whole_tile);
    tcase_add_test(tc, reduce_of_no_tile);
    tcase_add_test(tc, reduce_of_another_tile);
    tcase_add_test(tc, reduce_of_fewer_partials);
    tcase_add_test(tc, reduce_of_more_partials);
    tcase_add_test(tc, reduce_of_fewer_rows);
    tcase_add_test(tc, reduce_elsewhere);
    tcase_add_test(tc, missing_tile);
    tcase_add_test(tc, surplus_tile);
    tcase_add_test(tc, rows_twice);
    tcase_add_test(tc, rows_left_out);
    tcase_add_test(tc, tile_too_high);
    tcase_add_test(tc, tile_without_rows);
    tcase_add_test(tc, rows_past_the_sequence);
    tcase_add_test(tc, tile_of_another_sequence);
    tcase_add_test(tc, too_few_pages);
    tcase_add_test(tc, too_many_pages);
    tcase_add_test(tc, more_items_than_the_array);
    tcase_add_test(tc, more_tiles_than_the_array);
    tcase_add_test(tc, more_reduces_than_the_array);
    tcase_add_test(tc, useful_rows_wrong);
    tcase_add_test(tc, row_slots_wrong);
    tcase_add_test(tc, max_splits_wrong);
    tcase_add_test(tc, item_units_wrong);
    tcase_add_test(tc, waves_wrong);
    tcase_add_test(tc, more_splits_than_forced);
    tcase_add_test(tc, shorter_splits_than_allowed);
    tcase_add_test(tc, request_without_sense);
    tcase_add_test(tc, single_empty_item);
}
