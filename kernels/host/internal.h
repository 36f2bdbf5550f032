/* The handle behind mla_kernels.h. */
#ifndef MLA_KERNELS_HOST_INTERNAL_H
#define MLA_KERNELS_HOST_INTERNAL_H

#include "kernels/host/manifest.h"
#include "kernels/host/mla_kernels.h"

struct mla_kernels {
    const struct cuda_driver *driver;
    struct kernels_section section;
    struct mla_kernels_facts facts;
    CUmodule decode_module;
    CUmodule reduce_module;
    CUfunction decode;
    CUfunction reduce;
};

/* The directory with a manifest: options', $MLA_KERNELS_DIR, "kernels" beside the program or in one of the two folders
 * above it (a build tree, a folder that was copied), the installed one. The first two are taken as they are. 0; -ENOENT
 * with all places that were tried in why. */
int kernels_find_directory(const struct mla_kernels_options *options, char *directory, size_t directory_bytes,
                           char *why, size_t why_bytes);

/* A whole file and a zero byte behind it, the caller's to free. NULL with errno. */
char *kernels_read_file(const char *path, size_t *bytes);

#endif
