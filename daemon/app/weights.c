#include "daemon/app/weights.h"

#include <assert.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/app/access.h"
#include "daemon/sched/sched.h"

enum kind { CLIENTS, USERS, GROUPS };
static const char *const keys[] = {"clients", "users", "groups"};

static int read_weight(const char *text, uint32_t *weight)
{
    char *end;
    errno = 0;
    unsigned long v = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
    if (v < 1 || v > SCHED_WEIGHT_MAX || errno != 0 || *end != '\0')
        return -1;
    *weight = (uint32_t)v;
    return 0;
}

/* word: NAME:WEIGHT; cut at its last colon. */
static int read_entry(struct weight_entry *e, enum kind kind, char *word, char *why, size_t why_bytes)
{
    char *colon = strrchr(word, ':');
    if (colon == NULL || colon == word) {
        snprintf(why, why_bytes, "weights.%s: \"%.64s\" is not NAME:WEIGHT", keys[kind], word);
        return -1;
    }
    *colon = '\0';
    if (read_weight(colon + 1, &e->weight) != 0) {
        snprintf(why, why_bytes, "weights.%s: the weight of \"%.64s\" must be 1 to %u", keys[kind], word,
                 SCHED_WEIGHT_MAX);
        return -1;
    }
    if (kind == CLIENTS) {
        size_t n = strlen(word);
        if (n >= sizeof(e->pattern)) {
            snprintf(why, why_bytes, "weights.clients: \"%.64s...\" is longer than a name may be", word);
            return -1;
        }
        memcpy(e->pattern, word, n + 1);
    } else if (access_id_of(word, kind == GROUPS, &e->id) != 0) {
        snprintf(why, why_bytes, "weights.%s: there is no %s \"%.64s\"", keys[kind], kind == GROUPS ? "group" : "user",
                 word);
        return -1;
    }
    return 0;
}

static int resolve(struct weight_list *out, enum kind kind, const char *text, char *why, size_t why_bytes)
{
    char copy[CONFIG_TEXT_BYTES], *rest = NULL;
    snprintf(copy, sizeof(copy), "%s", text);
    out->n = 0;
    for (char *word = strtok_r(copy, " \t,", &rest); word != NULL; word = strtok_r(NULL, " \t,", &rest)) {
        struct weight_entry *e = &out->entries[out->n];
        assert(out->n < WEIGHTS_MAX);
        memset(e, 0, sizeof(*e));
        if (read_entry(e, kind, word, why, why_bytes) != 0)
            return -1;
        for (size_t i = 0; i < out->n; i++)
            if (out->entries[i].id == e->id && strcmp(out->entries[i].pattern, e->pattern) == 0) {
                snprintf(why, why_bytes, "weights.%s: \"%.64s\" stands there twice", keys[kind], word);
                return -1;
            }
        out->n++;
    }
    return 0;
}

int weights_resolve(struct weight_rules *out, const struct app_config *config, char *why, size_t why_bytes)
{
    out->other = (uint32_t)config->default_weight;
    if (resolve(&out->clients, CLIENTS, config->weight_clients, why, why_bytes) != 0 ||
        resolve(&out->users, USERS, config->weight_users, why, why_bytes) != 0 ||
        resolve(&out->groups, GROUPS, config->weight_groups, why, why_bytes) != 0)
        return -1;
    return 0;
}

uint32_t weights_find(const struct weight_rules *rules, const struct net_creds *creds, const char *client_name)
{
    for (size_t i = 0; i < rules->clients.n; i++)
        if (fnmatch(rules->clients.entries[i].pattern, client_name, 0) == 0)
            return rules->clients.entries[i].weight;
    for (size_t i = 0; i < rules->users.n; i++)
        if (rules->users.entries[i].id == creds->uid)
            return rules->users.entries[i].weight;
    for (size_t i = 0; i < rules->groups.n; i++)
        if (access_in_groups(creds, &rules->groups.entries[i].id, 1))
            return rules->groups.entries[i].weight;
    return rules->other;
}
