#include "tests/integration/ground.h"

#include <check.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define E4M3_ONE 0x38
#define KV_BYTES (GROUND_PAGES * 64u * 576u)

static void put_tables(struct ground *g, uint64_t id, size_t n_pages)
{
    static const uint32_t pages[GROUND_PAGES] = {0, 1, 2, 3};
    static const uint32_t q_len = GROUND_Q_LEN, kv_len = GROUND_KV_LEN;
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set.id = id;
    m.put_table_set.q_len = &q_len;
    m.put_table_set.kv_len_max = &kv_len;
    m.put_table_set.n_q_len = m.put_table_set.n_kv_len_max = 1;
    m.put_table_set.pages = pages;
    m.put_table_set.n_pages = n_pages;
    raw_expect(&g->r, &m, MLA_OK, NULL);
}

void ground_open(struct ground *g, const char *socket)
{
    struct mla_message m;
    void *kv, *io;
    static const uint64_t planes[2] = {0, 0};
    memset(g, 0, sizeof(*g));
    raw_open(&g->r, socket);
    int kv_fd = raw_memfd(KV_BYTES, &kv), io_fd = raw_memfd(GROUND_IO_BYTES, &io);
    g->kv = kv;
    g->io = io;
    memset(kv, E4M3_ONE, KV_BYTES);
    g->kv_region = raw_region(&g->r, kv_fd, KV_BYTES, MLA_ACCESS_READ);
    g->io_region = raw_region(&g->r, io_fd, GROUND_IO_BYTES, MLA_ACCESS_READ_WRITE);
    close(kv_fd);
    close(io_fd);
    g->sync = raw_sync(&g->r, &g->words);
    mla_message_init(&m, MLA_MSG_DEFINE_CACHE);
    m.define_cache.layout = MLA_CACHE_E4M3_576;
    m.define_cache.region = g->kv_region;
    m.define_cache.num_pages = GROUND_PAGES;
    m.define_cache.plane_offset = planes;
    m.define_cache.n_plane_offset = 2;
    g->cache = raw_call(&g->r, &m)->define_cache_reply.cache;
    ck_assert_uint_ne(g->cache, 0);
    put_tables(g, GROUND_TABLES, GROUND_PAGES);
    put_tables(g, GROUND_DEVICE, 0);
    int32_t *table = (int32_t *)(void *)(g->io + GROUND_TABLE), *kv_lens = (int32_t *)(void *)(g->io + GROUND_KV_LENS);
    for (int i = 0; i < (int)GROUND_PAGES; i++)
        table[i] = i;
    kv_lens[0] = GROUND_KV_LEN;
}

void ground_close(struct ground *g)
{
    raw_close(&g->r);
    munmap(g->kv, KV_BYTES);
    munmap(g->io, GROUND_IO_BYTES);
    munmap(g->words, 4096);
}

static struct mla_tensor tensor(const struct ground *g, uint64_t offset, int64_t row_bytes)
{
    return (struct mla_tensor){.present = true,
                               .region = g->io_region,
                               .offset = offset,
                               .token_stride = row_bytes * GROUND_HEADS,
                               .head_stride = row_bytes,
                               .compact = true};
}

struct mla_ref ground_ref(uint64_t region, uint64_t offset)
{
    return (struct mla_ref){.present = true, .region = region, .offset = offset};
}

void ground_decode(const struct ground *g, struct mla_message *m)
{
    mla_message_init(m, MLA_MSG_DECODE);
    m->decode.cache = g->cache;
    m->decode.table_set = GROUND_TABLES;
    m->decode.heads = GROUND_HEADS;
    m->decode.q = tensor(g, GROUND_Q, 576);
    m->decode.o = tensor(g, GROUND_O, 2048);
    m->decode.lse = tensor(g, GROUND_LSE, 4);
    m->decode.out_type = MLA_DTYPE_F32;
    m->decode.softmax_scale = 1.0f / 24;
}

void ground_decodes(struct ground *g)
{
    struct mla_message m;
    ground_decode(g, &m);
    memset(g->io + GROUND_O, 0xa5, GROUND_LSE + 32 - GROUND_O);
    raw_expect(&g->r, &m, MLA_OK, NULL);
    const float *o = (const float *)(const void *)(g->io + GROUND_O),
                *lse = (const float *)(const void *)(g->io + GROUND_LSE);
    for (uint32_t row = 0; row < GROUND_Q_LEN * GROUND_HEADS; row++) {
        double keys = GROUND_KV_LEN - GROUND_Q_LEN + 1 + row / GROUND_HEADS;
        ck_assert_double_eq_tol(o[row * 512], 1, 1e-5);
        ck_assert_double_eq_tol(o[row * 512 + 511], 1, 1e-5);
        ck_assert_double_eq_tol(lse[row], log(keys), 1e-4);
    }
}
