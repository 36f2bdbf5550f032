#include <stddef.h>
#include <string.h>

#include "kernels/host/internal.h"
#include "kernels/sm90/launch.h"

#define SCRATCH_ALIGN 256u

_Static_assert(sizeof(struct mla_sm90_unit) == 160, "read in vectors of 16 bytes");
_Static_assert(sizeof(struct mla_sm90_launch) <= sizeof(struct mla_kernels_launch), "more[]");
_Static_assert(offsetof(struct mla_sm90_launch, seq_tiles) == offsetof(struct mla_kernels_launch, more), "more[]");

static uint64_t place(uint64_t *at, uint64_t n, uint64_t bytes, uint64_t align)
{
    uint64_t here = *at;
    *at += (n * bytes + align - 1) / align * align;
    return here;
}

/* Sections of a blob. */
struct more_layout {
    uint64_t maps;
    uint64_t seq_tiles;
    uint64_t item_units;
    uint64_t seq_pages;
    uint64_t seq_tokens;
    uint64_t bytes;
};

static struct more_layout lay_out_more(uint32_t n_items, uint32_t n_jobs, uint32_t n_seqs)
{
    struct more_layout l;
    uint64_t at = 0;
    l.maps = place(&at, n_jobs, UINT64_C(2) * MAP_BYTES, 64);
    l.seq_tiles = place(&at, (uint64_t)n_seqs + 1, sizeof(uint32_t), 64);
    l.item_units = place(&at, n_items, sizeof(uint32_t), 64);
    l.seq_pages = place(&at, n_seqs, sizeof(uint32_t), 64);
    l.seq_tokens = place(&at, n_seqs, sizeof(uint32_t), 64);
    l.bytes = at;
    return l;
}

size_t kernels_more_bytes(const struct mla_kernels *k, uint32_t n_items, uint32_t n_jobs, uint32_t n_seqs)
{
    return kernels_have_units(k) ? (size_t)lay_out_more(n_items, n_jobs, n_seqs).bytes : 0;
}

/* Sections of the scratch, behind the partials. */
struct scratch_layout {
    uint64_t maps;
    uint64_t units;
    uint64_t pages;
    uint64_t limits;
    uint64_t bytes;
};

static struct scratch_layout lay_out_scratch(uint64_t units, uint64_t pages, uint64_t tokens, uint32_t n_jobs)
{
    struct scratch_layout l;
    uint64_t at = 0;
    l.maps = place(&at, n_jobs, UINT64_C(2) * MAP_BYTES, SCRATCH_ALIGN);
    l.units = place(&at, units, sizeof(struct mla_sm90_unit), SCRATCH_ALIGN);
    l.pages = place(&at, pages, sizeof(uint32_t), SCRATCH_ALIGN);
    l.limits = place(&at, tokens, sizeof(uint32_t), SCRATCH_ALIGN);
    l.bytes = at;
    return l;
}

uint64_t kernels_scratch_bytes(const struct mla_kernels *k, uint64_t units, uint64_t pages, uint64_t tokens,
                               uint32_t n_jobs)
{
    return kernels_have_units(k) ? lay_out_scratch(units, pages, tokens, n_jobs).bytes + SCRATCH_ALIGN : 0;
}

static uint64_t partial_bytes(const struct plan *plan)
{
    return (plan->workspace_bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

static uint32_t pages_of(uint32_t kv_len)
{
    return kv_len / MLA_ABI_PAGE_TOKENS + (kv_len % MLA_ABI_PAGE_TOKENS != 0);
}

static uint32_t units_of(const struct mla_kernels *k, uint32_t rows)
{
    return (rows + k->section.rows_per_unit - 1) / k->section.rows_per_unit;
}

uint64_t mla_kernels_workspace_bytes(const struct mla_kernels *k, const struct plan *plan, uint32_t n_jobs,
                                     const struct mla_abi_seq *seqs, uint32_t n_seqs)
{
    uint64_t units = 0, pages = 0, tokens = 0;
    if (!kernels_have_units(k))
        return plan->workspace_bytes;
    for (uint32_t i = 0; i < plan->n_items; i++)
        units += units_of(k, plan->tiles[plan->items[i].tile].rows);
    for (uint32_t s = 0; s < n_seqs; s++) {
        pages += pages_of(seqs[s].kv_len_max);
        tokens += seqs[s].q_len;
    }
    return partial_bytes(plan) + kernels_scratch_bytes(k, units, pages, tokens, n_jobs);
}

uint64_t mla_kernels_scratch_bytes_max(const struct mla_kernels *k, const struct plan_request *request)
{
    struct plan_capacity capacity;
    uint64_t pages = 0, tokens = 0;
    if (plan_bound(request, &capacity) != 0)
        return UINT64_MAX;
    for (uint32_t s = 0; s < request->n_seqs; s++) {
        pages += pages_of(request->seqs[s].kv_len);
        tokens += request->seqs[s].q_len;
    }
    uint64_t units = (uint64_t)capacity.items * units_of(k, request->tile_rows);
    uint64_t scratch = kernels_scratch_bytes(k, units, pages, tokens, request->n_jobs);
    return scratch == 0 ? 0 : scratch + SCRATCH_ALIGN;
}

size_t mla_kernels_more_bytes(const struct mla_kernels *k, const struct plan *plan, uint32_t n_jobs, uint32_t n_seqs)
{
    return kernels_more_bytes(k, plan->n_items, n_jobs, n_seqs);
}

uint32_t kernels_units_of_launch(const struct mla_kernels_launch *launch)
{
    struct mla_sm90_launch mine;
    memcpy(&mine, launch, sizeof mine);
    return mine.n_units;
}

/* First tile of each sequence; sequences without rows have none. */
static void write_tiles(const struct plan *plan, uint32_t n_seqs, uint32_t *seq_tiles)
{
    uint32_t tile = 0;
    for (uint32_t s = 0; s < n_seqs; s++) {
        seq_tiles[s] = tile;
        while (tile < plan->n_tiles && plan->tiles[tile].seq == s)
            tile++;
    }
    seq_tiles[n_seqs] = tile;
}

int mla_kernels_more_write(struct mla_kernels *k, const struct plan *plan, const struct mla_abi_job *jobs,
                           uint32_t n_jobs, const struct mla_abi_seq *seqs, uint32_t n_seqs, void *more,
                           uint64_t address, uint64_t workspace, struct mla_kernels_launch *launch)
{
    struct more_layout l = lay_out_more(plan->n_items, n_jobs, n_seqs);
    char *to = more;
    memset(launch->more, 0, sizeof launch->more);
    if (!kernels_have_units(k))
        return 0;
    for (uint32_t j = 0; j < n_jobs; j++) {
        int rc = kernels_tensor_maps(k, &jobs[j], launch->abi.jobs, to + l.maps + (size_t)j * 2 * MAP_BYTES);
        if (rc != 0)
            return rc;
    }
    uint32_t *item_units = (uint32_t *)(void *)(to + l.item_units);
    uint32_t *seq_pages = (uint32_t *)(void *)(to + l.seq_pages);
    uint32_t *seq_tokens = (uint32_t *)(void *)(to + l.seq_tokens);
    uint32_t units = 0, pages = 0, tokens = 0;
    write_tiles(plan, n_seqs, (uint32_t *)(void *)(to + l.seq_tiles));
    for (uint32_t i = 0; i < plan->n_items; i++) {
        item_units[i] = units;
        units += units_of(k, plan->tiles[plan->items[i].tile].rows);
    }
    for (uint32_t s = 0; s < n_seqs; s++) {
        seq_pages[s] = pages;
        seq_tokens[s] = tokens;
        pages += pages_of(seqs[s].kv_len_max);
        tokens += seqs[s].q_len;
    }
    struct scratch_layout scratch = lay_out_scratch(units, pages, tokens, n_jobs);
    uint64_t at = (workspace + partial_bytes(plan) + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    struct mla_sm90_launch mine = {
        .abi = launch->abi,
        .seq_tiles = address + l.seq_tiles,
        .item_units = address + l.item_units,
        .seq_pages = address + l.seq_pages,
        .seq_tokens = address + l.seq_tokens,
        .maps = address + l.maps,
        .map_copies = at + scratch.maps,
        .units = at + scratch.units,
        .page_ids = at + scratch.pages,
        .limits = at + scratch.limits,
        .n_units = units,
    };
    memcpy(launch, &mine, sizeof mine);
    return 0;
}
