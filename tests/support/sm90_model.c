#include "tests/support/sm90_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sm90/precision.h"
#include "tests/support/fp8.h"

#define PAGE     REF_PAGE_TOKENS
#define STEP     32u
#define CHANNELS SM90_MODEL_CHANNELS
#define BITS     13
#define F16_MOST 65504.0f

#if defined(__x86_64__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

const struct sm90_model_references sm90_model_kernel = {MLA_SM90_LAG, MLA_SM90_ABOVE, MLA_SM90_HEADROOM};
const struct sm90_model_references sm90_model_exact[SM90_MODEL_EXACT] = {{0, 0, 8}, {0, 0, 8.75f}, {0, 0, 5}};

struct sm90_model {
    uint16_t (*k)[REF_QK_DIM][PAGE]; /* of each page, as bf16, which e4m3 fits */
    float (*v)[CHANNELS];
    int32_t (*v_exponent)[CHANNELS];
};

uint32_t sm90_model_channel(uint32_t c)
{
    return c * (REF_V_DIM / CHANNELS) + c % 3; /* of each place in a vector some */
}

/* As the tensor cores see it: subnormal numbers have that of the smallest normal one. */
static int32_t exponent_of(float x)
{
    int e;
    frexpf(x, &e);
    return x == 0 || e - 1 < -6 ? -6 : e - 1;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

struct sm90_model *sm90_model_new(const uint8_t *kv, uint32_t keys)
{
    const double *value = fp8_table();
    struct sm90_model *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return NULL;
    size_t pages = (keys + PAGE - 1) / PAGE; /* whole pages: what lies behind the keys has P = 0 */
    *m = (struct sm90_model){calloc(pages, sizeof(*m->k)), calloc(pages * PAGE, sizeof(*m->v)),
                             calloc(pages * PAGE, sizeof(*m->v_exponent))};
    if (m->k == NULL || m->v == NULL || m->v_exponent == NULL) {
        sm90_model_free(m);
        return NULL;
    }
    uint16_t as_bf16[256];
    for (uint32_t i = 0; i < 256; i++)
        as_bf16[i] = (uint16_t)(bits_of((float)value[i]) >> 16);
    for (uint32_t k = 0; k < keys; k++) {
        const uint8_t *codes = kv + (size_t)k * REF_QK_DIM;
        for (uint32_t d = 0; d < REF_QK_DIM; d++)
            m->k[k / PAGE][d][k % PAGE] = as_bf16[codes[d]];
        for (uint32_t c = 0; c < CHANNELS; c++) {
            m->v[k][c] = (float)value[codes[sm90_model_channel(c)]];
            m->v_exponent[k][c] = exponent_of(m->v[k][c]);
        }
    }
    return m;
}

void sm90_model_free(struct sm90_model *m)
{
    if (m == NULL)
        return;
    free(m->k);
    free(m->v);
    free(m->v_exponent);
    free(m);
}

static float power_of_two(int32_t exponent)
{
    return float_of((uint32_t)(exponent + 127) << 23);
}

/* To 1 + BITS bits, towards zero, of a number below 2^24. */
static float cut_off(int32_t sum)
{
    return float_of(bits_of((float)sum) & ~((UINT32_C(1) << (23 - BITS)) - 1));
}

/* acc += q * K of 32 elements, for each of 64 keys. */
CLONES static void score_product(float *acc, const float *q, const uint16_t (*k)[PAGE])
{
    int16_t largest[PAGE];
    int32_t most[PAGE], sum[PAGE];
    float up[PAGE];
    for (uint32_t i = 0; i < PAGE; i++)
        largest[i] = INT16_MIN;
    for (uint32_t t = 0; t < STEP; t++) {
        const int16_t of_q = (int16_t)exponent_of(q[t]);
        for (uint32_t i = 0; i < PAGE; i++) {
            int16_t e = (int16_t)((k[t][i] >> 7 & 255) - 127);
            e = (int16_t)((e < -6 ? -6 : e) + of_q); /* see exponent_of() */
            largest[i] = largest[i] > e ? largest[i] : e;
        }
    }
    for (uint32_t i = 0; i < PAGE; i++) {
        int32_t e = (int32_t)(bits_of(acc[i]) >> 23 & 255u) - 127;
        most[i] = largest[i] > e ? largest[i] : e;
        up[i] = power_of_two(BITS - most[i]);
        sum[i] = (int32_t)(acc[i] * up[i]);
    }
    for (uint32_t t = 0; t < STEP; t++)
        for (uint32_t i = 0; i < PAGE; i++)
            sum[i] += (int32_t)(q[t] * float_of((uint32_t)k[t][i] << 16) * up[i]);
    for (uint32_t i = 0; i < PAGE; i++)
        acc[i] = cut_off(sum[i]) * power_of_two(most[i] - BITS);
}

/* The same in float, whose 24 bits hold these sums. */
CLONES static void exact_product(float *acc, const float *q, const uint16_t (*k)[PAGE])
{
    for (uint32_t t = 0; t < STEP; t++)
        for (uint32_t i = 0; i < PAGE; i++)
            acc[i] += q[t] * float_of((uint32_t)k[t][i] << 16);
}

static void scores(const struct sm90_model *m, uint32_t keys, const double q[REF_QK_DIM], double softmax_scale,
                   void (*product)(float *acc, const float *q, const uint16_t (*k)[PAGE]), float *score)
{
    float row[REF_QK_DIM];
    for (uint32_t d = 0; d < REF_QK_DIM; d++)
        row[d] = (float)q[d];
    for (uint32_t first = 0; first < keys; first += PAGE) {
        float acc[PAGE] = {0};
        for (uint32_t d = 0; d < REF_QK_DIM; d += STEP)
            product(acc, row + d, &m->k[first / PAGE][d]);
        for (uint32_t i = 0; i < PAGE && first + i < keys; i++)
            score[first + i] = acc[i] * (float)(softmax_scale * 1.4426950408889634);
    }
}

void sm90_model_scores(const struct sm90_model *m, uint32_t keys, const double q[REF_QK_DIM], double softmax_scale,
                       float *score)
{
    scores(m, keys, q, softmax_scale, score_product, score);
}

void sm90_model_exact_scores(const struct sm90_model *m, uint32_t keys, const double q[REF_QK_DIM],
                             double softmax_scale, float *score)
{
    scores(m, keys, q, softmax_scale, exact_product, score);
}

/* acc += p * V of 32 keys. */
CLONES static void product(float *acc, const float *p, const int32_t *p_exponent, const float (*v)[CHANNELS],
                           const int32_t (*v_exponent)[CHANNELS])
{
    int32_t most[CHANNELS], sum[CHANNELS];
    float up[CHANNELS];
    for (uint32_t c = 0; c < CHANNELS; c++)
        most[c] = (int32_t)(bits_of(acc[c]) >> 23 & 255u) - 127;
    for (uint32_t t = 0; t < STEP; t++)
        for (uint32_t c = 0; c < CHANNELS; c++) {
            int32_t e = p_exponent[t] + v_exponent[t][c];
            most[c] = most[c] > e ? most[c] : e;
        }
    for (uint32_t c = 0; c < CHANNELS; c++) {
        up[c] = power_of_two(BITS - most[c]);
        sum[c] = (int32_t)(acc[c] * up[c]);
    }
    for (uint32_t t = 0; t < STEP; t++)
        for (uint32_t c = 0; c < CHANNELS; c++)
            sum[c] += (int32_t)(p[t] * v[t][c] * up[c]);
    for (uint32_t c = 0; c < CHANNELS; c++)
        acc[c] = cut_off(sum[c]) * power_of_two(most[c] - BITS);
}

/* What is below its normal numbers has their last place. */
float sm90_model_f16(float x)
{
    int e;
    frexpf(x, &e);
    float place = ldexpf(1, (e < -13 ? -13 : e) - 11), rounded = nearbyintf(x / place) * place;
    return fabsf(rounded) > F16_MOST ? copysignf(INFINITY, x) : rounded;
}

static float to_e4m3(float x)
{
    return (float)fp8_decode(fp8_encode((double)x));
}

/* A unit: pages of one row, one after the other. */
struct unit {
    float acc[CHANNELS], sums[CHANNELS];
    float reference;
    double rounded, exact; /* sums of P */
    uint32_t pages;
};

static void raise_reference(struct unit *u, float next)
{
    float factor = u->pages == 0 ? 0 : exp2f(u->reference - next);
    for (uint32_t c = 0; c < CHANNELS; c++) {
        u->acc[c] *= factor;
        u->sums[c] = sm90_model_f16(u->sums[c] * factor);
    }
    u->rounded *= (double)factor;
    u->exact *= (double)factor;
    u->reference = next;
}

/* Before a page: an eighth of O. Which one a channel belongs to depends on the row in the kernel, see promote.cuh. */
static void promote(struct unit *u)
{
    for (uint32_t c = u->pages % MLA_SM90_WINDOW; c < CHANNELS; c += MLA_SM90_WINDOW) {
        float moved = sm90_model_f16(u->acc[c] * ((1 + MLA_SM90_CARRY) * MLA_SM90_SUM_SCALE));
        u->acc[c] -= moved / MLA_SM90_SUM_SCALE;
        u->sums[c] = u->pages < MLA_SM90_WINDOW ? moved : sm90_model_f16(u->sums[c] + moved);
    }
}

/* A page of which the row sees n keys. */
static void add_page(struct unit *u, const struct sm90_model *m, uint32_t first, const float *score, uint32_t n,
                     const struct sm90_model_references *references)
{
    float top = -INFINITY, p[PAGE];
    int32_t p_exponent[PAGE];
    for (uint32_t k = 0; k < n; k++)
        top = fmaxf(top, score[k]);
    promote(u);
    if (u->pages == 0 || top > u->reference + references->lag)
        raise_reference(u, top + references->above);
    for (uint32_t k = 0; k < PAGE; k++) {
        float exact = k < n ? exp2f(score[k] - u->reference + references->headroom) : 0;
        p[k] = to_e4m3(exact);
        p_exponent[k] = exponent_of(p[k]);
        u->rounded += (double)p[k];
        u->exact += (double)exact;
    }
    for (uint32_t t = 0; t < PAGE; t += STEP)
        product(u->acc, p + t, p_exponent + t, m->v + first + t, m->v_exponent + first + t);
    u->pages++;
}

/* A unit's O is normalised by the sum of rounded P, and weighs as much as the exact one, of which its LSE is made. */
void sm90_model_decode(const struct sm90_model *m, uint32_t keys, const float *score, uint32_t unit_pages,
                       const struct sm90_model_references *references, double o[CHANNELS])
{
    double top = -INFINITY, all = 0;
    memset(o, 0, CHANNELS * sizeof(*o));
    for (uint32_t first = 0; first < keys; first += unit_pages * PAGE) {
        struct unit u = {.pages = 0};
        for (uint32_t k = first; k < keys && k < first + unit_pages * PAGE; k += PAGE)
            add_page(&u, m, k, score + k, keys - k < PAGE ? keys - k : PAGE, references);
        double next = fmax(top, (double)u.reference), before = exp2(top - next);
        double weight = u.exact * exp2((double)u.reference - next);
        all = all * before + weight;
        for (uint32_t c = 0; c < CHANNELS; c++) {
            double sum = (double)u.acc[c] + (double)u.sums[c] / (double)MLA_SM90_SUM_SCALE;
            o[c] = o[c] * before + weight * sum / u.rounded;
        }
        top = next;
    }
    for (uint32_t c = 0; c < CHANNELS; c++)
        o[c] /= all;
}

void sm90_model_exact_row(const struct sm90_model *m, uint32_t keys, const float *score, double o[CHANNELS])
{
    double all = 0, top = -INFINITY;
    for (uint32_t k = 0; k < keys; k++)
        top = fmax(top, (double)score[k]);
    memset(o, 0, CHANNELS * sizeof(*o));
    for (uint32_t k = 0; k < keys; k++) {
        double p = exp2((double)score[k] - top);
        all += p;
        for (uint32_t c = 0; c < CHANNELS; c++)
            o[c] += p * (double)m->v[k][c];
    }
    for (uint32_t c = 0; c < CHANNELS; c++)
        o[c] /= all;
}
