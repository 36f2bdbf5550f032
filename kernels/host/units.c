#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "kernels/host/internal.h"
#include "kernels/sm90/launch.h"

#define SCRATCH_ALIGN 256u
#define CLUSTERS_MAX  1024u

_Static_assert(sizeof(struct mla_sm90_unit) == 160, "read in vectors of 16 bytes");
_Static_assert(sizeof(struct mla_sm90_reduce) == 96, "the same");
_Static_assert(sizeof(struct mla_sm90_part) == 32 && sizeof(struct mla_sm90_seq) == 240, "the same");
_Static_assert(MLA_SM90_MAP_BYTES == 2 * MAP_BYTES, "latent boxes and rope boxes");
_Static_assert(sizeof(struct mla_sm90_launch) <= sizeof(struct mla_kernels_launch), "more[]");
_Static_assert(offsetof(struct mla_sm90_launch, seqs) == offsetof(struct mla_kernels_launch, more), "more[]");

static uint64_t place(uint64_t *at, uint64_t n, uint64_t bytes, uint64_t align)
{
    uint64_t here = *at;
    *at += (n * bytes + align - 1) / align * align;
    return here;
}

/* Sections of a blob. */
struct more_layout {
    uint64_t maps;
    uint64_t seqs;
    uint64_t parts;
    uint64_t lists;
    uint64_t reduces;
    uint64_t bytes;
};

static struct more_layout lay_out_more(const struct mla_kernels *k, uint64_t units, uint32_t n_reduces, uint32_t n_jobs,
                                       uint32_t n_seqs)
{
    struct more_layout l;
    uint64_t at = 0;
    l.maps = place(&at, n_jobs, MLA_SM90_MAP_BYTES, 64);
    l.seqs = place(&at, n_seqs, sizeof(struct mla_sm90_seq), 64);
    l.parts = place(&at, units, sizeof(struct mla_sm90_part), 64);
    l.lists = place(&at, (uint64_t)k->facts.device.resident_units + 1, sizeof(uint32_t), 64);
    l.reduces = place(&at, n_reduces, sizeof(struct mla_sm90_reduce), 64);
    l.bytes = at;
    return l;
}

uint32_t kernels_units_of_rows(const struct mla_kernels *k, uint32_t rows)
{
    return (rows + k->section.rows_per_unit - 1) / k->section.rows_per_unit;
}

uint64_t kernels_units_max(const struct mla_kernels *k, const struct plan_request *request, uint32_t items)
{
    uint64_t rows = 1;
    for (uint32_t s = 0; s < request->n_seqs; s++) {
        uint64_t of_seq = (uint64_t)request->seqs[s].q_len * request->heads;
        rows = of_seq > rows ? of_seq : rows;
    }
    return (uint64_t)items * kernels_units_of_rows(k, rows < request->tile_rows ? (uint32_t)rows : request->tile_rows);
}

uint64_t kernels_least_bound(const struct mla_kernels *k, const struct plan_request *request,
                             uint64_t (*bound)(const struct mla_kernels *, const struct plan_request *))
{
    uint64_t together = bound(k, request), alone = 0;
    if (together == UINT64_MAX || request->n_jobs < 2)
        return together;
    for (uint32_t j = 0; j < request->n_jobs && alone < together; j++) {
        struct plan_job job = request->jobs[j];
        struct plan_request one = *request;
        one.jobs = &job;
        one.n_jobs = 1;
        one.seqs += job.first_seq;
        one.n_seqs = job.n_seqs;
        job.first_seq = 0;
        alone += bound(k, &one); /* of less than all, so there is one */
    }
    return alone < together ? alone : together;
}

uint64_t kernels_units_of_plan(const struct mla_kernels *k, const struct plan *plan)
{
    uint64_t units = 0;
    if (plan->rows_per_unit == k->section.rows_per_unit && plan->item_units != 0)
        return plan->item_units;
    /* Made for other kernels, or not by plan_build(). */
    for (uint32_t i = 0; i < plan->n_items; i++)
        units += kernels_units_of_rows(k, plan->tiles[plan->items[i].tile].rows);
    return units;
}

/* Sections of the scratch, behind the partials. */
struct scratch_layout {
    uint64_t maps;
    uint64_t units;
    uint64_t pages;
    uint64_t limits;
    uint64_t sums;
    uint64_t faults;
    uint64_t bytes;
};

static struct scratch_layout lay_out_scratch(const struct mla_kernels *k, uint64_t units, uint64_t pages,
                                             uint64_t tokens, uint32_t n_jobs, uint32_t n_seqs)
{
    struct scratch_layout l;
    uint64_t at = 0;
    l.maps = place(&at, n_jobs, MLA_SM90_MAP_BYTES, SCRATCH_ALIGN);
    l.units = place(&at, units, sizeof(struct mla_sm90_unit), SCRATCH_ALIGN);
    l.pages = place(&at, pages, sizeof(uint32_t), SCRATCH_ALIGN);
    l.limits = place(&at, tokens, sizeof(uint32_t), SCRATCH_ALIGN);
    l.sums = place(&at, (uint64_t)k->facts.device.resident_units * k->section.ctas_per_unit, MLA_SM90_SUMS_BYTES,
                   SCRATCH_ALIGN);
    l.faults = place(&at, n_seqs, sizeof(uint64_t), SCRATCH_ALIGN);
    l.bytes = at;
    return l;
}

/* Of the workspace; 0 without a prepare kernel. */
static uint64_t scratch_bytes(const struct mla_kernels *k, uint64_t units, uint64_t pages, uint64_t tokens,
                              uint32_t n_jobs, uint32_t n_seqs)
{
    return kernels_have_units(k) ? lay_out_scratch(k, units, pages, tokens, n_jobs, n_seqs).bytes + SCRATCH_ALIGN : 0;
}

static uint64_t partial_bytes(const struct plan *plan)
{
    return (plan->workspace_bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

static uint32_t pages_of(uint32_t kv_len)
{
    return kv_len / MLA_ABI_PAGE_TOKENS + (kv_len % MLA_ABI_PAGE_TOKENS != 0);
}

uint64_t mla_kernels_workspace_bytes(const struct mla_kernels *k, const struct plan *plan, uint32_t n_jobs,
                                     const struct mla_abi_seq *seqs, uint32_t n_seqs)
{
    uint64_t pages = 0, tokens = 0;
    if (!kernels_have_units(k))
        return plan->workspace_bytes;
    for (uint32_t s = 0; s < n_seqs; s++) {
        pages += pages_of(seqs[s].kv_len_max);
        tokens += seqs[s].q_len;
    }
    return partial_bytes(plan) + scratch_bytes(k, kernels_units_of_plan(k, plan), pages, tokens, n_jobs, n_seqs);
}

static uint64_t scratch_bound(const struct mla_kernels *k, const struct plan_request *request)
{
    struct plan_capacity capacity;
    uint64_t pages = 0, tokens = 0;
    if (plan_bound(request, &capacity) != 0)
        return UINT64_MAX;
    for (uint32_t s = 0; s < request->n_seqs; s++) {
        pages += pages_of(request->seqs[s].kv_len);
        tokens += request->seqs[s].q_len;
    }
    uint64_t units = kernels_units_max(k, request, capacity.items);
    uint64_t scratch = scratch_bytes(k, units, pages, tokens, request->n_jobs, request->n_seqs);
    return scratch == 0 ? 0 : scratch + SCRATCH_ALIGN;
}

uint64_t mla_kernels_scratch_bytes_max(const struct mla_kernels *kernels, const struct plan_request *request)
{
    return kernels_least_bound(kernels, request, scratch_bound);
}

size_t kernels_more_bytes(const struct mla_kernels *k, uint64_t units, uint32_t n_reduces, uint32_t n_jobs,
                          uint32_t n_seqs)
{
    return kernels_have_units(k) ? (size_t)lay_out_more(k, units, n_reduces, n_jobs, n_seqs).bytes : 0;
}

size_t mla_kernels_more_bytes(const struct mla_kernels *k, const struct plan *plan, uint32_t n_jobs, uint32_t n_seqs)
{
    return kernels_more_bytes(k, kernels_units_of_plan(k, plan), plan->n_reduces, n_jobs, n_seqs);
}

uint32_t kernels_clusters_of_units(const struct mla_kernels *k, uint64_t units)
{
    uint32_t most = k->facts.device.resident_units < CLUSTERS_MAX ? k->facts.device.resident_units : CLUSTERS_MAX;
    return units < most ? (uint32_t)units : most;
}

uint32_t kernels_units_of_launch(const struct mla_kernels_launch *launch)
{
    struct mla_sm90_launch mine;
    memcpy(&mine, launch, sizeof mine);
    return mine.n_units;
}

/* Token 0, head 0 of a sequence. */
static uint64_t first_of(const struct mla_abi_tensor *x, uint32_t seq_of_job, uint32_t first_token)
{
    if (x->base == 0)
        return 0;
    int64_t offset = x->compact ? first_token * x->token_stride : seq_of_job * x->seq_stride;
    return x->base + (uint64_t)offset;
}

/* What the units of all sequences of a job have alike. */
static struct mla_sm90_unit unit_of(const struct mla_abi_job *job)
{
    const float log2_e = 1.4426950408889634f;
    bool e4m3 = job->out_type == MLA_ABI_OUT_E4M3, rope = job->q_rope.base != 0;
    struct mla_sm90_unit unit = {
        .q_token = job->q.token_stride,
        .q_head = job->q.head_stride,
        .out_token = job->o.token_stride,
        .out_head = job->o.head_stride,
        .lse_token = job->lse.token_stride,
        .lse_head = job->lse.head_stride,
        .heads = job->heads,
        .out_type = job->out_type,
        .score_scale = job->score_scale * log2_e,
        .out_scale = e4m3 ? job->kv_scale * job->inv_out_scale : job->kv_scale,
        .beyond = job->num_pages > 0 ? job->num_pages : 1, /* maps of a plane without pages are of one page */
    };
    unit.q_rope_token = rope ? job->q_rope.token_stride : unit.q_token;
    unit.q_rope_head = rope ? job->q_rope.head_stride : unit.q_head;
    return unit;
}

static uint64_t element(uint64_t array, uint64_t index, uint64_t bytes)
{
    return array != 0 ? array + index * bytes : 0;
}

static struct mla_sm90_seq seq_of(const struct mla_abi_job *job)
{
    return (struct mla_sm90_seq){
        .unit = unit_of(job),
        .mask = (uint16_t)job->mask,
        .pages_per_entry = job->pages_per_entry,
        .num_pages = job->num_pages,
    };
}

/* All of a sequence's record but its parts, and the places in the scratch. alike: seq_of() its job; copied and filled
 * in where it lies, since a batch may have very many. */
static void write_seq(const struct mla_abi_job *job, const struct mla_sm90_seq *alike, const struct mla_abi_seq *seq,
                      uint32_t of_job, struct mla_sm90_seq *to)
{
    uint64_t parts = to->parts;
    uint32_t n_parts = to->n_parts;
    uint16_t flags = to->flags;
    *to = *alike;
    to->parts = parts;
    to->n_parts = n_parts;
    to->flags = flags;
    to->unit.q = first_of(&job->q, of_job, seq->first_token);
    to->unit.q_rope =
        job->q_rope.base != 0 ? first_of(&job->q_rope, of_job, seq->first_token) : to->unit.q + MLA_ABI_V_DIM;
    to->unit.out = first_of(&job->o, of_job, seq->first_token);
    to->unit.lse = first_of(&job->lse, of_job, seq->first_token);
    to->kv_len = element(job->kv_len, of_job, sizeof(int32_t));
    to->table = element(job->table, seq->table_first, sizeof(int32_t));
    if (job->mask == MLA_ABI_MASK_VISIBLE)
        to->visible = element(job->visible, seq->first_token, sizeof(int32_t));
    to->status = element(job->status, of_job, sizeof(uint64_t));
    to->user_status = element(job->user_status, of_job, sizeof(uint64_t));
    to->q_len = seq->q_len;
    to->kv_len_max = seq->kv_len_max;
}

/* When clusters are done with what they have been given: a heap, the first to be free on top. */
struct clusters {
    uint32_t n;
    struct cluster {
        uint64_t free_ns;
        uint32_t index;
    } heap[CLUSTERS_MAX];
};

static void clusters_init(struct clusters *c, uint32_t n)
{
    c->n = n;
    for (uint32_t i = 0; i < n; i++)
        c->heap[i] = (struct cluster){0, i};
}

static bool sooner(const struct cluster *a, const struct cluster *b)
{
    return a->free_ns != b->free_ns ? a->free_ns < b->free_ns : a->index < b->index;
}

/* Gives a unit to the cluster that is free first, as the planner assumed. */
static uint32_t clusters_give(struct clusters *c, uint64_t duration_ns)
{
    struct cluster given = c->heap[0];
    uint32_t to = given.index, hole = 0;
    given.free_ns += duration_ns;
    for (;;) {
        uint32_t child = 2 * hole + 1;
        if (child >= c->n)
            break;
        if (child + 1 < c->n && sooner(&c->heap[child + 1], &c->heap[child]))
            child++;
        if (!sooner(&c->heap[child], &given))
            break;
        c->heap[hole] = c->heap[child];
        hole = child;
    }
    c->heap[hole] = given;
    return to;
}

static uint64_t duration_of(const struct plan_costs *costs, const struct mla_abi_item *item)
{
    uint64_t ns = (uint64_t)costs->fill_ns + costs->drain_ns;
    if (item->partial_row != MLA_ABI_NO_PARTIAL)
        ns += costs->partial_ns;
    return ns + (uint64_t)(item->page_end - item->page_begin) * costs->page_ns;
}

/* Which units are whose: lists[c] becomes the first unit of cluster c. */
static void make_lists(const struct mla_kernels *k, const struct plan *plan, uint32_t n_clusters, uint32_t *lists)
{
    struct clusters clusters;
    clusters_init(&clusters, n_clusters);
    memset(lists, 0, ((size_t)n_clusters + 1) * sizeof *lists);
    for (uint32_t i = 0; i < plan->n_items; i++)
        for (uint32_t n = kernels_units_of_rows(k, plan->tiles[plan->items[i].tile].rows); n > 0; n--)
            lists[clusters_give(&clusters, duration_of(&k->facts.costs, &plan->items[i])) + 1]++;
    for (uint32_t c = 0; c < n_clusters; c++)
        lists[c + 1] += lists[c];
}

/* Parts of a sequence together, in any order; unit records cluster by cluster, a cluster's in the order of items. */
static void write_parts(const struct mla_kernels *k, const struct plan *plan, uint32_t n_seqs, uint32_t n_clusters,
                        const uint32_t *lists, struct mla_sm90_seq *seqs, struct mla_sm90_part *parts, uint64_t address)
{
    struct clusters clusters;
    uint32_t given[CLUSTERS_MAX];
    uint64_t first = 0;
    clusters_init(&clusters, n_clusters);
    memcpy(given, lists, n_clusters * sizeof *lists);
    for (uint32_t t = 0; t < plan->n_tiles; t++)
        seqs[plan->tiles[t].seq].n_parts += plan->tiles[t].n_items * kernels_units_of_rows(k, plan->tiles[t].rows);
    for (uint32_t s = 0, t = 0; s < n_seqs; s++) {
        uint64_t rows = 0;
        for (; t < plan->n_tiles && plan->tiles[t].seq == s; t++)
            rows += plan->tiles[t].rows;
        if (rows != (uint64_t)seqs[s].q_len * seqs[s].unit.heads)
            seqs[s].flags |= MLA_SM90_SEQ_PART;
        seqs[s].parts = address + first * sizeof *parts;
        first += seqs[s].n_parts;
        seqs[s].n_parts = 0;
    }
    for (uint32_t i = 0; i < plan->n_items; i++) {
        const struct mla_abi_item *item = &plan->items[i];
        const struct mla_abi_tile *tile = &plan->tiles[item->tile];
        struct mla_sm90_seq *seq = &seqs[tile->seq];
        struct mla_sm90_part *to = parts + (seq->parts - address) / sizeof *parts + seq->n_parts;
        bool split = item->partial_row != MLA_ABI_NO_PARTIAL;
        const uint32_t unit_rows = k->section.rows_per_unit;
        for (uint32_t row = 0; row < tile->rows; row += unit_rows) {
            uint32_t rows = tile->rows - row;
            *to++ = (struct mla_sm90_part){
                .unit = given[clusters_give(&clusters, duration_of(&k->facts.costs, item))]++,
                .page_begin = item->page_begin,
                .page_end = item->page_end,
                .row0 = tile->first_row + row,
                .rows = rows < unit_rows ? rows : unit_rows,
                .split = split,
                .partial_row = split ? (int64_t)item->partial_row - tile->first_row : 0,
            };
            seq->n_parts++;
        }
    }
}

/* records: of the sequences, written before. */
static void write_reduces(const struct plan *plan, const struct mla_abi_job *jobs, const struct mla_abi_seq *seqs,
                          const struct mla_sm90_seq *records, struct mla_sm90_reduce *to)
{
    for (uint32_t i = 0; i < plan->n_reduces; i++) {
        const struct mla_abi_reduce *reduce = &plan->reduces[i];
        const struct mla_abi_tile *tile = &plan->tiles[reduce->tile];
        const struct mla_abi_job *job = &jobs[seqs[tile->seq].job];
        const struct mla_sm90_unit *unit = &records[tile->seq].unit;
        to[i] = (struct mla_sm90_reduce){.partial_row = reduce->partial_row,
                                         .n_partials = reduce->n_partials,
                                         .rows = reduce->rows,
                                         .first_row = tile->first_row,
                                         .out = unit->out,
                                         .out_token = unit->out_token,
                                         .out_head = unit->out_head,
                                         .lse = unit->lse,
                                         .lse_token = unit->lse_token,
                                         .lse_head = unit->lse_head,
                                         .heads = job->heads,
                                         .out_type = job->out_type,
                                         .kv_scale = job->kv_scale,
                                         .inv_out_scale = job->inv_out_scale,
                                         .seq = tile->seq};
    }
}

/* again: the plan's sections are there already, and what the records of sequences have of them. */
int kernels_more_write(struct mla_kernels *k, const struct plan *plan, const struct mla_abi_job *jobs, uint32_t n_jobs,
                       const struct mla_abi_seq *seqs, uint32_t n_seqs, void *more, uint64_t address,
                       uint64_t workspace, bool again, struct mla_kernels_launch *launch)
{
    memset(launch->more, 0, sizeof launch->more);
    if (!kernels_have_units(k))
        return 0;
    uint64_t units = kernels_units_of_plan(k, plan), pages = 0, tokens = 0;
    struct more_layout l = lay_out_more(k, units, plan->n_reduces, n_jobs, n_seqs);
    for (uint32_t s = 0; s < n_seqs; s++) {
        pages += pages_of(seqs[s].kv_len_max);
        tokens += seqs[s].q_len;
    }
    struct scratch_layout scratch = lay_out_scratch(k, units, pages, tokens, n_jobs, n_seqs);
    uint64_t at = (workspace + partial_bytes(plan) + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    uint64_t page_ids = at + scratch.pages, limits = at + scratch.limits;
    unsigned char *maps = (unsigned char *)more + l.maps;
    struct mla_sm90_seq *records = (struct mla_sm90_seq *)(void *)((char *)more + l.seqs);
    for (uint32_t j = 0; j < n_jobs; j++) {
        int rc = kernels_tensor_maps(k, &jobs[j], launch->abi.jobs, maps + (size_t)j * MLA_SM90_MAP_BYTES);
        if (rc != 0)
            return rc;
    }
    struct mla_sm90_seq alike;
    for (uint32_t s = 0; s < n_seqs; s++) {
        uint32_t job = seqs[s].job, of_job = s - jobs[job].first_seq;
        if (s == 0 || job != seqs[s - 1].job)
            alike = seq_of(&jobs[job]);
        if (!again)
            records[s].parts = records[s].n_parts = records[s].flags = 0;
        write_seq(&jobs[job], &alike, &seqs[s], of_job, &records[s]);
        records[s].unit.map = at + scratch.maps + (uint64_t)job * MLA_SM90_MAP_BYTES;
        records[s].unit.pages = page_ids;
        records[s].unit.limits = limits;
        records[s].maps = of_job == 0 ? address + l.maps + (uint64_t)job * MLA_SM90_MAP_BYTES : 0;
        page_ids += (uint64_t)pages_of(seqs[s].kv_len_max) * sizeof(uint32_t);
        limits += (uint64_t)seqs[s].q_len * sizeof(uint32_t);
    }
    uint32_t n_clusters = kernels_clusters_of_units(k, units);
    uint32_t *lists = (uint32_t *)(void *)((char *)more + l.lists);
    if (!again) {
        make_lists(k, plan, n_clusters, lists);
        write_parts(k, plan, n_seqs, n_clusters, lists, records,
                    (struct mla_sm90_part *)(void *)((char *)more + l.parts), address + l.parts);
    }
    write_reduces(plan, jobs, seqs, records, (struct mla_sm90_reduce *)(void *)((char *)more + l.reduces));
    struct mla_sm90_launch mine = {
        .abi = launch->abi,
        .seqs = address + l.seqs,
        .units = at + scratch.units,
        .lists = address + l.lists,
        .sums = at + scratch.sums,
        .faults = at + scratch.faults,
        .n_units = (uint32_t)units,
        .reduces = address + l.reduces,
    };
    memcpy(launch, &mine, sizeof mine);
    return 0;
}

int mla_kernels_more_write(struct mla_kernels *kernels, const struct plan *plan, const struct mla_abi_job *jobs,
                           uint32_t n_jobs, const struct mla_abi_seq *seqs, uint32_t n_seqs, void *more,
                           uint64_t address, uint64_t workspace, struct mla_kernels_launch *launch)
{
    return kernels_more_write(kernels, plan, jobs, n_jobs, seqs, n_seqs, more, address, workspace, false, launch);
}
