/* A worker in one page: shares a KV cache with mlad, asks for one decode and looks at the answer.
 *
 *     mla_example_worker [SOCKET]
 *     cc worker.c $(pkg-config --cflags --libs mla) -lm
 *
 * Two sequences of 300 and 64 keys, 16 heads, one query token each. Q is all zero, so every key weighs the same; V is
 * all ones: each output is 1 and each LSE the logarithm of the number of keys. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mla/mla.h>

#define HEADS    16
#define SEQS     2
#define PAGES    8
#define ROW      576
#define V_DIM    512
#define O_ROW    INT64_C(2048) /* bytes: V_DIM floats */
#define E4M3_ONE 0x38
#define TIMEOUT  5000000 /* us */

static void must(struct mla_client *client, enum mla_status status, const char *what)
{
    if (status == MLA_OK)
        return;
    const struct mla_error_info *e = mla_last_error(client);
    fprintf(stderr, "%s: %s: %s %s\n", what, mla_errname(status), e->text, e->field);
    exit(1);
}

/* Where the parts of the one region lie. */
enum { CACHE_AT = 0, Q_AT = CACHE_AT + PAGES * 64 * ROW, O_AT = Q_AT + SEQS * HEADS * ROW };
enum { LSE_AT = O_AT + SEQS * HEADS * (int)O_ROW, ALL_BYTES = LSE_AT + SEQS * HEADS * 4 };

static struct mla_view view_of(mla_region_id region, uint64_t offset, int64_t row_bytes)
{
    struct mla_view v;
    memset(&v, 0, sizeof(v));
    v.region = region;
    v.offset = offset;
    v.head_stride = row_bytes;
    v.token_stride = HEADS * row_bytes;
    v.compact = true;
    return v;
}

int main(int argc, char **argv)
{
    const uint32_t q_len[SEQS] = {1, 1}, kv_len[SEQS] = {300, 64};
    const uint32_t entries[] = {7, 0, 5, 2, 1, 3}; /* five pages of the first sequence, one of the second */

    struct mla_options options;
    struct mla_client *client;
    struct mla_error_info error;
    mla_options_init(&options);
    options.socket_path = argc > 1 ? argv[1] : NULL;
    options.name = "example-worker";
    options.flags = MLA_OPEN_WAIT;
    if (mla_open(&options, &client, &error) != MLA_OK) {
        fprintf(stderr, "mla_open: %s\n", error.text);
        return 1;
    }
    printf("mlad %s, backend %s, %s\n", mla_server(client)->version, mla_server(client)->backend,
           mla_server(client)->gpu_uuid);

    /* Memory that both sides map. What the daemon only reads may be registered READ; here one region has all. */
    struct mla_memory memory;
    mla_region_id region;
    if (mla_memory_create(ALL_BYTES, 0, &memory) != MLA_OK) {
        perror("mla_memory_create");
        return 1;
    }
    memset((uint8_t *)memory.addr + CACHE_AT, E4M3_ONE, Q_AT - CACHE_AT);
    must(client, mla_memory_register(client, &memory, MLA_ACCESS_READ_WRITE, "example", TIMEOUT, &region), "register");

    struct mla_cache_desc desc;
    mla_cache_id cache;
    mla_cache_desc_init(&desc);
    desc.region = region;
    desc.offset = CACHE_AT;
    desc.num_pages = PAGES;
    must(client, mla_cache_define(client, &desc, TIMEOUT, &cache), "define cache");

    struct mla_tables tables;
    mla_tables_init(&tables);
    tables.id = 1;
    tables.n_seqs = SEQS;
    tables.q_len = q_len;
    tables.kv_len_max = kv_len;
    tables.entries = entries;
    tables.n_entries = sizeof(entries) / sizeof(entries[0]);
    must(client, mla_tables_put(client, &tables, 0), "put tables"); /* sent, not waited for */

    struct mla_decode_args args;
    struct mla_decode_result result;
    mla_decode_args_init(&args);
    mla_decode_result_init(&result);
    args.cache = cache;
    args.tables = tables.id;
    args.heads = HEADS;
    args.q = view_of(region, Q_AT, ROW);
    args.o = view_of(region, O_AT, O_ROW);
    args.lse = view_of(region, LSE_AT, 4);
    args.out_type = MLA_DTYPE_F32;
    args.softmax_scale = 1.0f / 24.0f;
    must(client, mla_decode(client, &args, TIMEOUT, &result), "decode");
    printf("batch %llu, %u tiles, %u items, %u splits, queued %llu us, ran %llu us\n", (unsigned long long)result.batch,
           result.tiles, result.items, result.splits, (unsigned long long)result.queue_us,
           (unsigned long long)result.run_us);

    const float *o = (const float *)(const void *)((const uint8_t *)memory.addr + O_AT);
    const float *lse = (const float *)(const void *)((const uint8_t *)memory.addr + LSE_AT);
    double worst = 0.0;
    for (int s = 0; s < SEQS; s++) {
        for (int i = 0; i < HEADS * V_DIM; i++)
            worst = fmax(worst, fabs(o[s * HEADS * V_DIM + i] - 1.0));
        for (int h = 0; h < HEADS; h++)
            worst = fmax(worst, fabs(lse[s * HEADS + h] - log(kv_len[s])));
    }
    printf("O[0] = %g, LSE[0] = %g, largest error %.2g\n", (double)o[0], (double)lse[0], worst);

    must(client, mla_cache_drop(client, cache, TIMEOUT), "drop cache");
    must(client, mla_region_unregister(client, region, TIMEOUT), "unregister");
    mla_close(client);
    mla_memory_free(&memory);
    return worst < 1e-2 ? 0 : 1;
}
