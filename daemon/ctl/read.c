#include <inttypes.h>
#include <stdio.h>

#include "daemon/ctl/ctl.h"
#include "daemon/util/json.h"

const char *ctl_health_name(enum mla_health state)
{
    switch (state) {
    case MLA_HEALTH_STARTING:
        return "starting";
    case MLA_HEALTH_READY:
        return "ready";
    case MLA_HEALTH_DEGRADED:
        return "degraded";
    case MLA_HEALTH_DRAINING:
        return "draining";
    case MLA_HEALTH_FAILED:
        return "failed";
    }
    return "unknown";
}

int ctl_health(struct ctl *ctl)
{
    struct mla_health_info *h;
    if (mla_read_health(ctl->client, ctl->timeout_us, &h) != MLA_OK)
        return ctl_fail(ctl, "health");
    if (ctl->json) {
        struct json j;
        json_init(&j, stdout);
        json_object(&j, NULL);
        json_string(&j, "state", ctl_health_name(h->state));
        json_string(&j, "reason", h->reason);
        json_double(&j, "uptime_seconds", (double)h->uptime_us * 1e-6);
        json_string(&j, "version", h->version);
        json_string(&j, "backend", h->backend);
        json_string(&j, "gpu_uuid", h->gpu_uuid);
        json_string(&j, "isolation", h->isolation);
        json_end(&j);
        putchar('\n');
    } else {
        printf("%s%s%s, up %.1f s, version %s, backend %s (%s), %s\n", ctl_health_name(h->state),
               h->reason[0] ? ": " : "", h->reason, (double)h->uptime_us * 1e-6, h->version, h->backend, h->isolation,
               h->gpu_uuid);
    }
    int code = h->state == MLA_HEALTH_READY      ? CTL_EXIT_OK
               : h->state == MLA_HEALTH_DEGRADED ? CTL_EXIT_DEGRADED
                                                 : CTL_EXIT_NOT_READY;
    mla_free(h);
    return code;
}

int ctl_status(struct ctl *ctl)
{
    struct mla_daemon_info *d;
    if (mla_read_daemon(ctl->client, ctl->timeout_us, &d) != MLA_OK)
        return ctl_fail(ctl, "status");
    const struct {
        const char *key, *text;
        uint64_t number;
    } rows[] = {
        {"version", d->version, 0},
        {"backend", d->backend, 0},
        {"gpu_uuid", d->gpu_uuid, 0},
        {"device_name", d->device_name, 0},
        {"health", ctl_health_name(d->health), 0},
        {"uptime_us", NULL, d->uptime_us},
        {"clients", NULL, d->clients},
        {"regions", NULL, d->regions},
        {"mapped_bytes", NULL, d->mapped_bytes},
        {"caches", NULL, d->caches},
        {"jobs_waiting", NULL, d->jobs_waiting},
        {"jobs_queued", NULL, d->jobs_queued},
        {"jobs_running", NULL, d->jobs_running},
        {"batches", NULL, d->batches},
        {"units", NULL, d->units},
        {"rows_per_unit", NULL, d->rows_per_unit},
        {"workspace_bytes", NULL, d->workspace_bytes},
        {"device_memory_bytes", NULL, d->device_memory_bytes},
    };
    struct json j;
    json_init(&j, stdout);
    if (ctl->json)
        json_object(&j, NULL);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (ctl->json && rows[i].text != NULL)
            json_string(&j, rows[i].key, rows[i].text);
        else if (ctl->json)
            json_u64(&j, rows[i].key, rows[i].number);
        else if (rows[i].text != NULL)
            printf("%-19s %s\n", rows[i].key, rows[i].text);
        else
            printf("%-19s %" PRIu64 "\n", rows[i].key, rows[i].number);
    }
    if (ctl->json) {
        char nonce[17];
        snprintf(nonce, sizeof(nonce), "%016" PRIx64, d->boot_nonce);
        json_string(&j, "boot_nonce", nonce);
        json_end(&j);
        putchar('\n');
    }
    mla_free(d);
    return CTL_EXIT_OK;
}

int ctl_clients(struct ctl *ctl)
{
    struct mla_client_list *list;
    if (mla_read_clients(ctl->client, ctl->timeout_us, &list) != MLA_OK)
        return ctl_fail(ctl, "clients");
    struct json j;
    json_init(&j, stdout);
    if (ctl->json)
        json_array(&j, NULL);
    else
        printf("%-16s %-20s %8s %6s %10s %8s %14s %7s %7s %9s %10s %6s\n", "client", "name", "pid", "uid", "up_s",
               "regions", "mapped_bytes", "caches", "tables", "in_flight", "answered", "weight");
    for (size_t i = 0; i < list->n_clients; i++) {
        const struct mla_client_info *c = list->clients[i];
        char id[17];
        snprintf(id, sizeof(id), "%016" PRIx64, c->client_id);
        if (!ctl->json) {
            printf("%-16s %-20s %8u %6u %10.1f %8" PRIu64 " %14" PRIu64 " %7" PRIu64 " %7" PRIu64 " %9" PRIu64
                   " %10" PRIu64 " %6u\n",
                   id, c->name, c->pid, c->uid, (double)c->connected_us * 1e-6, c->regions, c->mapped_bytes, c->caches,
                   c->table_sets, c->jobs_in_flight, c->jobs_answered, c->weight);
            continue;
        }
        json_object(&j, NULL);
        json_string(&j, "client", id);
        json_string(&j, "name", c->name);
        json_u64(&j, "pid", c->pid);
        json_u64(&j, "uid", c->uid);
        json_double(&j, "connected_seconds", (double)c->connected_us * 1e-6);
        json_u64(&j, "regions", c->regions);
        json_u64(&j, "mapped_bytes", c->mapped_bytes);
        json_u64(&j, "caches", c->caches);
        json_u64(&j, "table_sets", c->table_sets);
        json_u64(&j, "jobs_in_flight", c->jobs_in_flight);
        json_u64(&j, "jobs_answered", c->jobs_answered);
        json_u64(&j, "weight", c->weight);
        json_end(&j);
    }
    if (ctl->json) {
        json_end_array(&j);
        putchar('\n');
    }
    mla_free(list);
    return CTL_EXIT_OK;
}

int ctl_caches(struct ctl *ctl)
{
    struct mla_cache_list *list;
    if (mla_read_caches(ctl->client, ctl->timeout_us, &list) != MLA_OK)
        return ctl_fail(ctl, "caches");
    struct json j;
    json_init(&j, stdout);
    if (ctl->json)
        json_array(&j, NULL);
    else
        printf("%-24s %-16s %6s %12s %7s %10s %9s %s\n", "name", "owner", "uid", "pages", "planes", "per_entry",
               "attached", "label");
    for (size_t i = 0; i < list->n_caches; i++) {
        const struct mla_cache_entry *c = list->caches[i];
        char owner[17];
        snprintf(owner, sizeof(owner), "%016" PRIx64, c->owner);
        if (!ctl->json) {
            printf("%-24s %-16s %6u %12" PRIu64 " %7u %10u %9" PRIu64 " %s\n", c->name[0] ? c->name : "-", owner,
                   c->owner_uid, c->num_pages, c->planes, c->tokens_per_entry, c->attachments, c->label);
            continue;
        }
        json_object(&j, NULL);
        json_string(&j, "name", c->name);
        json_string(&j, "owner", owner);
        json_u64(&j, "owner_uid", c->owner_uid);
        json_u64(&j, "num_pages", c->num_pages);
        json_u64(&j, "planes", c->planes);
        json_u64(&j, "tokens_per_entry", c->tokens_per_entry);
        json_u64(&j, "attachments", c->attachments);
        json_string(&j, "label", c->label);
        json_end(&j);
    }
    if (ctl->json) {
        json_end_array(&j);
        putchar('\n');
    }
    mla_free(list);
    return CTL_EXIT_OK;
}

int ctl_drain(struct ctl *ctl)
{
    uint64_t in_flight;
    if (mla_drain(ctl->client, ctl->has_deadline ? &ctl->deadline_us : NULL, ctl->timeout_us, &in_flight) != MLA_OK)
        return ctl_fail(ctl, "drain");
    if (ctl->json)
        printf("{\"draining\": true, \"jobs_in_flight\": %" PRIu64 "}\n", in_flight);
    else
        printf("draining, %" PRIu64 " jobs in flight\n", in_flight);
    return CTL_EXIT_OK;
}

static void done(const struct ctl *ctl, const char *what)
{
    printf(ctl->json ? "{\"%s\": true}\n" : "%s\n", what);
}

int ctl_evict(struct ctl *ctl)
{
    if (mla_evict(ctl->client, ctl->client_id, ctl->timeout_us) != MLA_OK)
        return ctl_fail(ctl, "evict");
    done(ctl, "evicted");
    return CTL_EXIT_OK;
}

int ctl_reload(struct ctl *ctl)
{
    if (mla_reload(ctl->client, ctl->timeout_us) != MLA_OK)
        return ctl_fail(ctl, "reload");
    done(ctl, "reloaded");
    return CTL_EXIT_OK;
}
