/* Shares of clients ([weights] of the configuration): by the name that a client gives itself, by user, by group. Users
 * and groups are resolved to numbers once, as in access.h. */
#ifndef MLA_DAEMON_APP_WEIGHTS_H
#define MLA_DAEMON_APP_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/app/config.h"
#include "daemon/net/net.h"

/* Of one list: an entry has three characters at least, and one between it and the next. */
#define WEIGHTS_MAX (CONFIG_TEXT_BYTES / 4)

struct weight_list {
    struct weight_entry {
        char pattern[MLA_MAX_NAME_BYTES + 1]; /* of clients */
        uint32_t id;                          /* of users and groups */
        uint32_t weight;
    } entries[WEIGHTS_MAX];
    size_t n;
};

struct weight_rules {
    struct weight_list clients, users, groups;
    uint32_t other; /* of whoever is in none */
};

/* Reads the three lists: NAME:WEIGHT with blanks or commas between them; names of clients are shell patterns. 0, or -1
 * with a sentence that names the key. May ask name services, as access_resolve(). */
int weights_resolve(struct weight_rules *out, const struct app_config *config, char *why, size_t why_bytes);

/* Of the first entry that fits: in the list of clients, else of users, else of groups, supplementary ones included. */
uint32_t weights_find(const struct weight_rules *rules, const struct net_creds *creds, const char *client_name);

#endif
