/* Pure planning: shapes in, work items out. No allocation, clock, log or I/O; the same input gives the same plan on
 * every machine (integer arithmetic, ties broken by index).
 *
 * Use: fill a plan_request, ask plan_bound() how large the arrays must be, hand them over in struct plan, plan_build().
 */
#ifndef MLA_KERNELS_PLAN_H
#define MLA_KERNELS_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/abi/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the planner knows of a device. unit: the smallest group of CTAs that runs up to rows_per_unit rows of one item;
 * an item of r rows takes ceil(r / rows_per_unit) units side by side. */
struct plan_device {
    uint32_t sms;
    uint32_t ctas_per_unit;
    uint32_t rows_per_unit;
    uint32_t resident_units;      /* units that run at the same time; at least those of a full tile, at most 65,536 */
    uint32_t min_pages_per_split; /* no tile of p pages is cut into more than ceil(p / this) items; 1 or more */
    uint32_t max_pages_per_item;  /* what the kernel adds up in one piece without losing accuracy: longer tiles are cut
                                     whatever the policy says, and those items are not counted against other limits;
                                     0: no limit, else at least min_pages_per_split */
};

/* Cost model, nanoseconds. An item on its units: fill + pages * page + drain (+ partial when it is split). A launch:
 * launch + the time until the last unit is free, when items start in order, each of an item's units on the unit that is
 * free first, + (when any tile is split) reduce_launch + reduce_fixed + partial bytes / reduce_bytes_per_us.
 * page_ns and reduce_bytes_per_us are 1 or more. */
struct plan_costs {
    uint32_t launch_ns;           /* once per launch */
    uint32_t fill_ns;             /* of an item, until its first page is through the pipeline */
    uint32_t page_ns;             /* per page and unit, all units busy */
    uint32_t drain_ns;            /* writing the output of an item */
    uint32_t partial_ns;          /* more than drain_ns when a partial is written */
    uint32_t reduce_launch_ns;    /* once, when any tile is split */
    uint32_t reduce_bytes_per_us; /* partials the reducer reads per microsecond, whole device */
    uint32_t reduce_fixed_ns;
};

enum plan_policy {
    PLAN_SEED = 1,     /* need >= resident units: unsplit; else min(floor(2 * units / need), ceil(pages / min_pages)) */
    PLAN_BALANCED = 2, /* contexts cut so that all units finish together */
    PLAN_AUTO = 3,     /* the cheapest of these and of unsplit by the cost model */
    PLAN_UNSPLIT = 4   /* one item per tile, as far as max_pages_per_item allows */
};

struct plan_seq {
    uint32_t q_len;
    uint32_t kv_len; /* the bound kv_len_max */
};

struct plan_job {
    uint32_t first_seq;
    uint32_t n_seqs;
    uint32_t mask;        /* MLA_ABI_MASK_*; VISIBLE is planned as NONE */
    bool batch_invariant; /* splits follow from this job's shape and the device alone: those that AUTO gives the job
                           * alone, whatever the request's policy; its items come before all others */
    /* A part of the job: rows [skip_rows, skip_rows + n_rows) of its sequences' rows, counted through the job in order.
     * n_rows 0: all from skip_rows on. Tiles begin anew at skip_rows; the rest is planned as if it were not there. */
    uint64_t skip_rows;
    uint64_t n_rows;
};

struct plan_request {
    struct plan_device device;
    struct plan_costs costs;
    enum plan_policy policy;
    uint32_t tile_rows; /* 64, 128 or 256 */
    uint32_t heads;     /* 1..128, of all jobs */
    uint32_t splits;    /* 0: the policy's choice; else every tile is cut into min(splits, its pages) items */
    uint64_t workspace_bytes_max;
    const struct plan_job *jobs; /* in order, covering all sequences */
    const struct plan_seq *seqs;
    uint32_t n_jobs;
    uint32_t n_seqs;
};

struct plan_capacity {
    uint32_t tiles;
    uint32_t items;
    uint32_t reduces;
    size_t scratch_bytes; /* working memory of plan_build, 8-byte aligned */
};

/* Arrays are the caller's, as is their life time. Tiles are in order of sequence and row. Items are in start order:
 * whichever unit is free takes the next; the items of a tile stand together, or alternate with those of its neighbours
 * of the same sequence that are cut with it, so that these read the same pages at the same time. Reduces are in order
 * of partial_row. */
struct plan {
    struct mla_abi_tile *tiles;
    struct mla_abi_item *items;
    struct mla_abi_reduce *reduces;
    void *scratch;
    struct plan_capacity capacity;

    uint32_t n_tiles;
    uint32_t n_items;
    uint32_t n_reduces;
    uint32_t max_splits;      /* largest n_items of a tile */
    uint32_t rows_per_unit;   /* the request's: of the kernels that the plan is for */
    uint32_t item_units;      /* units of all items together */
    uint32_t waves;           /* ceil(item_units / resident_units) */
    uint32_t partial_rows;    /* rows of the workspace */
    uint64_t workspace_bytes; /* partial_rows * MLA_ABI_PARTIAL_ROW_BYTES */
    uint64_t useful_rows;     /* q_len * heads summed, of parts of jobs their rows */
    uint64_t row_slots;       /* rows that the units of one pass over all tiles could hold */
    uint64_t predicted_ns;    /* by the cost model; a model, not a measurement */
    enum plan_policy
        chosen; /* what the tiles outside batch-invariant jobs were cut by; by AUTO: SEED, BALANCED, UNSPLIT */
};

/* Upper bounds for any policy on this request: with T tiles, U resident units and J batch-invariant jobs at most
 * T + 2 * U * (J + 1) items (forced splits: up to T * splits). 0, or -EINVAL as plan_build, -EOVERFLOW past 32-bit
 * counts or 62-bit nanoseconds. */
int plan_bound(const struct plan_request *request, struct plan_capacity *capacity);

/* Fills plan. 0; -EINVAL for a request that makes no sense (heads, tile_rows, jobs that do not cover the sequences, a
 * device without units); -ENOSPC when an array is too small. A plan whose partials do not fit workspace_bytes_max is
 * cut less, in the end not at all; this never fails, since unsplit tiles need no workspace. Two exceptions are -ENOSPC:
 * forced splits that do not fit, and batch-invariant jobs that each fit alone but not together (launch them apart:
 * cutting one of them less would change its bits). */
int plan_build(const struct plan_request *request, struct plan *plan);

/* Proves a plan: every visible (row, page) pair of the request covered exactly once, no empty item but the single one
 * of a tile without pages, partials disjoint and inside the workspace, reduces exactly for split tiles, limits kept. 0,
 * or -EINVAL with one sentence in why (may be NULL). Needs no memory. */
int plan_check(const struct plan_request *request, const struct plan *plan, char *why, size_t why_bytes);

/* Nanoseconds that the cost model predicts for a plan's items in their order on the request's device; 0 for a plan
 * without items. Writes plan->scratch. */
uint64_t plan_predict_ns(const struct plan_request *request, const struct plan *plan);

/* Stable text form of a plan, for golden tests and people. Returns the length it needs (as snprintf). */
size_t plan_dump(const struct plan_request *request, const struct plan *plan, char *out, size_t out_bytes);

/* A job too heavy for one launch is cut between tiles, in order, so that no part's load is above part_max_ns, save that
 * of a single tile. The load of a part: what its tiles, unsplit, take when all units work on them together, which is
 * the part's share of a launch; a launch takes that and costs.launch_ns, and more where tiles cannot be spread evenly
 * or partials are reduced. Of a request of one job, whole, that plan_bound() accepts; the same for every call, so cuts
 * follow from the job's own shape, the device and part_max_ns. Returns the number of parts, 1 or more; *load_ns: of all
 * together. */
uint32_t plan_parts(const struct plan_request *request, uint64_t part_max_ns, uint64_t *load_ns);
/* skip_rows and n_rows of struct plan_job for one of the parts. */
void plan_part_rows(const struct plan_request *request, uint64_t part_max_ns, uint32_t part, uint64_t *skip_rows,
                    uint64_t *n_rows);

/* Partials that the request has whatever its policy, since some tiles are longer than max_pages_per_item: of that part
 * of it (as plan_parts() cuts, UINT64_MAX: the whole) that has the most. Of a request as for plan_parts(). */
uint64_t plan_least_partial_bytes(const struct plan_request *request, uint64_t part_max_ns);

/* Rows [*first, *end) of a sequence that are in its job's part; before: rows of the job's sequences in front of it. */
void plan_part_of_sequence(const struct plan_job *job, uint64_t before, uint32_t rows, uint32_t *first, uint32_t *end);

/* Pages that row's token may see at most: the mask's bound at kv_len_max, rounded up to pages. */
uint32_t plan_visible_pages(uint32_t mask, uint32_t q_len, uint32_t kv_len, uint32_t token);

/* Device facts and fitted costs by name: "h200" (units of 2 x 128), "reference" (4 x 256, 132 SMs), and those of each
 * kind of the H200's kernels by its section in the manifest ("sm90-64"). 0 or -ENOENT. */
int plan_device_preset(const char *name, struct plan_device *device, struct plan_costs *costs);

#ifdef __cplusplus
}
#endif

#endif
