/* Thousands of random requests: what holds for every plan. */
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/unit/test_plan_support.h"

#define SIMULATED_ITEMS 200u /* so few that it takes no time */

START_TEST(every_plan_is_valid)
{
    struct test_random random = {.state = (uint64_t)_i + 1};
    for (int round = 0; round < 600; round++) {
        struct test_ragged ragged;
        test_ragged_make(&random, &ragged);
        uint32_t cap = round % 3 == 0 ? ragged.request.device.min_pages_per_split + test_random_below(&random, 100) : 0;
        ragged.request.device.max_pages_per_item = cap;
        for (int policy = PLAN_SEED; policy <= PLAN_UNSPLIT; policy++) {
            struct test_plan built;
            ragged.request.policy = (enum plan_policy)policy;
            test_plan_make(&ragged.request, &built);
            test_plan_free(&built);
        }
        static const uint32_t splits[] = {1, 2, 3, 5, 8, 16, 32, 1000};
        struct test_plan built;
        ragged.request.splits = splits[test_random_below(&random, 8)];
        test_plan_make(&ragged.request, &built);
        for (uint32_t t = 0; t < built.plan.n_tiles; t++) {
            uint32_t pages = built.plan.tiles[t].pages;
            uint32_t want = pages < ragged.request.splits ? pages : ragged.request.splits;
            uint32_t least = cap != 0 ? (pages + cap - 1) / cap : 1;
            want = want > least ? want : least;
            ck_assert_uint_eq(built.plan.tiles[t].n_items, want < 1 ? 1 : want);
        }
        test_plan_free(&built);
    }
}
END_TEST

static uint32_t div_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* The cost model written again, slowly: every unit by itself. splits: of every tile, at most ceil(pages / min_pages).
 */
static uint64_t simulated_ns(const struct plan_request *r, const struct plan *order, uint32_t splits)
{
    uint64_t free_ns[128] = {0};
    uint64_t end_ns = 0;
    uint64_t partial_rows = 0;
    uint32_t n_units = r->device.resident_units;
    ck_assert_uint_le(n_units, 128);
    if (order->n_items == 0)
        return 0;
    for (uint32_t i = 0; i < order->n_items; i++) {
        const struct mla_abi_tile *tile = &order->tiles[order->items[i].tile];
        uint32_t most = div_up(tile->pages, r->device.min_pages_per_split);
        uint32_t n = splits < most ? splits : most;
        n = n < 1 ? 1 : n;
        for (uint32_t k = 0; k < n; k++) {
            uint64_t ns = (uint64_t)r->costs.fill_ns + r->costs.drain_ns + (n > 1 ? r->costs.partial_ns : 0);
            uint32_t pages = tile->pages / n + (k < tile->pages % n);
            uint32_t units = div_up(tile->rows, r->device.rows_per_unit);
            ns += (uint64_t)pages * r->costs.page_ns;
            uint64_t start_ns[128];
            memcpy(start_ns, free_ns, sizeof(start_ns));
            for (uint32_t u = 0; u < units; u++) {
                uint32_t first = 0;
                for (uint32_t v = 1; v < n_units; v++)
                    if (start_ns[v] < start_ns[first])
                        first = v;
                free_ns[first] = start_ns[first] + ns;
                start_ns[first] = UINT64_MAX; /* an item's units are different units */
                end_ns = free_ns[first] > end_ns ? free_ns[first] : end_ns;
            }
        }
        partial_rows += n > 1 ? (uint64_t)n * tile->rows : 0;
    }
    uint64_t reduce_ns = 0;
    if (partial_rows > 0)
        reduce_ns = (uint64_t)r->costs.reduce_launch_ns + r->costs.reduce_fixed_ns +
                    partial_rows * MLA_ABI_PARTIAL_ROW_BYTES * 1000 / r->costs.reduce_bytes_per_us;
    return r->costs.launch_ns + end_ns + reduce_ns;
}

static uint64_t predicted(struct plan_request request, enum plan_policy policy)
{
    struct test_plan built;
    request.policy = policy;
    test_plan_make(&request, &built);
    uint64_t ns = built.plan.predicted_ns;
    test_plan_free(&built);
    return ns;
}

/* No plan can be faster by the model: all units busy with the unsplit work from begin to end, and the least time of the
 * tile that takes longest when it is cut as finely as the device allows. */
static uint64_t lower_bound_ns(const struct plan_request *r)
{
    uint64_t work = 0;
    uint64_t longest = 0;
    uint64_t fixed_ns = (uint64_t)r->costs.fill_ns + r->costs.drain_ns;
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        for (uint32_t s = r->jobs[j].first_seq; s < r->jobs[j].first_seq + r->jobs[j].n_seqs; s++) {
            uint32_t rows = r->seqs[s].q_len * r->heads;
            for (uint32_t row = 0; row < rows; row += r->tile_rows) {
                uint32_t n = rows - row < r->tile_rows ? rows - row : r->tile_rows;
                uint32_t pages =
                    plan_visible_pages(r->jobs[j].mask, r->seqs[s].q_len, r->seqs[s].kv_len, (row + n - 1) / r->heads);
                uint32_t pieces = div_up(pages, r->device.min_pages_per_split);
                uint64_t piece_ns =
                    fixed_ns + (uint64_t)(pieces > 1 ? div_up(pages, pieces) : pages) * r->costs.page_ns;
                work += (fixed_ns + (uint64_t)pages * r->costs.page_ns) * div_up(n, r->device.rows_per_unit);
                longest = piece_ns > longest ? piece_ns : longest;
            }
        }
    }
    uint64_t even = work / r->device.resident_units;
    return r->costs.launch_ns + (even > longest ? even : longest);
}

START_TEST(balanced_is_near_the_best)
{
    static const uint32_t splits[] = {2, 3, 4, 5, 6, 8, 11, 16, 22, 33, 44, 66};
    struct test_random random = {.state = 1000 + (uint64_t)_i};
    for (int round = 0; round < 250; round++) {
        struct test_ragged ragged;
        test_ragged_make(&random, &ragged);
        for (uint32_t j = 0; j < ragged.request.n_jobs; j++)
            ragged.jobs[j].batch_invariant = false;
        uint64_t balanced = predicted(ragged.request, PLAN_BALANCED);
        uint64_t seed = predicted(ragged.request, PLAN_SEED);
        uint64_t automatic = predicted(ragged.request, PLAN_AUTO);
        struct test_plan built;
        ragged.request.policy = PLAN_UNSPLIT;
        test_plan_make(&ragged.request, &built);
        uint64_t unsplit = built.plan.predicted_ns;
        bool near = balanced * 100 <= lower_bound_ns(&ragged.request) * 110;
        if (!near || built.plan.n_items <= SIMULATED_ITEMS)
            ck_assert_uint_eq(unsplit, simulated_ns(&ragged.request, &built.plan, 1));
        uint64_t best = unsplit < seed ? unsplit : seed;
        ck_assert_uint_eq(automatic, best < balanced ? best : balanced);
        ck_assert_uint_le(balanced, unsplit);
        for (size_t i = 0; !near && i < sizeof(splits) / sizeof(splits[0]); i++) {
            uint64_t uniform = simulated_ns(&ragged.request, &built.plan, splits[i]);
            best = uniform < best ? uniform : best;
        }
        test_plan_free(&built);
        ck_assert_msg(near || balanced * 100 <= best * 110,
                      "balanced %llu ns, best uniform %llu ns, lower bound %llu ns", (unsigned long long)balanced,
                      (unsigned long long)best, (unsigned long long)lower_bound_ns(&ragged.request));
    }
}
END_TEST

static void hash_words(uint64_t *hash, const void *words, size_t n)
{
    const uint32_t *word = words;
    for (size_t i = 0; i < n; i++)
        *hash = (*hash ^ word[i]) * UINT64_C(0x100000001b3);
}

static void hash_plan(uint64_t *hash, const struct plan_request *request)
{
    struct test_plan built;
    int rc = test_plan_try(request, &built);
    const struct plan *p = &built.plan;
    hash_words(hash, &rc, 1);
    if (rc == 0) {
        const uint32_t facts[] = {p->n_tiles, p->n_items,      p->n_reduces, p->max_splits,         p->item_units,
                                  p->waves,   p->partial_rows, p->chosen,    (uint32_t)p->row_slots};
        hash_words(hash, facts, sizeof(facts) / sizeof(facts[0]));
        hash_words(hash, p->tiles, p->n_tiles * sizeof(*p->tiles) / sizeof(uint32_t));
        hash_words(hash, p->items, p->n_items * sizeof(*p->items) / sizeof(uint32_t));
        hash_words(hash, p->reduces, p->n_reduces * sizeof(*p->reduces) / sizeof(uint32_t));
    }
    test_plan_free(&built);
}

static uint64_t small_workspace(struct test_random *random)
{
    return test_random_below(random, 2) ? UINT64_MAX : (uint64_t)test_random_below(random, 1u << 26);
}

static void hash_ragged(struct test_random *random, uint64_t *hash)
{
    struct test_ragged ragged;
    test_ragged_make(random, &ragged);
    ragged.request.workspace_bytes_max = small_workspace(random);
    if (test_random_below(random, 4) == 0)
        ragged.request.device.max_pages_per_item =
            ragged.request.device.min_pages_per_split + test_random_below(random, 100);
    if (test_random_below(random, 8) == 0)
        ragged.request.splits = 1 + test_random_below(random, 40);
    hash_plan(hash, &ragged.request);
}

/* Batches of one or two lengths, of which many tiles are alike. */
static void hash_alike(struct test_random *random, uint64_t *hash)
{
    static const char *const presets[] = {"h200", "reference", "sm90-96", "sm90-64", "sm90-32"};
    static const uint32_t q_lens[] = {1, 1, 2, 3, 4, 8};
    struct test_shape shape;
    uint32_t batch = 1 + test_random_below(random, 1u << test_random_below(random, 11));
    uint32_t longest = 1u << (8 + test_random_below(random, 10));
    test_shape_make(&shape, presets[test_random_below(random, 5)], 64 + test_random_below(random, 65), batch,
                    q_lens[test_random_below(random, 6)], test_random_below(random, longest), PLAN_AUTO);
    uint32_t other = test_random_below(random, longest), every = 1 + test_random_below(random, 4);
    for (uint32_t i = 0; every > 1 && i < batch; i += every)
        shape.seqs[i].kv_len = other;
    shape.request.workspace_bytes_max = small_workspace(random);
    shape.request.device.max_pages_per_item = test_random_below(random, 2) ? 1024 : 0;
    shape.request.device.min_pages_per_split = 1 + test_random_below(random, 64);
    shape.job.batch_invariant = test_random_below(random, 2);
    hash_plan(hash, &shape.request);
}

/* Few short sequences: how short their items may be says more than how much there is to do. */
static void hash_few(struct test_random *random, uint64_t *hash)
{
    struct test_shape shape;
    uint32_t batch = 1 + test_random_below(random, 8);
    test_shape_make(&shape, "sm90-64", 1 + test_random_below(random, 128), batch, 1, 0, PLAN_AUTO);
    for (uint32_t i = 0; i < batch; i++)
        shape.seqs[i].kv_len = test_random_below(random, 8192);
    shape.request.device.min_pages_per_split = 1 + test_random_below(random, 64);
    hash_plan(hash, &shape.request);
}

/* Plans are the same on every machine, and a change that is for speed leaves them as they are. One that is for better
 * plans has another number here. */
START_TEST(plans_stay_as_they_are)
{
    struct test_random random = {.state = 77};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int round = 0; round < 600; round++) {
        hash_ragged(&random, &hash);
        hash_alike(&random, &hash);
        hash_few(&random, &hash);
    }
    ck_assert_uint_eq(hash, UINT64_C(0x9844fd602505a736));
}
END_TEST

MLA_SUITE(plan_random)
{
    TCase *tc = mla_tcase_timeout(suite, "random", 120);
    tcase_add_loop_test(tc, every_plan_is_valid, 0, 8);
    tcase_add_loop_test(tc, balanced_is_near_the_best, 0, 8);
    tcase_add_test(tc, plans_stay_as_they_are);
}
