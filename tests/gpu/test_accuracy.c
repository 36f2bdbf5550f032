/* K13b and K13c on the reference shapes: relative L2 of f32 outputs against float64, on sampled rows. Pages are random
 * and different (roundings of equal keys would not average out); the sequences of a batch share them, as only their
 * plan is of interest. Prints the worst of each data set. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/rig_library.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"
#include "tests/support/sampled.h"
#include "tests/support/sm90_model.h"

enum { HEADS = 96, NORMALS = 1024 };
#define KV_BYTES(kv_len) ((size_t)(kv_len)*MLA_ABI_QK_DIM)

struct data {
    const char *name;
    double mean;
    bool per_channel; /* the mean of each channel is drawn from N(0, 1) */
};
static const struct data means[] = {
    {"mean 0", 0, false},     {"mean 0.25", 0.25, false},      {"mean 0.5", 0.5, false},
    {"mean 1.0", 1.0, false}, {"a mean per channel", 0, true},
};

/* KV ~ N(mean, 1) in e4m3, packed pages. */
static uint8_t *make_keys(const struct data *data, uint32_t kv_len)
{
    struct prng prng = {13};
    uint8_t *kv = malloc(KV_BYTES(kv_len));
    uint8_t(*codes)[NORMALS] = malloc((size_t)MLA_ABI_QK_DIM * NORMALS);
    ck_assert(kv != NULL && codes != NULL);
    double normals[NORMALS];
    for (uint32_t n = 0; n < NORMALS; n++)
        normals[n] = prng_normal(&prng);
    for (uint32_t i = 0; i < MLA_ABI_QK_DIM; i++) {
        double mean = data->per_channel ? prng_normal(&prng) : data->mean;
        for (uint32_t n = 0; n < NORMALS; n++)
            codes[i][n] = fp8_encode(mean + normals[n]);
    }
    for (uint32_t k = 0; k < kv_len; k++)
        for (uint32_t i = 0; i < MLA_ABI_QK_DIM; i += 6) {
            uint64_t r = prng_u64(&prng);
            for (uint32_t e = 0; e < 6; e++)
                kv[KV_BYTES(k) + i + e] = codes[i + e][r >> (10 * e) & (NORMALS - 1)];
        }
    free(codes);
    return kv;
}

struct shape {
    uint32_t batch, q_len, kv_len;
    double score_std;
    uint32_t head_step, token_step, seq_step; /* sampled: each so many, from the first on */
};

/* One launch of equal sequences on these keys, and its sampled rows in float64. */
struct outcome {
    double rel_l2;                     /* of the kernel */
    double rounded[SAMPLED_ROUNDINGS]; /* of P rounded to e4m3 and nothing else */
    double lse;                        /* largest difference, of 1 or more relative to it */
    /* Of some rows and channels: the kernel, the model of it, and the worst emulation that has all its roundings and
     * exact maxima. */
    double some_rel_l2, modelled, emulated;
};

static size_t sample(struct dc_job *j, const struct shape *s, uint32_t seq, struct sampled_row *rows)
{
    size_t n = 0;
    for (uint32_t t = 0; t < s->q_len; t += s->token_step)
        for (uint32_t h = 0; h < HEADS; h += s->head_step, n++) {
            if (rows == NULL)
                continue;
            rows[n].keys = s->kv_len - s->q_len + t + 1;
            for (uint32_t i = 0; i < MLA_ABI_QK_DIM; i++)
                rows[n].q[i] = fp8_decode(*dc_q(j, seq, t, h, i));
        }
    return n;
}

struct squares {
    double all, error, rounded[SAMPLED_ROUNDINGS], lse;
};

static void compare(const struct dc_job *j, const struct shape *s, uint32_t seq, const struct sampled_row *row,
                    struct squares *sum)
{
    for (uint32_t t = 0; t < s->q_len; t += s->token_step)
        for (uint32_t h = 0; h < HEADS; h += s->head_step, row++) {
            for (uint32_t i = 0; i < MLA_ABI_V_DIM; i++) {
                double error = dc_o(j, seq, t, h, i) - row->o[i];
                sum->error += error * error;
                sum->all += row->o[i] * row->o[i];
                for (uint32_t e = 0; e < SAMPLED_ROUNDINGS; e++)
                    sum->rounded[e] += (row->rounded[e][i] - row->o[i]) * (row->rounded[e][i] - row->o[i]);
            }
            double lse = fabs((double)dc_lse(j, seq, t, h) - row->lse) / fmax(1, fabs(row->lse));
            sum->lse = lse <= sum->lse ? sum->lse : lse; /* NaN too */
        }
}

static double add_error(const double *o, const double *right)
{
    double sum = 0;
    for (uint32_t c = 0; c < SM90_MODEL_CHANNELS; c++)
        sum += (o[c] - right[c]) * (o[c] - right[c]);
    return sum;
}

/* Every eighth sampled row of the first sequence. */
static void emulate(const struct dc *c, struct dc_job *j, const struct shape *s, const struct sm90_model *model,
                    const struct sampled_row *row, struct outcome *out)
{
    const uint32_t unit_pages = c->plan.items[0].page_end - c->plan.items[0].page_begin;
    double all = 0, kernel = 0, modelled = 0, exact[SM90_MODEL_EXACT] = {0};
    float *score = malloc(s->kv_len * sizeof(*score));
    ck_assert_ptr_nonnull(score);
    uint32_t n = 0;
    for (uint32_t t = 0; t < s->q_len; t += s->token_step)
        for (uint32_t h = 0; h < HEADS; h += s->head_step, n++, row++) {
            double right[SM90_MODEL_CHANNELS], o[SM90_MODEL_CHANNELS];
            if (n % 8 != 0)
                continue;
            for (uint32_t i = 0; i < SM90_MODEL_CHANNELS; i++) {
                right[i] = row->o[sm90_model_channel(i)];
                o[i] = dc_o(j, 0, t, h, sm90_model_channel(i));
                all += right[i] * right[i];
            }
            kernel += add_error(o, right);
            sm90_model_scores(model, row->keys, row->q, (double)j->shape.softmax_scale, score);
            sm90_model_decode(model, row->keys, score, unit_pages, &sm90_model_kernel, o);
            modelled += add_error(o, right);
            for (uint32_t e = 0; e < SM90_MODEL_EXACT; e++) {
                sm90_model_decode(model, row->keys, score, unit_pages, &sm90_model_exact[e], o);
                exact[e] += add_error(o, right);
            }
        }
    free(score);
    out->some_rel_l2 = sqrt(kernel / all);
    out->modelled = sqrt(modelled / all);
    for (uint32_t e = 0; e < SM90_MODEL_EXACT; e++)
        out->emulated = fmax(out->emulated, sqrt(exact[e] / all));
}

/* model: of the keys, for what is asked for with roundings; or NULL. */
static struct outcome decode(struct rig *rig, const struct shape *s, const uint8_t *kv, uint32_t splits,
                             const struct sm90_model *model)
{
    struct outcome out = {0};
    struct squares sum = {0};
    struct dc_seq *seqs = calloc(s->batch, sizeof(*seqs));
    ck_assert_ptr_nonnull(seqs);
    for (uint32_t b = 0; b < s->batch; b++)
        seqs[b] = (struct dc_seq){s->q_len, s->kv_len, 0};
    struct dc *c = dc_new(rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = HEADS,
                                                    .n_seqs = s->batch,
                                                    .seqs = seqs,
                                                    .softmax_scale = (float)(s->score_std / 24),
                                                    .pages = DC_ALIAS,
                                                    .num_pages = s->kv_len / 64,
                                                    .sparse = true,
                                                    .own_keys = true,
                                                    .seed = 1300 + s->q_len});
    memcpy(j->kv, kv, KV_BYTES(s->kv_len));
    c->request.splits = splits;
    dc_run(c);
    for (uint32_t b = 0; b < s->batch; b++)
        ck_assert_uint_eq(j->status[b], 0);
    size_t n = sample(j, s, 0, NULL);
    struct sampled_row *rows = calloc(n, sizeof(*rows));
    ck_assert_ptr_nonnull(rows);
    for (uint32_t seq = 0; seq < s->batch; seq += s->seq_step) {
        sample(j, s, seq, rows);
        sampled_decode(kv, j->table, (double)j->shape.softmax_scale, model != NULL, rows, n);
        compare(j, s, seq, rows, &sum);
        if (model != NULL && seq == 0)
            emulate(c, j, s, model, rows, &out);
    }
    free(rows);
    dc_free(c);
    free(seqs);
    out.rel_l2 = sqrt(sum.error / sum.all);
    out.lse = sum.lse;
    for (uint32_t e = 0; e < SAMPLED_ROUNDINGS; e++)
        out.rounded[e] = sqrt(sum.rounded[e] / sum.all);
    return out;
}

/* The plain kernels are tested on the smallest batch: theirs is not another way through the kernel. */
static uint32_t batch_max(const struct rig *rig)
{
    return strncmp(rig->facts->name, "generic", 7) == 0 ? 1 : 64;
}

static void judge(struct rig *rig, const struct data *data, const struct shape *s, const uint8_t *kv, uint32_t splits,
                  double *worst)
{
    struct outcome got = decode(rig, s, kv, splits, NULL);
    ck_assert_msg(got.rel_l2 <= 0.005, "%s: relative L2 error %.4f %% at B%u Q%u KV%u, %s, splits %s", rig->facts->name,
                  100 * got.rel_l2, s->batch, s->q_len, s->kv_len, data->name, splits == 0 ? "chosen" : "1");
    ck_assert_msg(got.lse <= REF_LSE_E4M3_P + REF_SCORE_E4M3 / sqrt(s->kv_len),
                  "%s: LSE is off by %g at B%u Q%u KV%u, %s", rig->facts->name, got.lse, s->batch, s->q_len, s->kv_len,
                  data->name);
    *worst = fmax(*worst, got.rel_l2);
}

static void data_set(int variant, const struct data *data)
{
    struct rig rig;
    struct be_config config = {.workspace_bytes = 512u << 20};
    if (!rig_open_config(&rig, variant, &config))
        return;
    for (uint32_t kv_len = 65536; kv_len <= 131072; kv_len *= 2) {
        double worst = 0;
        uint8_t *kv = make_keys(data, kv_len);
        for (uint32_t batch = 1; batch <= batch_max(&rig); batch *= 4)
            for (uint32_t q_len = 4; q_len <= 8; q_len += 4) {
                struct shape s = {.batch = batch,
                                  .q_len = q_len,
                                  .kv_len = kv_len,
                                  .score_std = 1,
                                  .head_step = batch == 1 ? 24 : 48,
                                  .token_step = batch == 1 ? 1 : q_len - 1,
                                  .seq_step = batch == 1 ? 1 : batch - 1};
                judge(&rig, data, &s, kv, 0, &worst);
                if (batch == 1)
                    judge(&rig, data, &s, kv, 1, &worst);
            }
        printf("accuracy %s: K13b %s, KV%u, B1 to B%u, Q4 and Q8: relative L2 at most %.4f %%\n", rig.facts->name,
               data->name, kv_len, batch_max(&rig), 100 * worst);
        free(kv);
    }
    rig_close(&rig);
}

/* rig_add() counts variants, so each data set is a test of its own. */
START_TEST(k13b_mean_0)
{
    data_set(_i, &means[0]);
}
END_TEST

START_TEST(k13b_mean_1_4)
{
    data_set(_i, &means[1]);
}
END_TEST

START_TEST(k13b_mean_1_2)
{
    data_set(_i, &means[2]);
}
END_TEST

START_TEST(k13b_mean_1)
{
    data_set(_i, &means[3]);
}
END_TEST

START_TEST(k13b_mean_per_channel)
{
    data_set(_i, &means[4]);
}
END_TEST

/* The emulation is of sm90: what its kinds lose beyond P's rounding is in both. Wherever e4m3's numbers lie under the
 * heaviest weights; 0.1 points more are allowed. */
static bool beside_exact_maxima(const struct rig *rig, const struct outcome *got, const char *what)
{
    printf("accuracy %s: K13c %s: relative L2 %.4f %%, of P rounded at shifts 0, 0.4, 2.6: %.4f %.4f %.4f %%; of some "
           "rows %.4f %%, by the model %.4f %%, with exact maxima %.4f %%\n",
           rig->facts->name, what, 100 * got->rel_l2, 100 * got->rounded[0], 100 * got->rounded[1],
           100 * got->rounded[2], 100 * got->some_rel_l2, 100 * got->modelled, 100 * got->emulated);
    fflush(stdout); /* also when a check fails below */
    return got->some_rel_l2 <= got->emulated + 0.001;
}

/* K13c: scores of standard deviation 2 and 4: a lagging reference costs next to nothing. */
START_TEST(k13c_peaked_scores)
{
    struct rig rig;
    struct be_config config = {.workspace_bytes = 512u << 20};
    unsigned beyond = 0;
    if (!rig_open_config(&rig, _i, &config))
        return;
    for (size_t d = 0; d < 4; d += 3) { /* means 0 and 1 */
        uint8_t *kv = make_keys(&means[d], 65536);
        struct sm90_model *model = sm90_model_new(kv, 65536);
        ck_assert_ptr_nonnull(model);
        for (uint32_t std = 2; std <= 4; std *= 2)
            for (uint32_t splits = 0; splits <= 1; splits++) {
                char what[96];
                struct shape s = {.batch = 1,
                                  .q_len = 4,
                                  .kv_len = 65536,
                                  .score_std = std,
                                  .head_step = 3,
                                  .token_step = 1,
                                  .seq_step = 1};
                struct outcome got = decode(&rig, &s, kv, splits, model);
                snprintf(what, sizeof(what), "score std %u, %s, splits %s", std, means[d].name,
                         splits == 0 ? "chosen" : "1");
                beyond += !beside_exact_maxima(&rig, &got, what);
            }
        sm90_model_free(model);
        free(kv);
    }
    ck_assert_msg(beyond == 0, "%s: %u of 8 are off by 0.1 points more than with exact maxima", rig.facts->name,
                  beyond);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(accuracy)
{
    TCase *tc = mla_tcase_timeout(suite, "accuracy", 180);
    rig_add(tc, k13b_mean_0);
    rig_add(tc, k13b_mean_1_4);
    rig_add(tc, k13b_mean_1_2);
    rig_add(tc, k13b_mean_1);
    rig_add(tc, k13b_mean_per_channel);
    TCase *peaked = mla_tcase_timeout(suite, "peaked", 180);
    rig_add(peaked, k13c_peaked_scores);
}
