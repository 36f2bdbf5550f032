#include "daemon/app/access.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int number(const char *text, uint32_t *id)
{
    char *end;
    errno = 0;
    unsigned long v = strtoul(text, &end, 10);
    if (errno != 0 || *end != '\0' || v >= UINT32_MAX) /* the last one means none to the system */
        return -1;
    *id = (uint32_t)v;
    return 0;
}

int access_id_of(const char *name, bool group, uint32_t *id)
{
    if (*name >= '0' && *name <= '9')
        return number(name, id);
    if (group) {
        const struct group *g = getgrnam(name);
        *id = g == NULL ? 0 : g->gr_gid;
        return g == NULL ? -1 : 0;
    }
    const struct passwd *p = getpwnam(name);
    *id = p == NULL ? 0 : p->pw_uid;
    return p == NULL ? -1 : 0;
}

static int resolve(struct access_list *out, const char *key, const char *text, bool group, char *why, size_t why_bytes)
{
    char copy[CONFIG_TEXT_BYTES], *rest = NULL;
    snprintf(copy, sizeof(copy), "%s", text);
    out->n = 0;
    for (char *name = strtok_r(copy, " \t,", &rest); name != NULL; name = strtok_r(NULL, " \t,", &rest)) {
        if (out->n == ACCESS_IDS_MAX) {
            snprintf(why, why_bytes, "access.%s: more than %d entries", key, ACCESS_IDS_MAX);
            return -1;
        }
        if (access_id_of(name, group, &out->ids[out->n]) != 0) {
            snprintf(why, why_bytes, "access.%s: there is no %s \"%.64s\"", key, group ? "group" : "user", name);
            return -1;
        }
        out->n++;
    }
    return 0;
}

int access_resolve(struct access_rights *out, const struct app_config *config, char *why, size_t why_bytes)
{
    if (resolve(&out->users, "users", config->users, false, why, why_bytes) != 0 ||
        resolve(&out->groups, "groups", config->groups, true, why, why_bytes) != 0 ||
        resolve(&out->admin_users, "admin_users", config->admin_users, false, why, why_bytes) != 0 ||
        resolve(&out->admin_groups, "admin_groups", config->admin_groups, true, why, why_bytes) != 0)
        return -1;
    return 0;
}

static bool has_group(const struct net_creds *creds, uint32_t gid)
{
    if (creds->gid == gid)
        return true;
    for (size_t i = 0; i < creds->n_groups; i++)
        if (creds->groups[i] == gid)
            return true;
    return false;
}

bool access_in_groups(const struct net_creds *creds, const uint32_t *gids, size_t n_gids)
{
    for (size_t i = 0; i < n_gids; i++)
        if (has_group(creds, gids[i]))
            return true;
    return false;
}

static bool listed(const struct access_list *users, const struct access_list *groups, const struct net_creds *creds)
{
    for (size_t i = 0; i < users->n; i++)
        if (users->ids[i] == creds->uid)
            return true;
    return access_in_groups(creds, groups->ids, groups->n);
}

bool access_may_admin(const struct access_rights *rights, const struct net_creds *creds)
{
    return creds->uid == 0 || creds->uid == geteuid() || listed(&rights->admin_users, &rights->admin_groups, creds);
}

bool access_may_connect(const struct access_rights *rights, const struct net_creds *creds)
{
    return (rights->users.n == 0 && rights->groups.n == 0) || access_may_admin(rights, creds) ||
           listed(&rights->users, &rights->groups, creds);
}
