/* Random batches over the whole contract against float64, each named by its seed: Check's report of a failure says
 * "random_batch_of_seed:<seed>", and
 *     MLA_TEST_SEED=<seed> MLA_TEST_COUNT=1 backend_random
 * runs that batch alone. MLA_TEST_COUNT: how many batches (seed, seed + 1 ...; below 2^31). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

#define JOBS_MAX 4
#define SEQS_MAX 5

static uint32_t pick(struct prng *p, const uint32_t *from, uint32_t n)
{
    return from[prng_below(p, n)];
}
#define PICK(p, ...)                                                                                                   \
    pick(p, (const uint32_t[]){__VA_ARGS__}, (uint32_t)(sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)))

static bool chance(struct prng *p, uint32_t percent)
{
    return prng_below(p, 100) < percent;
}

static uint32_t random_length(struct prng *p)
{
    if (chance(p, 50))
        return PICK(p, 0, 1, 2, 16, 63, 64, 65, 127, 128, 129, 192, 256, 257);
    return prng_below(p, chance(p, 20) ? 900 : 300);
}

/* Scales of either sign and of several octaves; scores stay of a size that f32 resolves. */
static float random_scale(struct prng *p)
{
    float scale = (float)ldexp(0.5 + prng_unit(p), (int)prng_below(p, 4) - 2);
    return chance(p, 10) ? -scale : scale;
}

static void random_shape(struct prng *p, uint32_t heads, struct dc_seq *seqs, struct dc_shape *s)
{
    memset(s, 0, sizeof(*s));
    s->heads = heads;
    s->n_seqs = prng_below(p, SEQS_MAX + 1);
    s->seqs = seqs;
    s->kv_len = (enum dc_place)PICK(p, DC_ABSENT, DC_ABSENT, DC_HOST, DC_REGION);
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        seqs[i].q_len = chance(p, 10) ? 0 : 1 + prng_below(p, chance(p, 30) ? 12 : 4);
        seqs[i].kv_len = random_length(p);
        seqs[i].kv_len_max = seqs[i].kv_len;
        if (s->kv_len != DC_ABSENT)
            seqs[i].kv_len_max += PICK(p, 0, 0, 1, 16, 64, 200);
    }
    s->mask = PICK(p, MLA_MASK_NONE, MLA_MASK_CAUSAL, MLA_MASK_CAUSAL, MLA_MASK_VISIBLE);
    s->out_type = PICK(p, MLA_DTYPE_E4M3, MLA_DTYPE_BF16, MLA_DTYPE_F32);
    s->softmax_scale = random_scale(p) / 24;
    s->q_scale = random_scale(p);
    s->kv_scale = random_scale(p);
    s->out_scale = random_scale(p) / (chance(p, 20) ? 1024 : 64); /* some saturate */
    s->q_layout = (enum dc_layout)prng_below(p, DC_LAYOUTS);
    s->o_layout = (enum dc_layout)prng_below(p, DC_LAYOUTS);
    s->lse_layout = (enum dc_layout)prng_below(p, DC_LAYOUTS);
    s->split_rope = chance(p, 40);
    s->no_lse = chance(p, 15);
    s->user_status = chance(p, 50);
    s->batch_invariant = chance(p, 25);
    s->table = chance(p, 50) ? DC_HOST : DC_REGION;
    s->visible = chance(p, 50) ? DC_HOST : DC_REGION;
    s->row_stride = PICK(p, 0, 0, 592, 640, 1024);
    if (chance(p, 30))
        s->page_stride = 64 * (s->row_stride ? s->row_stride : 576) + PICK(p, 16, 4096, 36864);
    s->plane_offset = PICK(p, 0, 0, 16, 36864);
    s->pages_per_entry = PICK(p, 1, 1, 2, 3, 8);
    s->pages = chance(p, 25) ? DC_IDENTITY : DC_SHUFFLED;
    s->q_std = ldexp(1, (int)prng_below(p, 3) - 1);
    s->kv_mean = chance(p, 30) ? 0.5 : 0;
    s->seed = prng_u64(p);
    s->ref_head_step = heads > 24 ? 5 : 1;
}

/* NaN bytes in a few visible keys and rows of Q. */
static void sow_nan(struct prng *p, struct dc_job *j)
{
    for (uint32_t s = 0; s < j->shape.n_seqs; s++) {
        if (j->shape.seqs[s].kv_len > 0 && chance(p, 40))
            dc_key(j, s, prng_below(p, j->shape.seqs[s].kv_len))[prng_below(p, MLA_ABI_QK_DIM)] = PICK(p, 0x7f, 0xff);
        if (j->q_len[s] > 0 && chance(p, 40))
            *dc_q(j, s, prng_below(p, j->q_len[s]), prng_below(p, j->shape.heads), prng_below(p, MLA_ABI_QK_DIM)) =
                FP8_NAN;
    }
}

/* One fault in a sequence or two: an entry, a length or a count. */
static void sow_fault(struct prng *p, struct dc_job *j)
{
    for (uint32_t s = 0; s < j->shape.n_seqs; s++) {
        uint32_t kv_len = j->shape.seqs[s].kv_len;
        if (j->q_len[s] == 0 || !chance(p, 40))
            continue;
        uint32_t kind = prng_below(p, 3);
        if (kind == 0 && kv_len > 0) {
            uint64_t entry = prng_below(p, (kv_len - 1) / (64 * j->shape.pages_per_entry) + 1);
            j->table[j->table_first[s] + entry] = (int32_t)PICK(p, j->shape.num_pages, 0xffffffff, 0x7fffffff);
        } else if (kind == 1 && j->kv_len != NULL) {
            j->kv_len[s] = chance(p, 50) ? -1 : (int32_t)j->kv_len_max[s] + 1;
        } else if (kind == 2 && j->visible != NULL) {
            j->visible[j->first_token[s] + prng_below(p, j->q_len[s])] = chance(p, 50) ? -1 : (int32_t)kv_len + 1;
        }
    }
}

static void random_batch(struct rig *rig, uint64_t seed)
{
    struct prng prng = {seed};
    struct prng *p = &prng;
    for (int warm = 0; warm < 4; warm++)
        prng_u64(p);
    struct dc_seq seqs[JOBS_MAX][SEQS_MAX];
    uint32_t heads = chance(p, 70) ? PICK(p, 1, 6, 12, 16, 24) : PICK(p, 48, 96, 127, 128);
    uint32_t n_jobs = 1 + prng_below(p, JOBS_MAX);
    struct dc *c = dc_new(rig);
    for (uint32_t i = 0; i < n_jobs; i++) {
        struct dc_shape shape;
        random_shape(p, heads, seqs[i], &shape);
        struct dc_job *j = dc_add(c, &shape);
        if (chance(p, 20))
            sow_nan(p, j);
        if (chance(p, 20))
            sow_fault(p, j);
    }
    c->request.tile_rows = PICK(p, 64, 128, 256);
    c->request.splits = PICK(p, 0, 0, 0, 1, 2, 3, 8);
    c->request.policy = (enum plan_policy)PICK(p, PLAN_SEED, PLAN_BALANCED, PLAN_AUTO, PLAN_AUTO, PLAN_UNSPLIT);
    if (chance(p, 30))
        ck_assert_int_eq(
            plan_device_preset(chance(p, 50) ? "h200" : "reference", &c->request.device, &c->request.costs), 0);
    dc_run(c);
    dc_check_all(c);
    dc_free(c);
}

static int number_from_env(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text != NULL && *text != 0 ? (int)strtol(text, NULL, 0) : otherwise;
}

/* Check numbers the runs of a loop test: here by their seed. */
START_TEST(random_batch_of_seed)
{
    for (int backend = 0; backend < rig_backends(); backend++) {
        struct rig rig;
        if (!rig_open(&rig, backend))
            continue;
        random_batch(&rig, (uint64_t)_i);
        rig_close(&rig);
    }
}
END_TEST

MLA_SUITE(backend_random)
{
    int seed = number_from_env("MLA_TEST_SEED", 20240607);
    int count = number_from_env("MLA_TEST_COUNT", 250);
    TCase *tc = mla_tcase(suite, "random");
    tcase_add_loop_test(tc, random_batch_of_seed, seed, seed + count);
}
