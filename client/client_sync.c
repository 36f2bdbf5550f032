/* Sync pages: words that both sides map. */
#include "client/client.h"
#include "client/template.h"

#include <stdlib.h>

#define SYNC_BYTES_MAX (1u << 20)

struct mla_sync {
    struct list node;          /* on client->syncs */
    struct mla_client *client; /* NULL once it is closed */
    struct mla_memory memory;
    mla_region_id region;
};

uint64_t mla_word_load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

void mla_word_store(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

enum mla_status mla_sync_create(struct mla_client *client, size_t n_words, uint64_t timeout_us, struct mla_sync **out)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    if (!out || !n_words)
        return mlac_fail(client, MLA_INVALID_ARGUMENT, out ? "n_words" : "out", "a sync page has at least one word");
    *out = NULL;
    if (n_words > SYNC_BYTES_MAX / MLA_WORD_BYTES) {
        mlac_fail(client, MLA_TOO_LARGE, "n_words", "a sync page has at most %u words",
                  SYNC_BYTES_MAX / MLA_WORD_BYTES);
        client->error.value = n_words;
        client->error.limit = SYNC_BYTES_MAX / MLA_WORD_BYTES;
        return MLA_TOO_LARGE;
    }
    struct mla_sync *s = calloc(1, sizeof(*s));
    if (!s)
        return mlac_fail(client, MLA_OUT_OF_MEMORY, NULL, "no memory for a sync page");
    status = mla_memory_create(n_words * MLA_WORD_BYTES, 0, &s->memory);
    if (status != MLA_OK) {
        free(s);
        return mlac_fail(client, status, NULL, "no memory for a sync page");
    }
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_REGISTER_SYNC);
    msg.register_sync.size = s->memory.size;
    const struct mla_message *reply;
    status = mlac_call(client, &msg, &s->memory.fd, 1, 0, timeout_us, &reply);
    if (status != MLA_OK) {
        mla_memory_free(&s->memory);
        free(s);
        return status;
    }
    s->client = client;
    s->region = reply->register_sync_reply.region;
    list_push_back(&client->syncs, &s->node);
    if (client->core.ledger)
        mlac_ledger_page(&client->ledger, s->region, s->memory.fd, s->memory.size);
    *out = s;
    return MLA_OK;
}

/* The words are about to be unmapped: no job may write its abort value any more. */
static bool holds(const struct mla_sync *s, const uint64_t *word)
{
    const uint8_t *begin = s->memory.addr;
    const uint8_t *at = (const uint8_t *)word;
    return at && at >= begin && at < begin + s->memory.size;
}

static void forget_words(const struct mla_sync *s)
{
    struct mlac_core *core = &s->client->core;
    list_for_each (node, &core->flight) {
        struct mlac_request *r = list_entry(node, struct mlac_request, order);
        if (holds(s, r->done_word))
            mlac_request_disarm(core, r);
        else if (r->done_word && holds(s, r->status_word))
            mlac_request_forget_status(core, r);
    }
    list_for_each (node, &core->templates)
        mlac_template_forget(core, list_entry(node, struct mla_template, node), s->memory.addr,
                             (const uint8_t *)s->memory.addr + s->memory.size);
}

enum mla_status mla_sync_destroy(struct mla_sync *sync, uint64_t timeout_us)
{
    if (!sync)
        return MLA_OK;
    if (sync->client && !sync->client->core.over) {
        enum mla_status status = mla_region_unregister(sync->client, sync->region, timeout_us);
        /* When the connection ends meanwhile, the page is ours alone. */
        if (status != MLA_OK && !sync->client->core.over)
            return status;
    }
    if (sync->client) {
        forget_words(sync);
        list_del(&sync->node);
    }
    mla_memory_free(&sync->memory);
    free(sync);
    return MLA_OK;
}

size_t mla_sync_words(const struct mla_sync *sync)
{
    return sync ? sync->memory.size / MLA_WORD_BYTES : 0;
}

uint64_t *mla_sync_word(const struct mla_sync *sync, size_t index)
{
    if (index >= mla_sync_words(sync))
        return NULL;
    return (uint64_t *)(void *)((uint8_t *)sync->memory.addr + index * MLA_WORD_BYTES);
}

struct mla_location mla_sync_location(const struct mla_sync *sync, size_t index)
{
    if (index >= mla_sync_words(sync))
        return (struct mla_location){0, 0};
    return (struct mla_location){.region = sync->region, .offset = index * MLA_WORD_BYTES};
}

uint64_t *mlac_sync_find(const struct mla_client *c, const struct mla_location *at, uint32_t n)
{
    if (!at->region)
        return NULL;
    list_for_each (node, &c->syncs) {
        const struct mla_sync *s = list_entry(node, struct mla_sync, node);
        if (s->region == at->region && at->offset % sizeof(uint64_t) == 0 && at->offset < s->memory.size &&
            n <= (s->memory.size - at->offset) / sizeof(uint64_t))
            return (uint64_t *)(void *)((uint8_t *)s->memory.addr + at->offset);
    }
    return NULL;
}

void mlac_sync_orphan(struct mla_client *c)
{
    list_for_each_safe (node, &c->syncs) {
        struct mla_sync *s = list_entry(node, struct mla_sync, node);
        list_del(node);
        s->client = NULL;
    }
}
