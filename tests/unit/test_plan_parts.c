/* Parts of a job: the tiles of all parts together are those of the whole, whatever it is cut by. */
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/unit/test_plan_support.h"

/* The part's tiles stand in the whole's, from *at on. */
static void must_follow(const struct plan *whole, const struct plan *part, uint32_t *at)
{
    for (uint32_t t = 0; t < part->n_tiles; t++, ++*at) {
        ck_assert_uint_lt(*at, whole->n_tiles);
        const struct mla_abi_tile *a = &whole->tiles[*at], *b = &part->tiles[t];
        ck_assert(a->seq == b->seq && a->first_row == b->first_row && a->rows == b->rows && a->pages == b->pages);
    }
}

START_TEST(parts_cover_a_job_exactly_once)
{
    struct test_random random = {.state = 77 + (uint64_t)_i};
    for (int round = 0; round < 200; round++) {
        struct test_ragged ragged;
        test_ragged_make(&random, &ragged);
        struct plan_request request = ragged.request;
        struct plan_job job = {.n_seqs = request.n_seqs, .mask = MLA_ABI_MASK_CAUSAL};
        request.jobs = &job;
        request.n_jobs = 1;
        uint64_t load_ns, total_ns = 0, part_max_ns = UINT64_C(1) << test_random_below(&random, 28);
        struct test_plan whole, part;
        test_plan_make(&request, &whole);
        uint32_t at = 0, n = plan_parts(&request, part_max_ns, &load_ns);
        ck_assert_uint_le(n, whole.plan.n_tiles > 0 ? whole.plan.n_tiles : 1);
        for (uint32_t k = 0; k < n; k++) {
            plan_part_rows(&request, part_max_ns, k, &job.skip_rows, &job.n_rows);
            ck_assert((job.n_rows == 0) == (k == n - 1));
            test_plan_make(&request, &part);
            ck_assert(part.plan.n_tiles > 0 || whole.plan.n_tiles == 0);
            must_follow(&whole.plan, &part.plan, &at);
            uint64_t unit_ns = 0;
            for (uint32_t t = 0; t < part.plan.n_tiles; t++)
                unit_ns += (uint64_t)((part.plan.tiles[t].rows + request.device.rows_per_unit - 1) /
                                      request.device.rows_per_unit) *
                           (request.costs.fill_ns + request.costs.drain_ns +
                            (uint64_t)part.plan.tiles[t].pages * request.costs.page_ns);
            ck_assert(part.plan.n_tiles <= 1 || unit_ns <= part_max_ns * request.device.resident_units);
            total_ns += unit_ns;
            test_plan_free(&part);
        }
        ck_assert_uint_eq(at, whole.plan.n_tiles);
        ck_assert_uint_eq((total_ns + request.device.resident_units - 1) / request.device.resident_units, load_ns);
        test_plan_free(&whole);
    }
}
END_TEST

/* Any rows, not only those between tiles. */
START_TEST(any_rows_of_a_job_can_be_planned)
{
    struct test_random random = {.state = 5};
    for (int round = 0; round < 500; round++) {
        struct test_ragged ragged;
        test_ragged_make(&random, &ragged);
        uint64_t useful = 0;
        for (uint32_t j = 0; j < ragged.request.n_jobs; j++) {
            struct plan_job *job = &ragged.jobs[j];
            uint64_t rows = 0;
            for (uint32_t s = 0; s < job->n_seqs; s++)
                rows += (uint64_t)ragged.seqs[job->first_seq + s].q_len * ragged.request.heads;
            job->skip_rows = test_random_below(&random, (uint32_t)rows + 2);
            job->n_rows = test_random_below(&random, 3) == 0 ? 0 : test_random_below(&random, (uint32_t)rows + 2);
            uint64_t left = job->skip_rows < rows ? rows - job->skip_rows : 0;
            useful += job->n_rows != 0 && job->n_rows < left ? job->n_rows : left;
        }
        struct test_plan built;
        test_plan_make(&ragged.request, &built);
        ck_assert_uint_eq(built.plan.useful_rows, useful);
        test_plan_free(&built);
    }
}
END_TEST

/* Where one sequence is far longer than the rest, its part has nearly all partials: the average of parts says little.
 */
START_TEST(partials_of_the_part_that_has_most)
{
    struct test_random random = {.state = 31};
    uint32_t uneven = 0;
    for (int round = 0; round < 300; round++) {
        struct test_ragged ragged;
        test_ragged_make(&random, &ragged);
        struct plan_request request = ragged.request;
        struct plan_job job = {.n_seqs = request.n_seqs, .mask = MLA_ABI_MASK_CAUSAL};
        request.jobs = &job;
        request.n_jobs = 1;
        request.splits = 0;
        request.policy = PLAN_UNSPLIT;
        request.workspace_bytes_max = UINT64_MAX;
        request.device.max_pages_per_item = request.device.min_pages_per_split;
        uint64_t load_ns, most = 0, sum = 0, part_max_ns = UINT64_C(1) << test_random_below(&random, 28);
        uint32_t n = plan_parts(&request, part_max_ns, &load_ns);
        uint64_t told = plan_least_partial_bytes(&request, part_max_ns);
        uint64_t whole = plan_least_partial_bytes(&request, UINT64_MAX);
        for (uint32_t k = 0; k < n; k++) {
            struct test_plan part;
            plan_part_rows(&request, part_max_ns, k, &job.skip_rows, &job.n_rows);
            test_plan_make(&request, &part);
            sum += part.plan.workspace_bytes;
            most = part.plan.workspace_bytes > most ? part.plan.workspace_bytes : most;
            test_plan_free(&part);
        }
        ck_assert_uint_eq(told, most);
        ck_assert_uint_eq(whole, sum);
        uneven += most > sum / n * 2;
    }
    ck_assert_uint_gt(uneven, 0);
}
END_TEST

/* A part launched by itself keeps to its bound by the model, with what a launch costs beside it. */
START_TEST(a_part_is_predicted_within_its_bound)
{
    struct test_shape shape;
    test_shape_make(&shape, "h200", 96, 64, 4, 131072, PLAN_AUTO);
    shape.request.costs.fill_ns = 1000;
    shape.request.costs.page_ns = 1086;
    shape.request.costs.drain_ns = 500;
    uint64_t load_ns, part_max_ns = 1500000; /* 192 units of 2,048 pages on 66: 6.5 ms */
    uint32_t n = plan_parts(&shape.request, part_max_ns, &load_ns);
    ck_assert_uint_eq(n, 5);
    for (uint32_t k = 0; k < n; k++) {
        struct test_plan built;
        plan_part_rows(&shape.request, part_max_ns, k, &shape.job.skip_rows, &shape.job.n_rows);
        test_plan_make(&shape.request, &built);
        ck_assert_uint_le(built.plan.predicted_ns, 2000000);
        test_plan_free(&built);
    }
}
END_TEST

MLA_SUITE(plan_parts)
{
    TCase *tc = mla_tcase(suite, "parts");
    tcase_add_loop_test(tc, parts_cover_a_job_exactly_once, 0, 4);
    tcase_add_test(tc, any_rows_of_a_job_can_be_planned);
    tcase_add_test(tc, partials_of_the_part_that_has_most);
    tcase_add_test(tc, a_part_is_predicted_within_its_bound);
}
