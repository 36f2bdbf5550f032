/* A client that gives mlactl something to show: one published cache, one decode answered, one that waits for its ready
 * word. Says "holding" and keeps it so until its standard input ends, then lets the decode run. Its names hold
 * characters that JSON escapes.
 *
 *     test_mlactl_worker SOCKET */
#include <mla/mla.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define HEADS   2
#define TIMEOUT 10000000 /* us */

enum { CACHE_AT = 0, Q_AT = 2 * 64 * 576, O_AT = Q_AT + HEADS * 576, ALL_BYTES = O_AT + HEADS * 512 * 2 };

static void must(struct mla_client *client, enum mla_status status, const char *what)
{
    if (status == MLA_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, mla_errname(status), mla_last_error(client)->text);
    exit(1);
}

static struct mla_view view(mla_region_id region, uint64_t offset, int64_t row_bytes)
{
    struct mla_view v = {.region = region,
                         .offset = offset,
                         .token_stride = HEADS * row_bytes,
                         .head_stride = row_bytes,
                         .compact = true};
    return v;
}

static void put_tables(struct mla_client *client)
{
    const uint32_t q_len = 1, kv_len = 100, entries[] = {1, 0};
    struct mla_tables t;
    mla_tables_init(&t);
    t.id = 5;
    t.n_seqs = 1;
    t.q_len = &q_len;
    t.kv_len_max = &kv_len;
    t.entries = entries;
    t.n_entries = 2;
    must(client, mla_tables_put(client, &t, TIMEOUT), "tables");
}

static void hold(struct mla_client *client, struct mla_decode_args *args)
{
    struct mla_sync *sync;
    mla_request_id id;
    char byte;
    must(client, mla_sync_create(client, 1, TIMEOUT, &sync), "sync");
    args->ready = mla_sync_location(sync, 0);
    must(client, mla_decode_submit(client, args, NULL, NULL, &id), "submit");
    /* An answer to a later request: the decode before it has been received. */
    struct mla_health_info *health;
    must(client, mla_read_health(client, TIMEOUT, &health), "health");
    mla_free(health);
    puts("holding");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) == 1)
        continue;
    mla_word_store(mla_sync_word(sync, 0), 1);
    must(client, mla_wait(client, id, TIMEOUT, NULL), "the decode that waited");
    mla_close(client);
    mla_sync_destroy(sync, 0);
}

int main(int argc, char **argv)
{
    struct mla_options o;
    struct mla_client *client;
    struct mla_error_info error;
    struct mla_memory memory;
    mla_region_id region;
    struct mla_cache_desc d;
    mla_cache_id cache;
    mla_options_init(&o);
    o.socket_path = argc > 1 ? argv[1] : NULL;
    o.name = "worker \"1\" \\";
    if (mla_open(&o, &client, &error) != MLA_OK || mla_memory_create(ALL_BYTES, 0, &memory) != MLA_OK) {
        fprintf(stderr, "open: %s\n", error.text);
        return 1;
    }
    must(client, mla_memory_register(client, &memory, MLA_ACCESS_READ_WRITE, "all", TIMEOUT, &region), "register");
    mla_cache_desc_init(&d);
    d.region = region;
    d.offset = CACHE_AT;
    d.num_pages = 2;
    d.label = "label \"2\"";
    must(client, mla_cache_define(client, &d, TIMEOUT, &cache), "define");
    must(client, mla_cache_publish(client, cache, "kv.test-1", NULL, 0, TIMEOUT), "publish");
    put_tables(client);

    struct mla_decode_args a;
    mla_decode_args_init(&a);
    a.cache = cache;
    a.tables = 5;
    a.heads = HEADS;
    a.q = view(region, Q_AT, 576);
    a.o = view(region, O_AT, 1024);
    a.softmax_scale = 1.0f;
    must(client, mla_decode(client, &a, TIMEOUT, NULL), "decode");
    hold(client, &a);
    mla_memory_free(&memory);
    return 0;
}
