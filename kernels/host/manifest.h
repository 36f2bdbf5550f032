/* kernels.ini, the list of kernel files of a directory. One section per variant, in order of preference:
 *
 *     [generic-sm_90a]
 *     abi = 1                          MLA_ABI_VERSION that the files were built with
 *     arch = sm_90a                    for people
 *     by_name_only = 1                 may be left out. Not 0: taken only when it is asked for by its name
 *     min_compute_capability = 90      10 * major + minor, both inclusive
 *     max_compute_capability = 90
 *     decode_file = generic-sm_90a.cubin
 *     decode_entry = mla_generic_decode
 *     decode_threads = 256
 *     decode_shared_bytes = 124928     dynamic
 *     tile_rows = 256                  plan_request.tile_rows
 *     rows_per_unit = 64               without prepare_file an item's grid is tile_rows / rows_per_unit *
 *                                      ctas_per_unit, which has to be even
 *     ctas_per_unit = 1
 *     min_pages_per_split = 8
 *     max_pages_per_item = 0           struct plan_device
 *     few_rows = ...                   may be left out: the section whose kernels take over the launches that they
 *                                      are faster for. Of the same tile_rows and max_pages_per_item, with fewer rows
 *                                      to a unit; may have few_rows of its own
 *     prepare_file = ...               these three together, or none of them: a kernel that runs before the other two,
 *     prepare_entry, prepare_threads   a CTA per sequence. The split-KV kernel then takes struct mla_sm90_launch, and
 *                                      runs as clusters of ctas_per_unit that share out the units
 *     reduce_file = reduce-sm_90a.cubin
 *     reduce_entry = mla_reduce
 *     reduce_threads = 128             status words that a CTA behind the tiles copies, too
 *     reduce_ctas_per_tile = 128       at most
 *     launch_ns, fill_ns, page_ns, drain_ns, partial_ns, reduce_launch_ns, reduce_bytes_per_us, reduce_fixed_ns
 *                                      struct plan_costs
 *
 * All other keys are required, unknown ones are refused: a manifest and its library come from one build.
 */
#ifndef MLA_KERNELS_HOST_MANIFEST_H
#define MLA_KERNELS_HOST_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/plan/plan.h"

#define KERNELS_MANIFEST_NAME     "kernels.ini"
#define KERNELS_MANIFEST_SECTIONS 16

struct kernels_section {
    char name[64];
    char arch[32];
    char decode_file[96];
    char decode_entry[64];
    char prepare_file[96];
    char prepare_entry[64];
    char reduce_file[96];
    char reduce_entry[64];
    char few_rows[64]; /* empty: none */
    uint32_t abi;
    uint32_t by_name_only;
    uint32_t min_compute_capability;
    uint32_t max_compute_capability;
    uint32_t decode_threads;
    uint32_t decode_shared_bytes;
    uint32_t tile_rows;
    uint32_t rows_per_unit;
    uint32_t ctas_per_unit;
    uint32_t min_pages_per_split;
    uint32_t max_pages_per_item;
    uint32_t prepare_threads; /* 0: no such kernel */
    uint32_t reduce_threads;
    uint32_t reduce_ctas_per_tile;
    struct plan_costs costs;
    uint32_t keys; /* seen, a bit each */
};

struct kernels_manifest {
    struct kernels_section sections[KERNELS_MANIFEST_SECTIONS];
    uint32_t n_sections;
};

/* The section of a name; NULL when there is none. */
const struct kernels_section *kernels_manifest_find(const struct kernels_manifest *manifest, const char *name);

/* Reads a manifest and checks it. 0; -ENOENT when the file cannot be opened; -EINVAL with file, line or section and
 * what is wrong in why, also for another MLA_ABI_VERSION. */
int kernels_manifest_read(const char *path, struct kernels_manifest *manifest, char *why, size_t why_bytes);

#endif
