/* The core's part of captured steps: what an answer, and the end of the connection, mean for a template. */
#include "client/template.h"
#include "client/watch.h"

void mlac_template_add(struct mlac_core *core, struct mla_template *t)
{
    list_init(&t->watched);
    list_push_back(&core->templates, &t->node);
    if (core->watch)
        mlac_watch_add_template(core->watch, t);
}

static void unwatch(struct mlac_core *core, struct mla_template *t)
{
    if (core->watch)
        mlac_watch_remove_template(core->watch, t);
}

void mlac_template_remove(struct mlac_core *core, struct mla_template *t)
{
    unwatch(core, t);
    list_del(&t->node);
    list_init(&t->node);
}

void mlac_template_forget(struct mlac_core *core, struct mla_template *t, const void *begin, const void *end)
{
    unwatch(core, t);
    for (uint32_t i = 0; i < t->n_layers; i++) {
        struct mlac_words *w = &t->words[i];
        if ((const void *)w->done >= begin && (const void *)w->done < end)
            w->done = NULL;
        if ((const void *)w->status >= begin && (const void *)w->status < end)
            w->n_status = 0;
    }
    if (core->watch && !core->ended)
        mlac_watch_add_template(core->watch, t);
}

void mlac_template_break(struct mla_template *t, enum mla_status reason)
{
    t->broken = true;
    for (uint32_t i = 0; i < t->n_layers; i++)
        mlac_words_abort(&t->words[i], reason);
}

bool mlac_template_in_flight(const struct mlac_core *core, const struct mla_template *t)
{
    const struct mlac_request *r = t->request ? mlac_request_find(core, t->request) : NULL;
    return r && (r->state == MLAC_FLIGHT || r->state == MLAC_HELD);
}

void mlac_core_end_templates(struct mlac_core *core)
{
    list_for_each (node, &core->templates) {
        struct mla_template *t = list_entry(node, struct mla_template, node);
        mlac_template_break(t, core->reason.code);
        unwatch(core, t);
    }
}

static bool went_through(enum mla_status status)
{
    return status == MLA_OK || status == MLA_PARTIAL || status == MLA_LATE;
}

void mlac_step_answered(struct mlac_request *r, enum mla_status status)
{
    struct mla_template *t = r->tmpl;
    r->tmpl = NULL;
    if (went_through(status) || status == MLA_BUSY)
        return;
    mlac_template_break(t, status);
    t->gone = true;
}

void mlac_fill_step_result(struct mla_step_result *out, uint64_t id, const struct mla_step_reply *reply)
{
    mla_step_result_init(out);
    out->request = id;
    out->status = reply->status.code;
    if (out->status != MLA_OK)
        mlac_error_info(&out->error, &reply->status);
    out->layers_done = reply->layers_done;
    out->layers_shared = reply->layers_shared;
    out->n_listed = (uint32_t)(reply->n_faults < MLA_FAULTS_MAX ? reply->n_faults : MLA_FAULTS_MAX);
    out->n_faults = reply->n_faults;
    if (reply->status.code == MLA_PARTIAL && reply->status.value > out->n_faults)
        out->n_faults = reply->status.value;
    for (uint32_t i = 0; i < out->n_listed; i++)
        out->faults[i] = (struct mla_step_fault){.layer = reply->faults[i].layer,
                                                 .sequence = reply->faults[i].sequence,
                                                 .status = reply->faults[i].code,
                                                 .index = reply->faults[i].index};
    out->wait_us = reply->timing.wait_us;
    out->queue_us = reply->timing.queue_us;
    out->run_us = reply->timing.run_us;
}
