/* What the kernels that share out units hand each other, beside the computing. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_cuda/fake.h"

#define CTA_ROWS 64u

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* Of what the real one has in it only that which follows from the host's records, and tells one launch's from
 * another's. */
static struct mla_sm90_unit unit_of(const struct mla_sm90_seq *seq, const struct mla_sm90_part *part)
{
    struct mla_sm90_unit unit = seq->unit;
    unit.first_page = part->page_begin;
    unit.n_pages = part->page_end;
    unit.row0 = part->row0;
    unit.rows = part->rows;
    unit.out += (uint64_t)part->partial_row;
    return unit;
}

/* In the workspace, where they stay until another launch's are written. */
void fake_units_prepare(const struct mla_sm90_launch *l)
{
    const struct mla_sm90_seq *seqs = at(l->seqs);
    for (uint32_t s = 0; s < l->abi.n_seqs; s++) {
        const struct mla_sm90_part *parts = at(seqs[s].parts);
        for (uint32_t p = 0; p < seqs[s].n_parts; p++) {
            struct mla_sm90_unit unit = unit_of(&seqs[s], &parts[p]);
            memcpy(at(l->units + parts[p].unit * sizeof unit), &unit, sizeof unit);
        }
    }
}

/* Floats are compared by their bits: what was copied is the same, NaN too. */
static bool same_bits(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) == 0;
}

/* Each CTA of a cluster has up to 64 rows of a unit, and each cluster the units of its list: records of other kernels
 * than those that are launched would leave rows or units undone. */
void fake_units_check(const struct fake_op *op)
{
    const struct mla_sm90_launch *l = &op->kernel.units;
    const struct mla_sm90_seq *seqs = at(l->seqs);
    const uint32_t *lists = at(l->lists);
    uint64_t units = 0;
    for (uint32_t s = 0; s < l->abi.n_seqs; s++) {
        const struct mla_sm90_part *parts = at(seqs[s].parts);
        units += seqs[s].n_parts;
        for (uint32_t p = 0; p < seqs[s].n_parts; p++) {
            if (parts[p].rows > CTA_ROWS * op->kernel.cluster_ctas)
                fake_abort("a unit of %u rows for clusters of %u", parts[p].rows, op->kernel.cluster_ctas);
            struct mla_sm90_unit unit = unit_of(&seqs[s], &parts[p]);
            if (!same_bits(at(l->units + parts[p].unit * sizeof unit), &unit, sizeof unit))
                fake_abort("unit %u is not what the launch's prepare kernel makes of its records", parts[p].unit);
        }
    }
    if (units != l->n_units || lists[op->kernel.clusters] != l->n_units)
        fake_abort("%llu units of %u, and lists of %u for %u clusters", (unsigned long long)units, l->n_units,
                   lists[op->kernel.clusters], op->kernel.clusters);
}

static bool same_rows(const struct mla_abi_tensor *x, uint32_t of_job, uint32_t first_token, uint64_t base,
                      int64_t token, int64_t head)
{
    int64_t offset = x->compact ? first_token * x->token_stride : of_job * x->seq_stride;
    return x->base == 0 ? base == 0
                        : base == x->base + (uint64_t)offset && token == x->token_stride && head == x->head_stride;
}

/* What the real one reads instead of jobs, sequences and tiles, and what is computed here by these, must say the same:
 * records that another launch has left would not. */
void fake_units_check_reduces(const struct mla_sm90_launch *l)
{
    const struct mla_sm90_reduce *reduces = at(l->reduces);
    for (uint32_t i = 0; i < l->abi.n_reduces; i++) {
        const struct mla_sm90_reduce *r = &reduces[i];
        const struct mla_abi_reduce *abi = (const struct mla_abi_reduce *)at(l->abi.reduces) + i;
        const struct mla_abi_tile *tile = (const struct mla_abi_tile *)at(l->abi.tiles) + abi->tile;
        const struct mla_abi_seq *seq = (const struct mla_abi_seq *)at(l->abi.seqs) + tile->seq;
        const struct mla_abi_job *job = (const struct mla_abi_job *)at(l->abi.jobs) + seq->job;
        uint32_t of_job = tile->seq - job->first_seq;
        if (r->partial_row != abi->partial_row || r->n_partials != abi->n_partials || r->rows != abi->rows ||
            r->first_row != tile->first_row || r->seq != tile->seq)
            fake_abort("record %u of the reducer is of another tile", i);
        if (!same_rows(&job->o, of_job, seq->first_token, r->out, r->out_token, r->out_head) ||
            !same_rows(&job->lse, of_job, seq->first_token, r->lse, r->lse_token, r->lse_head) ||
            r->heads != job->heads || r->out_type != job->out_type ||
            !same_bits(&r->kv_scale, &job->kv_scale, sizeof r->kv_scale) ||
            !same_bits(&r->inv_out_scale, &job->inv_out_scale, sizeof r->inv_out_scale))
            fake_abort("record %u of the reducer is of another job", i);
    }
}

/* The items that units are of, from the records of the prepare kernel: a blob that came in its parameter has no others.
 * The first unit of each item stands for it. */
struct mla_abi_item *fake_units_items(const struct mla_sm90_launch *l)
{
    const struct mla_sm90_seq *seqs = at(l->seqs);
    const struct mla_abi_tile *tiles = at(l->abi.tiles);
    struct mla_abi_item *items = calloc(l->abi.n_items + 1, sizeof *items);
    uint32_t n = 0, first = 0;
    if (!items)
        fake_abort("no memory");
    for (uint32_t s = 0; s < l->abi.n_seqs; s++) {
        const struct mla_sm90_part *parts = at(seqs[s].parts);
        while (seqs[s].n_parts > 0 && tiles[first].seq < s)
            first++;
        for (uint32_t p = 0; p < seqs[s].n_parts; p++) {
            uint32_t t = first;
            while (tiles[t].seq == s && tiles[t].first_row + tiles[t].rows <= parts[p].row0)
                t++;
            if (tiles[t].seq != s)
                fake_abort("a unit of sequence %u from row %u, which no tile has", s, parts[p].row0);
            if (parts[p].row0 != tiles[t].first_row)
                continue;
            if (n == l->abi.n_items)
                fake_abort("units of more than %u items", n);
            items[n++] = (struct mla_abi_item){
                .tile = t,
                .page_begin = parts[p].page_begin,
                .page_end = parts[p].page_end,
                .partial_row = parts[p].split ? (uint32_t)(parts[p].partial_row + parts[p].row0) : MLA_ABI_NO_PARTIAL};
        }
    }
    if (n != l->abi.n_items)
        fake_abort("units of %u items, not %u", n, l->abi.n_items);
    return items;
}
