/* A template on this side: its words, which end a stream's waiting when the connection ends. Shared by the calls
 * (client_step.c), the core (core_step.c) and the watcher's thread, which reads words under its lock. */
#ifndef MLA_CLIENT_TEMPLATE_H
#define MLA_CLIENT_TEMPLATE_H

#include "client/core.h"

struct mla_template {
    struct list node;    /* on core->templates until the handle is closed */
    struct list watched; /* on core->watch's list while the connection lives */
    struct mla_client *client;
    uint64_t id;
    uint64_t request; /* of its last step */
    bool broken;      /* a step failed */
    bool gone;        /* and the daemon has ended it */
    uint32_t n_layers;
    struct mlac_words words[];
};

/* Puts it on core's list, and the watcher's. */
void mlac_template_add(struct mlac_core *core, struct mla_template *t);
/* Off both; nobody touches its words any more. */
void mlac_template_remove(struct mlac_core *core, struct mla_template *t);
/* Words in [begin, end) are about to be unmapped. */
void mlac_template_forget(struct mlac_core *core, struct mla_template *t, const void *begin, const void *end);
/* No further step: done words that have not come to their values get their abort values. */
void mlac_template_break(struct mla_template *t, enum mla_status reason);
bool mlac_template_in_flight(const struct mlac_core *core, const struct mla_template *t);

#endif
