/* Shapes, memory, and what outputs must be. */
#include "tests/chaos/chaos.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fp8.h"
#include "tests/support/prng.h"
#include "tests/support/reference.h"

#ifdef MLA_CHAOS_CUDA
#include "kernels/host/cuda_driver.h"

#include <mla/cuda.h>
#endif

const struct variant variants[VARIANTS] = {
    {.heads = 8, .n_seqs = 1, .q_len = {1}, .kv_len = {70}},
    {.heads = 8, .n_seqs = 3, .q_len = {1, 2, 1}, .kv_len = {300, 64, 129}},
    {.heads = 16, .n_seqs = 2, .q_len = {4, 0}, .kv_len = {200, 65}},
    {.heads = 4, .n_seqs = 1, .q_len = {8}, .kv_len = {512}},
    {.heads = 32, .n_seqs = 1, .q_len = {4}, .kv_len = {4096}}, /* long enough to be killed under */
    {.heads = 1, .n_seqs = 2, .q_len = {1, 1}, .kv_len = {1, 0}},
    {.heads = 8, .n_seqs = 2, .q_len = {1, 1}, .kv_len = {150, 150}}};

uint32_t variant_rows(uint32_t v)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < variants[v].n_seqs; s++)
        n += variants[v].q_len[s] * variants[v].heads;
    return n;
}

uint64_t variant_q_at(uint32_t v)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < v; i++)
        at += (variant_rows(i) * UINT64_C(576) + 63) / 64 * 64;
    return at;
}

uint64_t input_bytes(void)
{
    return variant_q_at(VARIANTS);
}

/* Page ids of all sequences, packed; the number of them. */
static size_t page_ids(uint32_t v, uint32_t *out, uint64_t first[SEQS_MAX])
{
    size_t n = 0;
    for (uint32_t s = 0; s < variants[v].n_seqs; s++) {
        first[s] = n;
        for (uint32_t e = 0; e < (variants[v].kv_len[s] + 63) / 64; e++)
            out[n++] = (v * 5 + s * 3 + e * 7) % PAGES;
    }
    if (v == BAD_VARIANT)
        out[n - 1] = PAGES + 7;
    return n;
}

/* ---- memory ---- */

#ifdef MLA_CHAOS_CUDA
static struct cuda_driver cu;
static CUcontext context;
#endif
static bool on_device;

void memory_start(bool cuda)
{
    on_device = cuda;
#ifdef MLA_CHAOS_CUDA
    char why[256];
    CUdevice device;
    if (cuda && (cuda_driver_open(NULL, &cu, why, sizeof(why)) != 0 || cu.cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
                 cu.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS ||
                 cu.cuCtxSetCurrent(context) != CUDA_SUCCESS)) {
        fprintf(stderr, "mlad-chaos: no device\n");
        exit(2);
    }
#endif
}

void memory_new(struct memory *m, uint64_t bytes)
{
    *m = (struct memory){.bytes = bytes};
#ifdef MLA_CHAOS_CUDA
    CUdeviceptr at = 0;
    if (on_device && cu.cuMemAlloc(&at, bytes) == CUDA_SUCCESS) {
        m->device = at;
        m->at = (uint8_t *)(uintptr_t)at; /* the fake device's memory is this process's, too */
        return;
    }
#endif
    if (on_device || mla_memory_create(bytes, 0, &m->m) != MLA_OK) {
        fprintf(stderr, "mlad-chaos: no memory\n");
        exit(2);
    }
    m->at = m->m.addr;
}

void memory_free(struct memory *m)
{
#ifdef MLA_CHAOS_CUDA
    if (m->device)
        cu.cuMemFree(m->device);
#endif
    mla_memory_free(&m->m);
    *m = (struct memory){.bytes = 0};
}

enum mla_status memory_share(struct mla_client *c, const struct memory *m, enum mla_access access, const char *label,
                             mla_region_id *region)
{
#ifdef MLA_CHAOS_CUDA
    if (m->device)
        return mla_cuda_region_register(c, m->device, m->bytes, access, label, CALL_US, region);
#endif
    return mla_memory_register(c, &m->m, access, label, CALL_US, region);
}

static void fill(uint8_t *at, uint64_t n, uint64_t seed)
{
    static uint8_t normal[4096];
    struct prng p = {1};
    for (size_t i = 0; i < sizeof(normal); i++)
        normal[i] = fp8_encode(prng_normal(&p));
    p.state = seed;
    for (uint64_t i = 0; i < n; i++)
        at[i] = normal[prng_u64(&p) % sizeof(normal)];
}

void fill_pool(uint8_t *at, uint32_t pool)
{
    fill(at, POOL_BYTES, 1000 + pool);
}

void fill_input(uint8_t *at)
{
    fill(at, input_bytes(), 77);
}

/* ---- requests ---- */

enum mla_status put_variant(struct mla_client *c, uint32_t v, mla_tables_id id, uint64_t timeout_us)
{
    uint32_t entries[256];
    uint64_t first[SEQS_MAX];
    struct mla_tables t;
    mla_tables_init(&t);
    t.id = id;
    t.n_seqs = variants[v].n_seqs;
    t.q_len = variants[v].q_len;
    t.kv_len_max = variants[v].kv_len;
    t.n_entries = page_ids(v, entries, first);
    t.entries = entries;
    return mla_tables_put(c, &t, timeout_us);
}

static struct mla_view view(mla_region_id region, uint64_t at, uint64_t row_bytes, uint32_t heads)
{
    return (struct mla_view){.region = region,
                             .offset = at,
                             .head_stride = (int64_t)row_bytes,
                             .token_stride = (int64_t)row_bytes * heads,
                             .compact = true};
}

void variant_args(struct mla_decode_args *a, uint32_t v, mla_cache_id cache, mla_region_id in, mla_region_id out,
                  uint64_t out_at, mla_tables_id tables)
{
    uint32_t heads = variants[v].heads;
    mla_decode_args_init(a);
    a->cache = cache;
    a->tables = tables;
    a->heads = heads;
    a->q = view(in, variant_q_at(v), 576, heads);
    a->o = view(out, out_at, 1024, heads);
    a->lse = view(out, out_at + O_BYTES(variant_rows(v)), 4, heads);
    a->softmax_scale = 1.0f / 24.0f;
    a->batch_invariant = true;
}

/* ---- outputs ---- */

bool output_is(const uint8_t *out, uint32_t pool, uint32_t v)
{
    uint64_t rows = variant_rows(v), compared = rows;
    const uint8_t *right = shared->expected[pool][v];
    if (v == BAD_VARIANT) /* the second sequence's rows are anything */
        compared = variants[v].q_len[0] * variants[v].heads;
    return memcmp(out, right, O_BYTES(compared)) == 0 &&
           memcmp(out + O_BYTES(rows), right + O_BYTES(rows), compared * 4) == 0;
}

uint64_t output_hash(const uint8_t *out)
{
    uint64_t h = 0xcbf29ce484222325u, word;
    for (uint64_t i = 0; i + 8 <= OUT_MAX; i += 8) {
        memcpy(&word, out + i, 8);
        h = (h ^ word) * 0x100000001b3u;
    }
    return h;
}

/* ---- once, before anything bad happens ---- */

static bool is_right(const uint8_t *pool, const uint8_t *in, const uint8_t *out, uint32_t v, bool cuda)
{
    static double o[ROWS_MAX * 512], lse[ROWS_MAX];
    uint32_t entries[256];
    uint64_t first[SEQS_MAX], status[SEQS_MAX], rows = variant_rows(v);
    uint32_t heads = variants[v].heads;
    page_ids(v, entries, first);
    const struct ref_job job = {
        .heads = heads,
        .n_seqs = variants[v].n_seqs,
        .q_len = variants[v].q_len,
        .kv_len_max = variants[v].kv_len,
        .q = {.base = in + variant_q_at(v), .token_stride = 576 * (int64_t)heads, .head_stride = 576, .compact = true},
        .kv = pool,
        .page_stride = PAGE_BYTES,
        .row_stride = 576,
        .num_pages = PAGES,
        .pages_per_entry = 1,
        .table = (const int32_t *)entries,
        .table_first = first,
        .mask = MLA_MASK_CAUSAL,
        .softmax_scale = (double)(1.0f / 24.0f),
        .q_scale = 1,
        .kv_scale = 1};
    const struct ref_output output = {
        .out_type = MLA_DTYPE_BF16,
        .o = {.base = out, .token_stride = 1024 * (int64_t)heads, .head_stride = 1024, .compact = true},
        .lse = {.base = out + O_BYTES(rows), .token_stride = 4 * (int64_t)heads, .head_stride = 4, .compact = true},
        .accuracy = cuda ? REF_ACCURACY_E4M3_P : REF_ACCURACY_F32_P};
    struct ref_report report;
    if (ref_decode(&job, o, lse, status) != 0)
        return false;
    bool right = ref_compare(&job, o, lse, status, &output, &report);
    if (!right)
        fprintf(stderr, "mlad-chaos: variant %u before any chaos: %s\n", v, report.text);
    return right;
}

int prepare(const struct place *p)
{
    struct memory pool, in, out;
    mla_region_id pool_region, in_region, out_region;
    struct mla_cache_desc desc;
    mla_cache_id cache;
    int bad = 0;
    memory_start(p->cuda);
    struct mla_client *c = NULL;
    for (unsigned i = 0; i < 15 && !c; i++) /* the daemon may take its time */
        c = open_client(p, NULL, NULL);
    memory_new(&pool, POOL_BYTES);
    memory_new(&in, input_bytes());
    memory_new(&out, OUT_MAX);
    fill_input(in.at);
    if (!c || memory_share(c, &pool, MLA_ACCESS_READ, "pool", &pool_region) != MLA_OK ||
        memory_share(c, &in, MLA_ACCESS_READ, "in", &in_region) != MLA_OK ||
        memory_share(c, &out, MLA_ACCESS_READ_WRITE, "out", &out_region) != MLA_OK)
        return 1;
    mla_cache_desc_init(&desc);
    desc.region = pool_region;
    desc.num_pages = PAGES;
    if (mla_cache_define(c, &desc, CALL_US, &cache) != MLA_OK)
        return 1;
    for (uint32_t v = 0; v < VARIANTS; v++)
        if (put_variant(c, v, v + 1, CALL_US) != MLA_OK)
            return 1;
    for (uint32_t k = 0; k < POOLS; k++) {
        if (p->patient && k == 1) /* of the second owner */
            continue;
        fill_pool(pool.at, k);
        for (uint32_t v = 0; v < VARIANTS; v++) {
            struct mla_decode_args a;
            variant_args(&a, v, cache, in_region, out_region, 0, v + 1);
            memset(out.at, 0xa5, OUT_MAX);
            enum mla_status status = mla_decode(c, &a, CALL_US, NULL);
            if (status != (v == BAD_VARIANT ? MLA_PARTIAL : MLA_OK) ||
                (!p->patient && !is_right(pool.at, in.at, out.at, v, p->cuda))) {
                fprintf(stderr, "mlad-chaos: variant %u: %s\n", v, mla_errname(status));
                bad = 1;
            }
            memcpy(shared->expected[k][v], out.at, OUT_MAX);
        }
    }
    mla_close(c);
    memory_free(&pool);
    memory_free(&in);
    memory_free(&out);
    return bad;
}
