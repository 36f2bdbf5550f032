/* Templates and their steps, for template.c and step.c only.
 *
 * A template keeps the requests of its layers; what they name is looked up when it is opened and again at a STEP when
 * any memory or cache of the daemon has changed hands since, or the table set is another. Its objects are pinned while
 * a step is in flight only. */
#ifndef MLA_DAEMON_APP_TEMPLATE_H
#define MLA_DAEMON_APP_TEMPLATE_H

#include "daemon/app/state.h"

#define TEMPLATES_MAX 64 /* of a client */

struct app_template {
    uint64_t id; /* the client's */
    struct app_client *client;
    struct mla_decode_request *requests; /* n_layers of them, without pointers */
    uint32_t n_layers;
    uint64_t bytes; /* charged to the client */
    UT_hash_handle hh;

    /* As looked up last. */
    uint64_t generation; /* app.memory_generation of that; 0: never */
    struct app_table_set *tables;
    uint64_t tables_serial;
    struct sched_object **pins; /* of all layers, each once */
    uint32_t n_pins, pins_cap;
    struct be_layer *layers;
    struct mla_abi_seq *seqs; /* and what the plan says of them: n_seqs of both, room for cap_seqs */
    struct plan_seq *plan_seqs;
    uint32_t cap_seqs;
    struct plan_job plan_job;
    uint64_t *status; /* [layers][sequences]; backend host memory of status_bytes */
    uint64_t status_address, status_bytes;
    struct be_step step;

    /* The step in flight. */
    bool running;
    bool ended;       /* the backend has answered; code says how */
    uint32_t pending; /* requests at the backend beside it: STEP_END and ABORTs */
    enum mla_status code;
    uint64_t request_id, received_ns;
    struct app_request request, end;
    struct app_request *aborts; /* one per layer */
    bool end_wanted, end_sent;  /* of STEP_END: asked for, at the backend */
    enum mla_status end_code;
    uint64_t end_at_ns;
    struct list in_app; /* of app.steps */
};

struct app_template *template_find(struct app_client *client, uint64_t id);
/* Looks everything up for the table set; does nothing when nothing has changed. 0, or positive with *err (index: the
 * layer). */
int template_resolve(struct app_template *t, uint64_t table_set, struct mla_error *err);
/* Its id is free; the record, too, where no step is in flight. */
void template_leave(struct app_template *t);

/* step.c: as a deadline, with a code of its own; at_ns 0: at once. */
void step_end(struct app_template *t, enum mla_status code, uint64_t at_ns);

#endif
