/* Plans that are kept: each is the one that would be made anew, and they stand in nobody's way. So do pieces of memory
 * that are kept for jobs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "daemon/app/state.h"
#include "tests/support/check_main.h"
#include "tests/support/prng.h"

#define SEQS_MAX 4u
#define SEQS_BIG 2000u

/* ---- a backend that has so much memory and computes nothing ---- */

struct backend {
    struct be_facts facts;
    size_t left;
    unsigned takes;
};

static const struct be_facts *facts_of(const struct backend *be)
{
    return &be->facts;
}

static void *take(struct backend *be, size_t bytes, uint64_t *address)
{
    size_t *memory = bytes <= be->left ? calloc(1, sizeof(*memory) + bytes) : NULL;
    if (memory == NULL)
        return NULL;
    *memory = bytes;
    be->left -= bytes;
    be->takes++;
    *address = (uint64_t)(uintptr_t)(memory + 1);
    return memory + 1;
}

static void give(struct backend *be, void *memory)
{
    size_t *whole = (size_t *)memory - 1;
    be->left += *whole;
    free(whole);
}

static uint64_t tokens_of(const struct plan_request *request)
{
    uint64_t tokens = 0;
    for (uint32_t s = 0; s < request->n_seqs; s++)
        tokens += request->seqs[s].q_len;
    return tokens;
}

/* Two kinds of kernels, by what is in the request. */
static void fit(const struct backend *be, struct plan_request *request)
{
    (void)be;
    const char *kind = request->heads * tokens_of(request) < 200 ? "sm90-64" : "h200";
    ck_assert_int_eq(plan_device_preset(kind, &request->device, &request->costs), 0);
}

/* Now and then so much that little is left, or more than there is. */
static uint64_t scratch_bytes(const struct backend *be, const struct plan_request *request)
{
    uint64_t tokens = tokens_of(request);
    return tokens == 10 ? be->facts.workspace_bytes - (1u << 20) : tokens == 18 ? UINT64_MAX : 1u << 20;
}

static const struct be_ops ops = {.name = "of the test",
                                  .facts = facts_of,
                                  .host_alloc = take,
                                  .host_free = give,
                                  .fit = fit,
                                  .scratch_bytes = scratch_bytes};

static struct app *new_app(struct backend *be, size_t bytes)
{
    struct app *app = calloc(1, sizeof(*app));
    ck_assert_ptr_nonnull(app);
    memset(be, 0, sizeof(*be));
    ck_assert_int_eq(plan_device_preset("h200", &be->facts.device, &be->facts.costs), 0);
    be->facts.workspace_bytes = 64u << 20;
    be->facts.tile_rows = 256;
    be->left = bytes;
    app->be = (struct be){&ops, be};
    return app;
}

static void free_app(struct app *app, const struct backend *be, size_t bytes)
{
    plans_free(app);
    ck_assert_uint_eq(be->left, bytes);
    for (unsigned i = 0; i < SCHED_BATCHES; i++)
        free(app->batches[i].scratch);
    free(app->probe.scratch);
    free(app);
}

static struct plan_request request_of(const struct backend *be, const struct plan_job *jobs, uint32_t n_jobs,
                                      const struct plan_seq *seqs, uint32_t n_seqs)
{
    return (struct plan_request){.device = be->facts.device,
                                 .costs = be->facts.costs,
                                 .policy = PLAN_AUTO,
                                 .tile_rows = be->facts.tile_rows,
                                 .heads = 16,
                                 .jobs = jobs,
                                 .seqs = seqs,
                                 .n_jobs = n_jobs,
                                 .n_seqs = n_seqs};
}

/* ---- which plan ---- */

struct fresh {
    struct mla_abi_tile tiles[512];
    struct mla_abi_item items[4096];
    struct mla_abi_reduce reduces[512];
    uint64_t scratch[1u << 16];
};

static void same_as_fresh(const struct plan_request *request, const struct plan *plan, struct fresh *f)
{
    struct plan own = {.tiles = f->tiles, .items = f->items, .reduces = f->reduces, .scratch = f->scratch};
    ck_assert_int_eq(plan_bound(request, &own.capacity), 0);
    ck_assert_uint_le(own.capacity.tiles, 512);
    ck_assert_uint_le(own.capacity.items, 4096);
    ck_assert_uint_le(own.capacity.reduces, 512);
    ck_assert_uint_le(own.capacity.scratch_bytes, sizeof(f->scratch));
    ck_assert_int_eq(plan_build(request, &own), 0);
    ck_assert_uint_eq(plan->n_tiles, own.n_tiles);
    ck_assert_uint_eq(plan->n_items, own.n_items);
    ck_assert_uint_eq(plan->n_reduces, own.n_reduces);
    ck_assert_uint_eq(plan->partial_rows, own.partial_rows);
    ck_assert_uint_eq(plan->predicted_ns, own.predicted_ns);
    ck_assert_uint_eq(plan->rows_per_unit, own.rows_per_unit);
    ck_assert_mem_eq(plan->tiles, own.tiles, own.n_tiles * sizeof(*own.tiles));
    ck_assert_mem_eq(plan->items, own.items, own.n_items * sizeof(*own.items));
    ck_assert_mem_eq(plan->reduces, own.reduces, own.n_reduces * sizeof(*own.reduces));
}

static uint32_t one_of(struct prng *prng, const uint32_t *values, uint32_t n)
{
    return values[prng_below(prng, n)];
}

/* Requests that differ in little, so that many have been seen before and many nearly. */
static void draw(struct prng *prng, struct plan_request *r, struct plan_job *jobs, struct plan_seq *seqs)
{
    static const uint32_t q_lens[] = {1, 8}, kv_lens[] = {0, 20000, 20100}, heads[] = {16, 96};
    uint32_t split = prng_below(prng, SEQS_MAX - 1) + 1;
    r->heads = one_of(prng, heads, 2);
    r->n_jobs = 1 + prng_below(prng, 2);
    r->n_seqs = 2 + prng_below(prng, SEQS_MAX - 1);
    if (split >= r->n_seqs)
        split = r->n_seqs - 1;
    for (uint32_t s = 0; s < r->n_seqs; s++)
        seqs[s] = (struct plan_seq){one_of(prng, q_lens, 2), one_of(prng, kv_lens, 3)};
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        uint32_t first = j == 0 ? 0 : split, end = j + 1 == r->n_jobs ? r->n_seqs : split;
        bool part = prng_below(prng, 4) == 0;
        jobs[j] = (struct plan_job){.first_seq = first,
                                    .n_seqs = end - first,
                                    .mask = prng_below(prng, 2) ? MLA_ABI_MASK_CAUSAL : MLA_ABI_MASK_NONE,
                                    .batch_invariant = prng_below(prng, 4) == 0,
                                    .skip_rows = part ? prng_below(prng, 2) * 8 : 0,
                                    .n_rows = part ? 8 : 0};
    }
}

/* With its kernels, their costs and the workspace that is left, whether it was there or not. A request that has none is
 * refused each time. */
START_TEST(each_is_as_made_anew)
{
    struct backend be;
    struct app *app = new_app(&be, 64u << 20);
    struct fresh *fresh = malloc(sizeof(*fresh));
    struct prng prng = {_i + 1};
    struct plan_job jobs[2];
    struct plan_seq seqs[SEQS_MAX];
    uint32_t kinds[2] = {0, 0}, refused = 0;
    ck_assert_ptr_nonnull(fresh);
    struct plan_request asked = request_of(&be, jobs, 0, seqs, 0);
    for (uint64_t i = 0; i < 4000; i++) {
        static const enum plan_policy policies[] = {PLAN_AUTO, PLAN_AUTO, PLAN_SEED, PLAN_BALANCED};
        struct app_batch *b = &app->batches[prng_below(&prng, SCHED_BATCHES)];
        if (i % 4 == 0) {
            asked = request_of(&be, jobs, 0, seqs, 0);
            draw(&prng, &asked, jobs, seqs);
        }
        asked.policy = policies[prng_below(&prng, 4)];
        struct plan_request r = asked;
        be_fit(&app->be, &r);
        int fits = be_workspace_for(&app->be, &r, &r.workspace_bytes_max);
        plans_let_go(b);
        struct plan_request given = asked;
        int rc = plans_get(app, b, &given);
        refused += rc != 0;
        if (rc == -ENOSPC) /* none is left, or batch-invariant jobs do not fit */
            continue;
        ck_assert_int_eq(rc, 0);
        ck_assert_int_eq(fits, 0);
        same_as_fresh(&r, &b->plan, fresh);
        ck_assert_uint_eq(b->resident_units, r.device.resident_units);
        kinds[b->plan.rows_per_unit == be.facts.device.rows_per_unit]++;
    }
    ck_assert_uint_lt(app->n_plans, app->n_plan_uses); /* some were there */
    ck_assert(kinds[0] > 100 && kinds[1] > 100 && refused > 100);
    free(fresh);
    free_app(app, &be, 64u << 20);
}
END_TEST

/* ---- memory ---- */

/* Many plans that differ, in memory for three of them: each is made, a batch's own stays meanwhile, and in the end all
 * of the memory is there for whoever asks. */
START_TEST(idle_ones_make_room)
{
    const size_t bytes = 1u << 20;
    struct backend be;
    struct app *app = new_app(&be, bytes);
    struct plan_seq *seqs = calloc(SEQS_BIG + 64, sizeof(*seqs));
    uint64_t address;
    ck_assert_ptr_nonnull(seqs);
    for (uint32_t s = 0; s < SEQS_BIG + 64; s++)
        seqs[s] = (struct plan_seq){1, 64};
    struct plan_job of_first = {.n_seqs = SEQS_BIG, .mask = MLA_ABI_MASK_CAUSAL};
    struct plan_request first = request_of(&be, &of_first, 1, seqs, SEQS_BIG);
    ck_assert_int_eq(plans_get(app, &app->batches[0], &first), 0);
    for (uint32_t i = 1; i < 64; i++) {
        struct plan_job job = {.n_seqs = SEQS_BIG + i, .mask = MLA_ABI_MASK_CAUSAL};
        struct plan_request r = request_of(&be, &job, 1, seqs, SEQS_BIG + i);
        plans_let_go(&app->batches[1]);
        ck_assert_int_eq(plans_get(app, &app->batches[1], &r), 0);
        ck_assert_int_eq(plan_check(&r, &app->batches[1].plan, NULL, 0), 0);
        ck_assert_int_eq(plan_check(&first, &app->batches[0].plan, NULL, 0), 0);
    }
    ck_assert_ptr_null(app_host_alloc(app, bytes, &address)); /* two are in use */
    plans_let_go(&app->batches[0]);
    plans_let_go(&app->batches[1]);
    void *all = app_host_alloc(app, bytes, &address);
    ck_assert_ptr_nonnull(all);
    be_host_free(&app->be, all);
    free(seqs);
    free_app(app, &be, bytes);
}
END_TEST

/* Jobs of three sizes, several at a time: the second round takes nothing. Others' need goes before what is kept. */
START_TEST(pieces_are_kept_and_make_room)
{
    static const size_t sizes[] = {8, 65, 64u << 10};
    const size_t bytes = 1u << 20;
    struct backend be;
    struct app *app = new_app(&be, bytes);
    uint64_t address[9], other;
    void *memory[9];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 9; i++) {
            memory[i] = host_take(app, sizes[i % 3], &address[i]);
            ck_assert_ptr_nonnull(memory[i]);
            ck_assert_uint_eq(address[i], (uint64_t)(uintptr_t)memory[i]);
            memset(memory[i], 0xa5, sizes[i % 3]);
        }
        for (int i = 0; i < 9; i++)
            host_give(app, memory[i], address[i], sizes[i % 3]);
        ck_assert_uint_eq(be.takes, 9);
    }
    ck_assert_uint_lt(be.left, bytes);
    void *all = app_host_alloc(app, bytes, &other);
    ck_assert_ptr_nonnull(all);
    be_host_free(&app->be, all);
    ck_assert(!host_pool_forget(app)); /* nothing is left there */
    free_app(app, &be, bytes);
}
END_TEST

/* Not more than a mebibyte, none that is large, and nothing of a device that is lost. */
START_TEST(pieces_are_kept_within_bounds)
{
    const size_t bytes = 64u << 20, piece = 64u << 10;
    struct backend be;
    struct app *app = new_app(&be, bytes);
    uint64_t address[40];
    void *memory[40];
    for (int i = 0; i < 40; i++)
        memory[i] = host_take(app, piece, &address[i]);
    for (int i = 0; i < 40; i++)
        host_give(app, memory[i], address[i], piece);
    ck_assert_uint_eq(be.left, bytes - (1u << 20));
    ck_assert(host_pool_forget(app));
    ck_assert_uint_eq(be.left, bytes);
    memory[0] = host_take(app, piece + 1, &address[0]);
    host_give(app, memory[0], address[0], piece + 1);
    ck_assert_uint_eq(be.left, bytes);
    memory[0] = host_take(app, 8, &address[0]);
    app->device_lost = true;
    host_give(app, memory[0], address[0], 8);
    host_give(app, NULL, 0, 8);
    free_app(app, &be, bytes);
}
END_TEST

/* ---- pieces in any order ---- */

struct piece {
    unsigned char *memory; /* NULL: none */
    uint64_t address;
    size_t bytes;
    unsigned char mark;
};

static void piece_give(struct app *app, struct piece *p)
{
    /* Whatever has been taken and given since. */
    ck_assert(p->memory[0] == p->mark && memcmp(p->memory, p->memory + 1, p->bytes - 1) == 0);
    host_give(app, p->memory, p->address, p->bytes);
#ifdef __SANITIZE_ADDRESS__ /* given back or kept, it is nobody's */
    ck_assert(__asan_address_is_poisoned(p->memory) && __asan_address_is_poisoned(p->memory + p->bytes - 1));
#endif
    p->memory = NULL;
}

/* Sizes below, at and above those of pieces, in so little memory that what is kept goes now and then, and in plenty:
 * who holds a piece holds it alone and whole, what does not fit is refused only with nothing kept, and in the end all
 * of it is back. */
START_TEST(pieces_in_any_order)
{
    const size_t bytes = _i == 0 ? 300u << 10 : 8u << 20;
    struct backend be;
    struct app *app = new_app(&be, bytes);
    struct prng prng = {(uint64_t)_i + 1};
    struct piece pieces[32] = {0};
    unsigned refused = 0, takes = 0;
    for (unsigned round = 0; round < 6000; round++) {
        struct piece *p = &pieces[prng_below(&prng, 32)];
        if (p->memory != NULL) {
            piece_give(app, p);
            continue;
        }
        p->bytes = ((size_t)32u << prng_below(&prng, 13)) + prng_below(&prng, 3) - 1;
        p->memory = host_take(app, p->bytes, &p->address);
        if (p->memory == NULL) {
            ck_assert_uint_eq(app->host_pool.kept_bytes, 0); /* nothing was kept from it */
            refused++;
            continue;
        }
        ck_assert_uint_eq(p->address, (uint64_t)(uintptr_t)p->memory);
        p->mark = (unsigned char)++takes;
        memset(p->memory, p->mark, p->bytes);
    }
    ck_assert_uint_lt(be.takes, takes); /* most were there */
    ck_assert((refused > 100) == (_i == 0));
    for (unsigned i = 0; i < 32; i++)
        if (pieces[i].memory != NULL)
            piece_give(app, &pieces[i]);
    host_pool_forget(app);
    free_app(app, &be, bytes);
}
END_TEST

MLA_SUITE(app_plans)
{
    TCase *tc = mla_tcase(suite, "plans");
    tcase_add_loop_test(tc, each_is_as_made_anew, 0, 2);
    tcase_add_test(tc, idle_ones_make_room);
    tcase_add_test(tc, pieces_are_kept_and_make_room);
    tcase_add_test(tc, pieces_are_kept_within_bounds);
    tcase_add_loop_test(tc, pieces_in_any_order, 0, 2);
}
