/* Who may connect and who has the admin right, by uid and gid: lists of the configuration, resolved to numbers once so
 * that no connection waits for a name service. */
#ifndef MLA_DAEMON_APP_ACCESS_H
#define MLA_DAEMON_APP_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/app/config.h"
#include "daemon/net/net.h"

#define ACCESS_IDS_MAX 64 /* of one list */

struct access_list {
    uint32_t ids[ACCESS_IDS_MAX];
    size_t n;
};

struct access_rights {
    struct access_list users, groups; /* both empty: whoever may write to the socket */
    struct access_list admin_users, admin_groups;
};

/* Reads the four lists: names or numbers with blanks or commas between them. 0, or -1 with a sentence that names the
 * key. May ask name services, so not while clients wait for the loop, save for a reload that an admin asked for. */
int access_resolve(struct access_rights *out, const struct app_config *config, char *why, size_t why_bytes);

/* Of one user or group, by name or number. 0, or -1: there is none. */
int access_id_of(const char *name, bool group, uint32_t *id);

/* Root and the daemon's own user have both rights always; an admin may connect. */
bool access_may_connect(const struct access_rights *rights, const struct net_creds *creds);
bool access_may_admin(const struct access_rights *rights, const struct net_creds *creds);

/* Whether one of the peer's groups, supplementary ones included, is in the list. */
bool access_in_groups(const struct net_creds *creds, const uint32_t *gids, size_t n_gids);

#endif
