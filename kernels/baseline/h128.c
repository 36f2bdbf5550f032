#include "kernels/baseline/h128.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/internal.h"

#define FILE_NAME     "h128.cubin"
#define SECTION_ALIGN 256u
#define BLOB_ALIGN    64u

struct h128 {
    const struct cuda_driver *driver;
    struct mla_kernels *kernels;
    CUmodule module;
    CUfunction pack;
    CUfunction unpack;
};

/* Places in the workspace. The library's own begins at library. */
struct layout {
    uint64_t q;
    uint64_t o;
    uint64_t lse;
    uint64_t status;
    uint64_t library;
    uint64_t bytes;
};

struct h128_job {
    struct h128 *h;
    struct h128_args args;
    struct mla_abi_job padded;
    struct mla_abi_seq *requests;
    struct h128_token *tokens;
    uint32_t *first_request;
    struct plan plan;
    struct layout layout;
    struct mla_kernels_launch launch; /* after h128_blob_write() */
};

static int driver_refuses(const struct h128 *h, const char *call, CUresult result, char *why, size_t why_bytes)
{
    snprintf(why, why_bytes, "%s: %s", call, cuda_driver_error(h->driver, result));
    return -EIO;
}

static int load(struct h128 *h, char *why, size_t why_bytes)
{
    char path[PATH_MAX];
    size_t bytes;
    const char *file = mla_kernels_facts(h->kernels)->file;
    const char *slash = strrchr(file, '/');
    snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - file) + 1 : 0, file, FILE_NAME);
    char *image = kernels_read_file(path, &bytes);
    if (!image) {
        snprintf(why, why_bytes, "%s: %s", path, strerror(errno));
        return -ENOENT;
    }
    CUresult result = h->driver->cuModuleLoadData(&h->module, image);
    free(image);
    if (result == CUDA_SUCCESS)
        result = h->driver->cuModuleGetFunction(&h->pack, h->module, "mla_h128_pack");
    if (result == CUDA_SUCCESS)
        result = h->driver->cuModuleGetFunction(&h->unpack, h->module, "mla_h128_unpack");
    return result == CUDA_SUCCESS ? 0 : driver_refuses(h, path, result, why, why_bytes);
}

int h128_open(const struct cuda_driver *driver, struct mla_kernels *kernels, struct h128 **out, char *why,
              size_t why_bytes)
{
    *out = NULL;
    struct h128 *h = calloc(1, sizeof *h);
    if (!h) {
        snprintf(why, why_bytes, "no memory");
        return -ENOMEM;
    }
    h->driver = driver;
    h->kernels = kernels;
    int rc = load(h, why, why_bytes);
    if (rc != 0) {
        h128_close(h);
        return rc;
    }
    *out = h;
    return 0;
}

void h128_close(struct h128 *h)
{
    if (!h)
        return;
    if (h->module)
        h->driver->cuModuleUnload(h->module);
    free(h);
}

static void *array(size_t n, size_t bytes)
{
    return calloc(n + 1, bytes);
}

static uint32_t requests_of(uint32_t q_len)
{
    return (q_len + H128_TOKENS - 1) / H128_TOKENS;
}

static int check(const struct h128_request *r, char *why, size_t why_bytes)
{
    const struct mla_abi_job *job = r->job;
    const char *wrong = NULL;
    if (job->heads == 0 || job->heads > H128_HEADS)
        wrong = "a job of 1 to 128 heads";
    else if (job->kv_len != 0 || job->user_status != 0 || job->first_seq != 0)
        wrong = "lengths on the host, no second status words, sequences from 0 on";
    for (uint32_t s = 0; s < job->n_seqs && !wrong; s++)
        if (r->seqs[s].job != 0)
            wrong = "sequences of one job";
    if (wrong)
        snprintf(why, why_bytes, "h128 wants %s", wrong);
    return wrong ? -EINVAL : 0;
}

/* Requests of a sequence: four tokens each, over the same table entries. The first token of one sees as much as in the
 * sequence when its length ends where its last token's keys do. */
static void split(struct h128_job *j, const struct mla_abi_seq *seq, uint32_t s)
{
    for (uint32_t t = 0; t < seq->q_len; t++)
        j->tokens[seq->first_token + t] = (struct h128_token){.seq = s, .token = t};
    for (uint32_t t = 0; t < seq->q_len; t += H128_TOKENS) {
        uint32_t left = seq->q_len - t, n = left < H128_TOKENS ? left : H128_TOKENS, behind = left - n;
        struct mla_abi_seq *request = &j->requests[j->args.n_requests++];
        *request = *seq;
        request->q_len = n;
        request->first_token = seq->first_token + t;
        if (j->padded.mask == MLA_ABI_MASK_CAUSAL)
            request->kv_len_max = seq->kv_len_max > behind ? seq->kv_len_max - behind : 0;
    }
}

static int make_requests(struct h128_job *j, const struct h128_request *r)
{
    uint32_t n_tokens = 0, n_requests = 0;
    for (uint32_t s = 0; s < r->job->n_seqs; s++) {
        n_tokens += r->seqs[s].q_len;
        n_requests += requests_of(r->seqs[s].q_len);
    }
    j->requests = array(n_requests, sizeof *j->requests);
    j->tokens = array(n_tokens, sizeof *j->tokens);
    j->first_request = array(r->job->n_seqs + (size_t)1, sizeof *j->first_request);
    if (!j->requests || !j->tokens || !j->first_request)
        return -ENOMEM;
    for (uint32_t s = 0; s < r->job->n_seqs; s++) {
        if (r->seqs[s].first_token > n_tokens || r->seqs[s].q_len > n_tokens - r->seqs[s].first_token)
            return -EINVAL;
        j->first_request[s] = j->args.n_requests;
        split(j, &r->seqs[s], s);
    }
    j->first_request[r->job->n_seqs] = n_requests;
    j->args.n_tokens = n_tokens;
    j->padded.n_seqs = n_requests;
    return 0;
}

static int make_plan(struct h128_job *j, const struct h128_request *r)
{
    const struct mla_kernels_facts *facts = mla_kernels_facts(j->h->kernels);
    struct plan *p = &j->plan;
    struct plan_job job = {.n_seqs = j->args.n_requests, .mask = r->job->mask};
    struct plan_seq *seqs = array(j->args.n_requests, sizeof *seqs);
    struct plan_request request = {.device = facts->device,
                                   .costs = facts->costs,
                                   .policy = r->policy,
                                   .tile_rows = facts->tile_rows,
                                   .heads = H128_HEADS,
                                   .splits = r->splits,
                                   .workspace_bytes_max = r->partial_bytes_max,
                                   .jobs = &job,
                                   .seqs = seqs,
                                   .n_jobs = 1,
                                   .n_seqs = j->args.n_requests};
    if (!seqs)
        return -ENOMEM;
    for (uint32_t i = 0; i < j->args.n_requests; i++)
        seqs[i] = (struct plan_seq){.q_len = j->requests[i].q_len, .kv_len = j->requests[i].kv_len_max};
    int rc = plan_bound(&request, &p->capacity);
    if (rc == 0) {
        p->tiles = array(p->capacity.tiles, sizeof *p->tiles);
        p->items = array(p->capacity.items, sizeof *p->items);
        p->reduces = array(p->capacity.reduces, sizeof *p->reduces);
        p->scratch = array(p->capacity.scratch_bytes, 1);
        rc = p->tiles && p->items && p->reduces && p->scratch ? plan_build(&request, p) : -ENOMEM;
    }
    free(seqs);
    return rc;
}

static uint64_t place(uint64_t *at, uint64_t n, uint64_t bytes)
{
    uint64_t here = *at;
    *at += (n * bytes + SECTION_ALIGN - 1) / SECTION_ALIGN * SECTION_ALIGN;
    return here;
}

static void lay_out(struct h128_job *j)
{
    uint64_t at = 0, rows = (uint64_t)j->args.n_tokens * H128_HEADS;
    struct layout *l = &j->layout;
    l->q = place(&at, rows, MLA_ABI_QK_DIM);
    l->o = place(&at, rows, (uint64_t)MLA_ABI_V_DIM * j->args.out_bytes);
    l->lse = place(&at, j->padded.lse.base != 0 ? rows : 0, sizeof(float));
    l->status = place(&at, j->args.n_requests, sizeof(uint64_t));
    l->library = at;
    l->bytes = at + mla_kernels_workspace_bytes(j->h->kernels, &j->plan, 1, j->requests, j->args.n_requests);
}

int h128_job_make(struct h128 *h, const struct h128_request *request, struct h128_job **out, char *why,
                  size_t why_bytes)
{
    const struct mla_abi_job *job = request->job;
    *out = NULL;
    int rc = check(request, why, why_bytes);
    if (rc != 0)
        return rc;
    struct h128_job *j = calloc(1, sizeof *j);
    if (!j) {
        snprintf(why, why_bytes, "no memory");
        return -ENOMEM;
    }
    j->h = h;
    j->padded = *job;
    j->padded.heads = H128_HEADS;
    j->args = (struct h128_args){.q = job->q,
                                 .q_rope = job->q_rope,
                                 .o = job->o,
                                 .lse = job->lse,
                                 .status = job->status,
                                 .n_seqs = job->n_seqs,
                                 .heads = job->heads,
                                 .out_bytes = job->out_type == MLA_ABI_OUT_F32    ? 4
                                              : job->out_type == MLA_ABI_OUT_BF16 ? 2
                                                                                  : 1};
    rc = make_requests(j, request);
    if (rc == 0)
        rc = make_plan(j, request);
    if (rc != 0) {
        snprintf(why, why_bytes, "h128 cannot plan this job: %s", strerror(-rc));
        h128_job_free(j);
        return rc;
    }
    lay_out(j);
    *out = j;
    return 0;
}

void h128_job_free(struct h128_job *j)
{
    if (!j)
        return;
    free(j->requests);
    free(j->tokens);
    free(j->first_request);
    free(j->plan.tiles);
    free(j->plan.items);
    free(j->plan.reduces);
    free(j->plan.scratch);
    free(j);
}

const struct plan *h128_job_plan(const struct h128_job *job)
{
    return &job->plan;
}

uint64_t h128_workspace_bytes(const struct h128_job *job)
{
    return job->layout.bytes;
}

static size_t blob_place(size_t *at, size_t n, size_t bytes)
{
    size_t here = *at;
    *at += (n * bytes + BLOB_ALIGN - 1) / BLOB_ALIGN * BLOB_ALIGN;
    return here;
}

/* Tokens, first requests, the library's blob. */
static size_t lay_out_blob(const struct h128_job *j, size_t *tokens, size_t *first_request, size_t *library)
{
    size_t at = 0;
    *tokens = blob_place(&at, j->args.n_tokens, sizeof *j->tokens);
    *first_request = blob_place(&at, j->args.n_seqs + (size_t)1, sizeof *j->first_request);
    *library = at;
    return at + mla_kernels_blob_bytes(j->h->kernels, &j->plan, 1, j->args.n_requests);
}

size_t h128_blob_bytes(const struct h128_job *job)
{
    size_t tokens, first_request, library;
    return lay_out_blob(job, &tokens, &first_request, &library);
}

/* Rows one after the other: token, head. */
static struct mla_abi_tensor rows_at(uint64_t base, uint32_t row_bytes)
{
    return (struct mla_abi_tensor){
        .base = base, .token_stride = (int64_t)H128_HEADS * row_bytes, .head_stride = row_bytes, .compact = 1};
}

int h128_blob_write(struct h128_job *j, void *blob, uint64_t address, uint64_t workspace)
{
    size_t tokens, first_request, library;
    char *to = blob;
    struct h128_args *a = &j->args;
    struct mla_abi_job *p = &j->padded;
    lay_out_blob(j, &tokens, &first_request, &library);
    memcpy(to + tokens, j->tokens, a->n_tokens * sizeof *j->tokens);
    memcpy(to + first_request, j->first_request, (a->n_seqs + (size_t)1) * sizeof *j->first_request);
    a->tokens = address + tokens;
    a->first_request = address + first_request;
    a->padded_q = workspace + j->layout.q;
    a->padded_o = workspace + j->layout.o;
    a->padded_lse = workspace + j->layout.lse;
    a->padded_status = workspace + j->layout.status;
    p->q = rows_at(a->padded_q, MLA_ABI_QK_DIM);
    p->q_rope = (struct mla_abi_tensor){0};
    p->o = rows_at(a->padded_o, MLA_ABI_V_DIM * a->out_bytes);
    p->lse = a->lse.base != 0 ? rows_at(a->padded_lse, sizeof(float)) : (struct mla_abi_tensor){0};
    p->status = a->padded_status;
    return mla_kernels_blob_write(j->h->kernels, &j->plan, p, 1, j->requests, a->n_requests, to + library,
                                  address + library, workspace + j->layout.library, &j->launch);
}

static int put_on_stream(const struct h128_job *j, CUfunction function, uint64_t ctas, uint32_t threads,
                         CUstream stream, CUresult *result)
{
    struct h128_args by_value = j->args;
    void *parameters[] = {&by_value};
    CUlaunchConfig config = {.gridDimX = (unsigned)ctas,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = threads,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream};
    CUresult r = j->h->driver->cuLaunchKernelEx(&config, function, parameters, NULL);
    if (result)
        *result = r;
    return r == CUDA_SUCCESS ? 0 : -EIO;
}

int h128_launch(const struct h128_job *j, CUstream stream, CUresult *result)
{
    const struct h128_args *a = &j->args;
    uint64_t pieces = (uint64_t)a->n_tokens * a->heads * (MLA_ABI_V_DIM / 16) * a->out_bytes;
    if (pieces < a->n_seqs)
        pieces = a->n_seqs;
    if (result)
        *result = CUDA_SUCCESS;
    if (a->n_tokens == 0)
        return 0;
    int rc = put_on_stream(j, j->h->pack, (uint64_t)a->n_tokens * H128_HEADS / H128_PACK_ROWS, H128_PACK_THREADS,
                           stream, result);
    if (rc == 0)
        rc = mla_kernels_launch(j->h->kernels, stream, &j->launch, result);
    if (rc == 0)
        rc = put_on_stream(j, j->h->unpack, (pieces + H128_UNPACK_THREADS - 1) / H128_UNPACK_THREADS,
                           H128_UNPACK_THREADS, stream, result);
    return rc;
}
