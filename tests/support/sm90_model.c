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
    const uint8_t *kv;
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

struct sm90_model *sm90_model_new(const uint8_t *kv, uint32_t keys)
{
    const double *value = fp8_table();
    struct sm90_model *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return NULL;
    uint64_t room = (keys + PAGE - 1) / PAGE * (uint64_t)PAGE; /* whole pages: what lies behind the keys has P = 0 */
    *m = (struct sm90_model){kv, calloc(room, sizeof(*m->v)), calloc(room, sizeof(*m->v_exponent))};
    if (m->v == NULL || m->v_exponent == NULL) {
        sm90_model_free(m);
        return NULL;
    }
    for (uint32_t k = 0; k < keys; k++)
        for (uint32_t c = 0; c < CHANNELS; c++) {
            m->v[k][c] = (float)value[kv[(size_t)k * REF_QK_DIM + sm90_model_channel(c)]];
            m->v_exponent[k][c] = exponent_of(m->v[k][c]);
        }
    return m;
}

void sm90_model_free(struct sm90_model *m)
{
    if (m == NULL)
        return;
    free(m->v);
    free(m->v_exponent);
    free(m);
}

CLONES static float dot(const float *a, const float *b)
{
    float sum[16] = {0}, all = 0;
    for (uint32_t d = 0; d < REF_QK_DIM; d += 16)
        for (uint32_t i = 0; i < 16; i++)
            sum[i] += a[d + i] * b[d + i];
    for (uint32_t i = 0; i < 16; i++)
        all += sum[i];
    return all;
}

void sm90_model_scores(const struct sm90_model *m, uint32_t keys, const double q[REF_QK_DIM], double softmax_scale,
                       float *score)
{
    const double *value = fp8_table();
    float row[REF_QK_DIM], key[REF_QK_DIM], as_float[256];
    for (uint32_t i = 0; i < 256; i++)
        as_float[i] = (float)value[i];
    for (uint32_t d = 0; d < REF_QK_DIM; d++)
        row[d] = (float)q[d];
    for (uint32_t k = 0; k < keys; k++) {
        const uint8_t *codes = m->kv + (size_t)k * REF_QK_DIM;
        for (uint32_t d = 0; d < REF_QK_DIM; d++)
            key[d] = as_float[codes[d]];
        score[k] = dot(row, key) * (float)(softmax_scale * 1.4426950408889634);
    }
}

static float power_of_two(int32_t exponent)
{
    uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* acc += p * V of 32 keys. */
CLONES static void product(float *acc, const float *p, const int32_t *p_exponent, const float (*v)[CHANNELS],
                           const int32_t (*v_exponent)[CHANNELS])
{
    int32_t most[CHANNELS], sum[CHANNELS];
    float up[CHANNELS];
    for (uint32_t c = 0; c < CHANNELS; c++) {
        uint32_t bits;
        memcpy(&bits, &acc[c], sizeof(bits));
        most[c] = (int32_t)(bits >> 23 & 255u) - 127;
    }
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
    for (uint32_t c = 0; c < CHANNELS; c++) {
        float x = (float)sum[c]; /* below 2^24, so exact */
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        bits &= ~((UINT32_C(1) << (23 - BITS)) - 1);
        memcpy(&x, &bits, sizeof(x));
        acc[c] = x * power_of_two(most[c] - BITS);
    }
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
    double sum; /* of rounded P */
    uint32_t pages;
};

static void raise_reference(struct unit *u, float next)
{
    float factor = u->pages == 0 ? 0 : exp2f(u->reference - next);
    for (uint32_t c = 0; c < CHANNELS; c++) {
        u->acc[c] *= factor;
        u->sums[c] = sm90_model_f16(u->sums[c] * factor);
    }
    u->sum *= (double)factor;
    u->reference = next;
}

static void promote(struct unit *u)
{
    for (uint32_t c = 0; c < CHANNELS; c++) {
        float moved = sm90_model_f16(u->acc[c] * ((1 + MLA_SM90_CARRY) * MLA_SM90_SUM_SCALE));
        u->acc[c] -= moved / MLA_SM90_SUM_SCALE;
        u->sums[c] = u->pages == MLA_SM90_WINDOW ? moved : sm90_model_f16(u->sums[c] + moved);
    }
}

/* A page of which the row sees n keys. */
static void add_page(struct unit *u, const struct sm90_model *m, uint32_t first, const float *score, uint32_t n,
                     const struct sm90_model_references *references)
{
    float top = -INFINITY, p[PAGE] = {0};
    int32_t p_exponent[PAGE];
    for (uint32_t k = 0; k < n; k++)
        top = fmaxf(top, score[k]);
    if (u->pages == 0 || top > u->reference + references->lag)
        raise_reference(u, top + references->above);
    for (uint32_t k = 0; k < PAGE; k++) {
        if (k < n)
            p[k] = to_e4m3(exp2f(score[k] - u->reference + references->headroom));
        p_exponent[k] = exponent_of(p[k]);
        u->sum += (double)p[k];
    }
    for (uint32_t t = 0; t < PAGE; t += STEP)
        product(u->acc, p + t, p_exponent + t, m->v + first + t, m->v_exponent + first + t);
    if (++u->pages % MLA_SM90_WINDOW == 0)
        promote(u);
}

void sm90_model_decode(const struct sm90_model *m, uint32_t keys, const float *score, uint32_t unit_pages,
                       const struct sm90_model_references *references, double o[CHANNELS])
{
    double top = -INFINITY, all = 0;
    memset(o, 0, CHANNELS * sizeof(*o));
    for (uint32_t first = 0; first < keys; first += unit_pages * PAGE) {
        struct unit u = {.pages = 0};
        for (uint32_t k = first; k < keys && k < first + unit_pages * PAGE; k += PAGE)
            add_page(&u, m, k, score + k, keys - k < PAGE ? keys - k : PAGE, references);
        double next = fmax(top, (double)u.reference), before = exp2(top - next), now = exp2((double)u.reference - next);
        all = all * before + u.sum * now;
        for (uint32_t c = 0; c < CHANNELS; c++)
            o[c] = o[c] * before + now * ((double)u.acc[c] + (double)u.sums[c] / (double)MLA_SM90_SUM_SCALE);
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
