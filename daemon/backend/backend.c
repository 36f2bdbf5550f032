/* The contract of backend.h, checked where every backend passes by. A caller that breaks it gets -EINVAL and a line in
 * the log that names the rule, instead of a device thread that works on nonsense. */
#include "daemon/backend/backend.h"

#include <errno.h>

#include "daemon/util/log.h"

static int broken(const char *rule)
{
    mla_log(MLA_LOG_ERROR, "backend_contract", "rule=%s", rule);
    return -EINVAL;
}

int be_open(struct be *be, const struct be_ops *ops, const struct be_config *config, struct mla_error *err)
{
    be->ops = NULL;
    be->impl = NULL;
    if (!ops || !config)
        return broken("open needs a table and a configuration");
    struct backend *impl = NULL;
    int rc = ops->open(config, &impl, err);
    if (rc != 0)
        return rc;
    be->ops = ops;
    be->impl = impl;
    return 0;
}

void be_close(struct be *be)
{
    if (be->impl)
        be->ops->close(be->impl);
    be->ops = NULL;
    be->impl = NULL;
}

const struct be_facts *be_facts(const struct be *be)
{
    return be->ops->facts(be->impl);
}

void be_spin(struct be *be, bool spins)
{
    be->ops->spin(be->impl, spins);
}

int be_event_fd(const struct be *be)
{
    return be->ops->event_fd(be->impl);
}

size_t be_poll(struct be *be, struct be_event *out, size_t cap)
{
    return cap == 0 ? 0 : be->ops->poll(be->impl, out, cap);
}

static int check_map(const struct be_region *region)
{
    if (!region)
        return broken("map names a region");
    if (region->address != 0 || region->impl)
        return broken("a region is mapped once");
    if (region->sync && region->access != MLA_ACCESS_READ_WRITE)
        return broken("sync pages are mapped read-write");
    return 0;
}

static int check_launch(const struct be *be, const struct be_batch *batch)
{
    if (!batch || !batch->plan)
        return broken("a launch has a batch and a plan");
    if (batch->n_jobs != 0 && (!batch->jobs || !batch->seqs))
        return broken("a batch with jobs has their records");
    if (batch->n_done != 0 && !batch->done)
        return broken("a batch with done words names them");
    if (batch->plan->workspace_bytes > be_facts(be)->workspace_bytes)
        return broken("a plan fits the workspace");
    for (uint32_t j = 0; j < batch->n_jobs; j++) {
        const struct mla_abi_job *job = &batch->jobs[j];
        if (job->heads == 0 || job->pages_per_entry == 0 || job->status == 0)
            return broken("a job has heads, pages per entry and status words");
        if (job->first_seq > batch->n_seqs || job->n_seqs > batch->n_seqs - job->first_seq)
            return broken("the sequences of a job are in its batch");
    }
    return 0;
}

static int check_step(const struct be *be, const struct be_step *step)
{
    if (!(be_facts(be)->features & MLA_FEATURE_STEP))
        return broken("the backend offers steps");
    if (!step || !step->layers || step->n_layers == 0)
        return broken("a step has layers");
    if (step->plan.n_jobs != 1 || (step->plan.n_seqs != 0 && !step->seqs))
        return broken("a step has one shape, and records of its sequences");
    for (uint32_t i = 0; i < step->n_layers; i++) {
        const struct be_layer *layer = &step->layers[i];
        if (!layer->ready || !layer->done)
            return broken("a layer names its words");
        if (layer->job.heads == 0 || layer->job.pages_per_entry == 0 || layer->job.status == 0 ||
            layer->job.n_seqs != step->plan.n_seqs)
            return broken("a layer has heads, pages per entry, status words and the step's sequences");
    }
    return 0;
}

static int check_mirror(const struct be *be, const struct be_request *request)
{
    if (!be->ops->device_alloc)
        return broken("the backend offers mirrors");
    return request->mirror.from && request->mirror.to != 0 && request->mirror.bytes != 0
               ? 0
               : broken("a mirror says what is copied, and where to");
}

int be_submit(struct be *be, struct be_request *request)
{
    int rc = 0;
    switch (request->op) {
    case BE_MAP:
        rc = check_map(request->region);
        break;
    case BE_UNMAP:
        rc = request->region ? 0 : broken("unmap names a region");
        break;
    case BE_WATCH:
        rc = request->watch.word ? 0 : broken("watch names a word");
        break;
    case BE_UNWATCH:
        rc = request->unwatch ? 0 : broken("unwatch names a watch");
        break;
    case BE_ABORT:
        rc = request->abort.word || request->abort.user_status ? 0 : broken("abort names a word or status words");
        break;
    case BE_LAUNCH:
        rc = check_launch(be, request->batch);
        break;
    case BE_STEP:
        rc = check_step(be, request->step);
        break;
    case BE_STEP_END:
        rc = request->step_end.step && request->step_end.code != MLA_OK ? 0 : broken("the end of a step says why");
        break;
    case BE_MIRROR:
        rc = check_mirror(be, request);
        break;
    default:
        rc = broken("the operation is known");
    }
    return rc != 0 ? rc : be->ops->submit(be->impl, request);
}

void *be_host_alloc(struct be *be, size_t bytes, uint64_t *address)
{
    return be->ops->host_alloc(be->impl, bytes, address);
}

void be_host_free(struct be *be, void *memory)
{
    if (memory)
        be->ops->host_free(be->impl, memory);
}

uint64_t be_device_alloc(struct be *be, size_t bytes)
{
    return be->ops->device_alloc ? be->ops->device_alloc(be->impl, bytes) : 0;
}

void be_device_free(struct be *be, uint64_t address, size_t bytes)
{
    be->ops->device_free(be->impl, address, bytes);
}

void be_fit(const struct be *be, struct plan_request *request)
{
    if (be->ops->fit)
        be->ops->fit(be->impl, request);
}

uint64_t be_scratch_bytes(const struct be *be, const struct plan_request *request)
{
    return be->ops->scratch_bytes ? be->ops->scratch_bytes(be->impl, request) : 0;
}

int be_workspace_for(const struct be *be, const struct plan_request *request, uint64_t *partial_bytes)
{
    const struct be_facts *facts = be_facts(be);
    uint64_t scratch = be_scratch_bytes(be, request);
    if (scratch < facts->scratch_bytes)
        scratch = facts->scratch_bytes;
    if (scratch - facts->scratch_bytes > facts->workspace_bytes)
        return -ENOSPC;
    *partial_bytes = facts->workspace_bytes - (scratch - facts->scratch_bytes);
    return 0;
}

uint64_t be_progress(const struct be *be)
{
    return be->ops->progress(be->impl);
}
