#include "kernels/plan/internal.h"

#include <errno.h>

uint32_t plan_visible_pages(uint32_t mask, uint32_t q_len, uint32_t kv_len, uint32_t token)
{
    uint64_t visible = kv_len;
    if (mask == MLA_ABI_MASK_CAUSAL) {
        /* Token t sees keys 0 .. kv_len - q_len + t; with kv_len < q_len the first tokens see none. */
        uint64_t end = (uint64_t)kv_len + token + 1;
        visible = end > q_len ? end - q_len : 0;
        if (visible > kv_len)
            visible = kv_len;
    }
    return (uint32_t)((visible + MLA_ABI_PAGE_TOKENS - 1) / MLA_ABI_PAGE_TOKENS);
}

static uint32_t clamp_row(uint64_t row, uint64_t before, uint32_t rows)
{
    if (row <= before)
        return 0;
    return row - before > rows ? rows : (uint32_t)(row - before);
}

void plan_part_of_sequence(const struct plan_job *job, uint64_t before, uint32_t rows, uint32_t *first, uint32_t *end)
{
    bool open = job->n_rows == 0 || job->n_rows > UINT64_MAX - job->skip_rows;
    *first = clamp_row(job->skip_rows, before, rows);
    *end = open ? rows : clamp_row(job->skip_rows + job->n_rows, before, rows);
}

int plan_tiles_add(const struct plan_request *request, uint32_t mask, uint32_t seq, uint32_t first, uint32_t end,
                   struct plan *plan)
{
    const struct plan_seq *s = &request->seqs[seq];
    uint32_t unit = request->device.rows_per_unit;
    plan->useful_rows += end - first;
    while (first < end) {
        uint32_t n = end - first < request->tile_rows ? end - first : request->tile_rows, behind = first + n;
        bool at_end = behind == s->q_len * request->heads; /* as most are, for which nothing is divided */
        if (plan->n_tiles == plan->capacity.tiles)
            return -ENOSPC;
        plan->tiles[plan->n_tiles++] = (struct mla_abi_tile){
            .seq = seq,
            .first_row = first,
            .rows = n,
            /* Later tokens see no less than earlier ones under every mask. */
            .pages =
                plan_visible_pages(mask, s->q_len, s->kv_len, at_end ? s->q_len - 1 : (behind - 1) / request->heads),
        };
        plan->row_slots += n <= unit ? unit : (uint64_t)plan_div_up(n, unit) * unit;
        first = behind;
    }
    return 0;
}
