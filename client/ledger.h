/* What a client has made at the daemon, kept so that it can be made again: regions, sync pages, caches and their names,
 * attachments, table sets. Ids here are the caller's; the daemon of another connection knows the same object by another
 * one, its wire id. No I/O but the duplicated descriptors of regions; one thread at a time. */
#ifndef MLA_CLIENT_LEDGER_H
#define MLA_CLIENT_LEDGER_H

#include <stdbool.h>
#include <stdint.h>
#include <uthash.h>

#include "proto/enums.h"
#include "proto/limits.h"
#include "proto/status.h"

#include "daemon/util/list.h"

#include <mla/mla.h>

enum mlac_kind { MLAC_REGION, MLAC_PAGE, MLAC_CACHE, MLAC_ATTACHMENT };

struct mlac_region_spec {
    struct mla_region_desc desc; /* strings, handle and parts below; fd is ours */
    char label[MLA_MAX_NAME_BYTES + 1];
    char gpu_uuid[MLA_MAX_NAME_BYTES + 1];
    uint8_t handle[64];
    struct mla_vmm_part *parts; /* with descriptors of ours, unless open_part makes them */
};

struct mlac_cache_spec {
    struct mla_cache_desc desc; /* strings and planes below */
    char label[MLA_MAX_NAME_BYTES + 1];
    uint64_t *planes;
    uint64_t tag;
    bool named;    /* published */
    bool name_due; /* and to be published again */
    char name[MLA_MAX_NAME_BYTES + 1];
    uint32_t gids[MLA_MAX_GIDS];
    size_t n_gids;
};

struct mlac_attachment_spec {
    uint32_t owner_uid; /* MLA_UID_SELF: the caller's */
    char name[MLA_MAX_NAME_BYTES + 1];
    uint64_t tag;
    struct mla_cache_info info; /* what it was */
};

struct mlac_object {
    struct list node; /* by time of making */
    UT_hash_handle hh;
    uint64_t id, wire;
    enum mlac_kind kind;
    bool there;     /* the daemon of this connection has it */
    bool missing;   /* it could not be made again: there is none */
    bool suspended; /* a region; not made again before its RESUME, nor are the caches in it */
    bool asked;     /* an attachment: ATTACH_CACHE is at the daemon */
    union {
        struct mlac_region_spec region;
        struct {
            int fd; /* the sync page's own */
            uint64_t size;
        } page;
        struct mlac_cache_spec cache;
        struct mlac_attachment_spec attachment;
    };
};

/* A table set, as long as it is put or a job in flight uses it. */
struct mlac_tables {
    struct list node;
    UT_hash_handle hh; /* by id, while live */
    uint64_t id;
    uint64_t wire; /* the daemon's; one of the library's own when the caller has dropped it */
    uint32_t refs; /* live counts as one */
    bool live;
    bool there;
    bool missing;             /* it was refused when it was put again */
    struct mla_tables arrays; /* owned */
    uint32_t data[];
};

struct mlac_ledger {
    struct list objects;
    struct mlac_object *by_id;
    struct list tables;
    struct mlac_tables *live;
    uint64_t last_wire; /* of table sets of the library's own */
    size_t n_garbage;   /* of them, at the daemon and used by nobody any more */
    bool remapped;      /* wire ids may differ from ids */
};

/* seed: where the ids of table sets of the library's own begin. */
void mlac_ledger_init(struct mlac_ledger *l, uint64_t seed);
void mlac_ledger_free(struct mlac_ledger *l);

/* An object that the daemon has just made, by its id; NULL: no memory, and it will not be made again. Region: takes
 * over open_user when open_done is set, and calls that on failure too. */
struct mlac_object *mlac_ledger_region(struct mlac_ledger *l, uint64_t id, const struct mla_region_desc *desc);
struct mlac_object *mlac_ledger_page(struct mlac_ledger *l, uint64_t id, int fd, uint64_t size);
struct mlac_object *mlac_ledger_cache(struct mlac_ledger *l, uint64_t id, const struct mla_cache_desc *desc,
                                      uint64_t tag);
struct mlac_object *mlac_ledger_attachment(struct mlac_ledger *l, const struct mla_cache_info *info, uint32_t owner_uid,
                                           const char *name, uint64_t tag);
/* A resumed region has new handles. */
void mlac_ledger_resumed(struct mlac_ledger *l, struct mlac_object *region, const struct mla_region_desc *desc);

struct mlac_object *mlac_ledger_find(const struct mlac_ledger *l, uint64_t id);
/* By wire id, among attachments. */
struct mlac_object *mlac_ledger_attached(const struct mlac_ledger *l, uint64_t wire);
void mlac_ledger_remove(struct mlac_ledger *l, struct mlac_object *o);
/* A cache lies in that region. */
bool mlac_ledger_has_caches(const struct mlac_ledger *l, uint64_t region);

/* What the daemon of this connection knows id by; what is not there, or not in the ledger, by id itself. */
uint64_t mlac_ledger_wire(const struct mlac_ledger *l, uint64_t id);

/* The daemon has answered OK to an UNREGISTER, DROP, DETACH or SUSPEND (enum mla_msg_type) of id. */
void mlac_ledger_ended(struct mlac_ledger *l, uint16_t type, uint64_t id);

/* The connection has ended: nothing is there. */
void mlac_ledger_cut(struct mlac_ledger *l);
/* The next object to be made, or published, again; NULL: none. Attachments are not among them. */
struct mlac_object *mlac_ledger_next(const struct mlac_ledger *l);
/* The next table set to be put again. */
struct mlac_tables *mlac_ledger_next_tables(const struct mlac_ledger *l);

/* ---- table sets ---- */

/* A copy, live, with a reference for the caller; NULL: no memory, or the id is live. */
struct mlac_tables *mlac_tables_add(struct mlac_ledger *l, const struct mla_tables *tables);
/* The live one, with a reference for the caller; NULL: none. */
struct mlac_tables *mlac_tables_use(struct mlac_ledger *l, uint64_t id);
/* No longer live. */
void mlac_tables_remove(struct mlac_ledger *l, struct mlac_tables *t);
void mlac_tables_unref(struct mlac_ledger *l, struct mlac_tables *t);
/* One that is to be dropped at the daemon, by its wire id, and is forgotten here; false: there is none. */
bool mlac_tables_garbage(struct mlac_ledger *l, uint64_t *wire);

/* ---- jobs ---- */

enum mlac_objects { MLAC_ALL_THERE, MLAC_HOLD, MLAC_NOT_THERE };

/* Whether what a job names is there: HOLD: it waits for an attachment; NOT_THERE: *why (CACHE_GONE, SUSPENDED). What
 * the ledger does not know is the daemon's to refuse. */
enum mlac_objects mlac_ledger_job(const struct mlac_ledger *l, const struct mla_decode_args *a, enum mla_status *why);

#endif
