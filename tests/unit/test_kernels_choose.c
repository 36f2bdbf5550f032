/* Which of several kinds of kernels takes a launch: pure, by the shape alone. */
#include <string.h>

#include "kernels/host/internal.h"
#include "kernels/plan/kinds.h"
#include "tests/support/check_main.h"
#include "tests/support/prng.h"

#define SEQS_MAX 64u

static const struct mla_kernels_facts first = {
    .device = {.rows_per_unit = 128, .ctas_per_unit = 2, .resident_units = 66},
    .costs = {.page_ns = 1300},
    .tile_rows = 256};
static const struct mla_kernels_facts few = {.device = {.rows_per_unit = 64, .ctas_per_unit = 1, .resident_units = 132},
                                             .costs = {.page_ns = 1300},
                                             .tile_rows = 256};

static bool prefers(const struct mla_kernels_facts *one, const struct mla_kernels_facts *other,
                    const struct plan_request *request)
{
    const struct mla_kernels_facts *kinds[] = {one, other};
    return kernels_choose(kinds, 2, request) == 1;
}

static bool uniform(uint32_t heads, uint32_t q_len, uint32_t kv_len)
{
    struct plan_seq seqs[4];
    struct plan_job job = {.n_seqs = 4};
    struct plan_request request = {.heads = heads, .jobs = &job, .seqs = seqs, .n_jobs = 1, .n_seqs = 4};
    for (int s = 0; s < 4; s++)
        seqs[s] = (struct plan_seq){q_len, kv_len};
    return prefers(&first, &few, &request);
}

/* Full units are a tie, and ties are the first kernels'. */
START_TEST(by_rows)
{
    static const struct {
        uint32_t heads, q_len;
        bool few;
    } shapes[] = {{12, 1, true},   {12, 4, true}, {12, 5, true},  {12, 6, false}, {12, 10, false},
                  {12, 11, true},  {16, 4, true}, {24, 1, true},  {24, 4, false}, {24, 6, true},
                  {48, 1, true},   {48, 4, true}, {96, 1, false}, {96, 4, false}, {128, 1, false},
                  {128, 4, false}, {1, 64, true}, {1, 65, false}, {1, 0, false}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        ck_assert_msg(uniform(shapes[i].heads, shapes[i].q_len, 4096) == shapes[i].few, "%u heads, %u queries",
                      shapes[i].heads, shapes[i].q_len);
    ck_assert(!uniform(12, 1, 0)); /* nothing to read */
    ck_assert(uniform(12, 1, 1));
    ck_assert(uniform(128, 33554431, 0xffffffff) == false); /* no overflow decides */
}
END_TEST

/* 5 % is the least gain; costs and units are those of the facts. */
START_TEST(by_costs)
{
    struct mla_kernels_facts other = few;
    struct plan_seq seq = {1, 6400};
    struct plan_job job = {.n_seqs = 1};
    struct plan_request request = {.heads = 12, .jobs = &job, .seqs = &seq, .n_jobs = 1, .n_seqs = 1};
    other.costs.page_ns = 2469; /* of 2600 */
    ck_assert(prefers(&first, &other, &request));
    other.costs.page_ns = 2471;
    ck_assert(!prefers(&first, &other, &request));
    other = few;
    other.device.resident_units = 69;
    ck_assert(!prefers(&first, &other, &request));
    other.device.resident_units = 70;
    ck_assert(prefers(&first, &other, &request));
}
END_TEST

/* Sequences count by their pages; of parts of jobs, only their rows do. */
START_TEST(by_all_sequences)
{
    struct plan_seq seqs[] = {{1, 64}, {8, 6400}};
    struct plan_job job = {.n_seqs = 2};
    struct plan_request request = {.heads = 16, .jobs = &job, .seqs = seqs, .n_jobs = 1, .n_seqs = 2};
    ck_assert(!prefers(&first, &few, &request)); /* 128 rows of 100 pages, 16 rows of one */
    job.n_rows = 16;
    ck_assert(prefers(&first, &few, &request));
    job.skip_rows = 16;
    job.n_rows = 0;
    ck_assert(!prefers(&first, &few, &request));
    job.n_rows = 64;
    ck_assert(prefers(&first, &few, &request));
    job = (struct plan_job){.n_seqs = 2};
    seqs[0].kv_len = 640; /* (10 + 2 * 100) of (20 + 2 * 100): 95.5 % */
    ck_assert(!prefers(&first, &few, &request));
    seqs[0].kv_len = 768; /* 94.6 % */
    ck_assert(prefers(&first, &few, &request));
}
END_TEST

/* The kinds of Hopper: each shape takes what fits its rows best. */
static const struct mla_kernels_facts hopper[] = {
    {.device = {.rows_per_unit = 128, .resident_units = 66}, .costs = {.page_ns = 1195}, .tile_rows = 256},
    {.device = {.rows_per_unit = 96, .resident_units = 66}, .costs = {.page_ns = 1120}, .tile_rows = 256},
    {.device = {.rows_per_unit = 64, .resident_units = 132}, .costs = {.page_ns = 1400}, .tile_rows = 256},
    {.device = {.rows_per_unit = 48, .resident_units = 132}, .costs = {.page_ns = 1310}, .tile_rows = 256},
    {.device = {.rows_per_unit = 32, .resident_units = 132}, .costs = {.page_ns = 1150}, .tile_rows = 256}};
enum { KINDS = sizeof(hopper) / sizeof(hopper[0]) };

static size_t choose(const struct plan_request *request)
{
    const struct mla_kernels_facts *kinds[KINDS];
    for (size_t i = 0; i < KINDS; i++)
        kinds[i] = &hopper[i];
    return kernels_choose(kinds, KINDS, request);
}

/* What mlactl plan and other users of the planner alone get. */
static size_t planner_chooses(const struct plan_request *request)
{
    const struct plan_kind *kinds;
    size_t n = plan_kinds(&kinds);
    return plan_choose(kinds, n, request);
}

START_TEST(of_many)
{
    static const struct {
        uint32_t heads, q_len, rows_per_unit;
    } shapes[] = {{12, 1, 32}, {32, 1, 32}, {33, 1, 48},  {12, 4, 48},  {48, 1, 48},  {49, 1, 64},
                  {64, 1, 64}, {65, 1, 96}, {96, 1, 96},  {24, 4, 96},  {97, 1, 128}, {128, 1, 128},
                  {24, 8, 64}, {48, 4, 64}, {96, 3, 128}, {96, 4, 128}, {96, 8, 128}, {128, 4, 128}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct plan_seq seq = {shapes[i].q_len, 10000};
        struct plan_job job = {.n_seqs = 1};
        struct plan_request request = {.heads = shapes[i].heads, .jobs = &job, .seqs = &seq, .n_jobs = 1, .n_seqs = 1};
        ck_assert_msg(hopper[choose(&request)].device.rows_per_unit == shapes[i].rows_per_unit,
                      "%u heads, %u queries: %u", shapes[i].heads, shapes[i].q_len,
                      hopper[choose(&request)].device.rows_per_unit);
        ck_assert_uint_eq(planner_chooses(&request), choose(&request));
    }
}
END_TEST

/* A batch-invariant job takes with others what it takes alone, unless it meets one that would take the other kind. */
START_TEST(batch_invariant)
{
    struct prng prng = {14};
    uint32_t kept[2] = {0, 0};
    for (int round = 0; round < 20000; round++) {
        struct plan_seq seqs[SEQS_MAX];
        struct plan_job jobs[4];
        uint32_t n_jobs = 1 + prng_below(&prng, 4), at = 0;
        struct plan_request request = {.heads = 1 + prng_below(&prng, 128), .jobs = jobs, .seqs = seqs};
        bool alone[2] = {false, false};
        size_t kind = KINDS, kinds = 0; /* of many, that the batch-invariant ones take alone */
        for (uint32_t j = 0; j < n_jobs; j++) {
            jobs[j] = (struct plan_job){.first_seq = at, .n_seqs = prng_below(&prng, 8)};
            jobs[j].batch_invariant = prng_below(&prng, 3) == 0;
            for (uint32_t s = 0; s < jobs[j].n_seqs; s++)
                seqs[at++] = (struct plan_seq){prng_below(&prng, 8), prng_below(&prng, 10000)};
            struct plan_job one = jobs[j];
            one.first_seq = 0;
            struct plan_request r = request;
            r.jobs = &one;
            r.seqs = seqs + jobs[j].first_seq;
            r.n_jobs = 1;
            r.n_seqs = one.n_seqs;
            if (one.batch_invariant) {
                alone[prefers(&first, &few, &r)] = true;
                kinds += kind != choose(&r);
                kind = choose(&r);
            }
            if (prng_below(&prng, 4) == 0) { /* and in every part of it */
                jobs[j].skip_rows = prng_below(&prng, 64);
                jobs[j].n_rows = prng_below(&prng, 64);
            }
        }
        request.n_jobs = n_jobs;
        request.n_seqs = at;
        ck_assert_uint_eq(choose(&request), planner_chooses(&request));
        if (kinds != 0)
            ck_assert_uint_eq(choose(&request), kinds == 1 ? kind : 0);
        if (alone[0] == alone[1])
            continue;
        ck_assert_int_eq(prefers(&first, &few, &request), alone[1]);
        kept[alone[1]]++;
    }
    ck_assert_uint_gt(kept[0], 1000);
    ck_assert_uint_gt(kept[1], 1000);
}
END_TEST

/* The choice needs kernels to choose from, and follows a plan by its units. */
START_TEST(handles)
{
    struct mla_kernels one = {.facts = first}, two = {.facts = few};
    struct plan_seq seq = {1, 6400};
    struct plan_job job = {.n_seqs = 1};
    struct plan_request request = {.heads = 12, .jobs = &job, .seqs = &seq, .n_jobs = 1, .n_seqs = 1};
    struct plan plan = {.rows_per_unit = 64};
    ck_assert_ptr_null(mla_kernels_few_rows(&one));
    ck_assert_ptr_eq(mla_kernels_for(&one, &request), &one);
    ck_assert_ptr_eq(mla_kernels_of_plan(&one, &plan), &one);
    one.few_rows = &two;
    ck_assert_ptr_eq(mla_kernels_few_rows(&one), &two);
    ck_assert_ptr_eq(mla_kernels_for(&one, &request), &two);
    ck_assert_ptr_eq(mla_kernels_of_plan(&one, &plan), &two);
    request.heads = 128;
    plan.rows_per_unit = 128;
    ck_assert_ptr_eq(mla_kernels_for(&one, &request), &one);
    ck_assert_ptr_eq(mla_kernels_of_plan(&one, &plan), &one);
}
END_TEST

/* The kinds that the planner knows by itself are those of the manifest beside it. */
START_TEST(kinds_are_the_manifests)
{
    static struct kernels_manifest manifest;
    const struct plan_kind *kinds;
    char why[512] = "";
    size_t n = plan_kinds(&kinds), i = 0;
    ck_assert_uint_le(n, PLAN_KINDS_MAX);
    ck_assert_msg(kernels_manifest_read(MLA_TEST_MANIFEST, &manifest, why, sizeof(why)) == 0, "%s", why);
    const struct kernels_section *s = kernels_manifest_find(&manifest, "sm90");
    for (; s != NULL; s = s->few_rows[0] != '\0' ? kernels_manifest_find(&manifest, s->few_rows) : NULL) {
        struct plan_device device;
        struct plan_costs costs;
        ck_assert_uint_lt(i, n);
        ck_assert_str_eq(kinds[i].name, s->name);
        ck_assert_int_eq(plan_device_preset(s->name, &device, &costs), 0);
        ck_assert_uint_eq(device.rows_per_unit, s->rows_per_unit);
        ck_assert_uint_eq(device.ctas_per_unit, s->ctas_per_unit);
        ck_assert_uint_eq(device.resident_units, 132 / s->ctas_per_unit);
        ck_assert_uint_eq(device.min_pages_per_split, s->min_pages_per_split);
        ck_assert_uint_eq(device.max_pages_per_item, s->max_pages_per_item);
        ck_assert_uint_eq(kinds[i].tile_rows, s->tile_rows);
        ck_assert_msg(memcmp(&costs, &s->costs, sizeof(costs)) == 0, "costs of %s", s->name);
        ck_assert_uint_eq(costs.page_ns, hopper[i].costs.page_ns);
        ck_assert_uint_eq(device.rows_per_unit, hopper[i++].device.rows_per_unit);
    }
    ck_assert_uint_eq(i, n);
}
END_TEST

MLA_SUITE(kernels_choose)
{
    TCase *tc = mla_tcase(suite, "choose");
    tcase_add_test(tc, by_rows);
    tcase_add_test(tc, by_costs);
    tcase_add_test(tc, by_all_sequences);
    tcase_add_test(tc, of_many);
    tcase_add_test(tc, batch_invariant);
    tcase_add_test(tc, handles);
    tcase_add_test(tc, kinds_are_the_manifests);
}
