/* Launches in a row on one stream, of which the next begins while the one before it ends: for callers in this tree.
 *
 * Kernels overlap only with a kernel that stands directly in front of them on the stream. So the end of a launch is
 * told by a kernel instead of by the stream's own writing of words, and the blob of the next comes with its launch
 * instead of by a copy. What the overlap is made of: the next prepare kernel reads its records, page ids, lengths and
 * counts, and copies its blob, while the last kernels in front of it end; everything else waits until they have ended
 * and all that they wrote is there, so that launches in a row may share workspace and status words as others do. */
#ifndef MLA_KERNELS_HOST_CHAIN_H
#define MLA_KERNELS_HOST_CHAIN_H

#include "kernels/host/mla_kernels.h"
#include "kernels/sm90/launch.h"

/* Kernels with an end kernel, opened as programmatic. */
bool kernels_can_chain(const struct mla_kernels *kernels);

/* mla_kernels_launch_blob() of a launch that may begin while what is in front of it ends. Unlike there, tables, lengths
 * and counts may be read before the kernels in front have ended: they are what they shall be when this is called. And
 * none of those kernels uses the place of the blob. Anything but a kernel in front is waited for as ever. */
int kernels_launch_chained(const struct mla_kernels *kernels, CUstream stream, const struct mla_kernels_launch *launch,
                           const void *blob, size_t blob_bytes, CUresult *result);

/* The words that tell the end of everything in front, written by a kernel. 0; -EIO with *result (may be NULL). */
int kernels_launch_end(const struct mla_kernels *kernels, CUstream stream, const struct mla_sm90_end *end,
                       CUresult *result);

#endif
