/* The end of a connection that another one follows: what becomes of requests, words and table sets. */
#include "client/core.h"
#include "client/template.h"
#include "client/watch.h"

void mlac_request_hold(struct mlac_core *core, struct mlac_request *r)
{
    core->n_unsent += !r->unsent;
    r->unsent = true;
}

void mlac_request_sent(struct mlac_core *core, struct mlac_request *r)
{
    core->n_unsent -= r->unsent;
    r->unsent = false;
}

static void cut_job(struct mlac_core *core, struct mlac_request *r)
{
    struct mla_error err = core->reason;
    enum mla_status status;
    if (r->state == MLAC_ANSWERED)
        return;
    r->facts.device_lost = r->state == MLAC_HELD;
    r->facts.ends += !r->unsent;
    if (r->type == MLA_MSG_STEP)
        r->facts.ordered = true;
    if (mlac_job_cut(&r->facts, &status) == MLAC_KEEP) {
        mlac_request_hold(core, r);
        return;
    }
    err.code = status;
    mlac_core_answer(core, r, &err);
}

/* A call that was given up on, and that another such call will ask for. */
static void cut_closing(struct mlac_core *core, struct mlac_request *r)
{
    if (r->state == MLAC_ANSWERED)
        return;
    if (r->type != MLA_MSG_TEMPLATE_CLOSE && r->type != MLA_MSG_DETACH_CACHE) {
        mlac_request_hold(core, r);
        return;
    }
    /* Attachments and templates go with their connection. */
    const struct mla_error none = {.code = MLA_OK};
    mlac_ledger_ended(core->ledger, r->type, r->object);
    mlac_error_info(&r->result.error, &none);
    r->state = MLAC_ANSWERED;
}

static void end_templates(struct mlac_core *core)
{
    mlac_core_end_templates(core);
    list_for_each (node, &core->templates)
        list_entry(node, struct mla_template, node)->gone = true;
}

void mlac_core_cut(struct mlac_core *core)
{
    end_templates(core);
    list_for_each_safe (node, &core->flight) {
        struct mlac_request *r = list_entry(node, struct mlac_request, order);
        if (r->done_word)
            mlac_abort_words(r, core->reason.code);
        mlac_request_disarm(core, r);
        r->tmpl = NULL;
        switch (r->role) {
        case MLAC_CALL:
            r->state = MLAC_ANSWERED; /* its call sees that the connection was cut */
            break;
        case MLAC_JOB:
            cut_job(core, r);
            break;
        case MLAC_CLOSING:
            cut_closing(core, r);
            break;
        default:
            mlac_request_free(core, r);
        }
    }
    mlac_ledger_cut(core->ledger);
    mlac_core_clear(core);
}

void mlac_core_reopen(struct mlac_core *core)
{
    core->ended = core->going = false;
    core->sent_bytes = 0;
}
