/* Packing and unpacking of the baseline h128: copies in pieces of 16 bytes. */
#include "kernels/baseline/h128_args.h"
#include "kernels/device/records.cuh"

namespace mla::h128
{

constexpr uint32_t kQPieces = MLA_ABI_QK_DIM / 16;
constexpr uint32_t kLatentPieces = MLA_ABI_V_DIM / 16;
static_assert(H128_PACK_THREADS == H128_PACK_ROWS * kQPieces && H128_HEADS % H128_PACK_ROWS == 0, "whole rows");

/* Address of a row of a job's tensor, of the job's token number index. */
__device__ __forceinline__ uint64_t row_of(const h128_args &a, const mla_abi_tensor &x, uint32_t index, uint32_t head)
{
    const h128_token &t = record<h128_token>(a.tokens, index);
    return row_address(x, t.seq, index - t.token, t.token, head);
}

/* The smallest fault of a sequence's requests, tokens counted from the sequence's first. */
__device__ __forceinline__ void merge_status(const h128_args &a, uint32_t seq)
{
    uint32_t first = record<uint32_t>(a.first_request, seq), end = record<uint32_t>(a.first_request, seq + 1);
    uint64_t *status = reinterpret_cast<uint64_t *>(a.status) + seq;
    uint64_t least = *status;
    for (uint32_t r = first; r < end; r++) {
        uint64_t fault = record<uint64_t>(a.padded_status, r);
        if (fault >> 32 == kVisibleOutOfRange)
            fault += H128_TOKENS * (r - first);
        if (fault != 0 && (least == 0 || fault < least))
            least = fault;
    }
    *status = least;
}

} // namespace mla::h128

/* Grid: n_tokens * 128 / H128_PACK_ROWS. */
extern "C" __global__ void __launch_bounds__(H128_PACK_THREADS) mla_h128_pack(const __grid_constant__ h128_args a)
{
    using namespace mla;
    using namespace mla::h128;
    uint32_t row = blockIdx.x * H128_PACK_ROWS + threadIdx.x / kQPieces, piece = threadIdx.x % kQPieces;
    uint32_t token = row / H128_HEADS, head = row % H128_HEADS % a.heads;
    uint64_t from;
    if (piece < kLatentPieces || a.q_rope.base == 0)
        from = row_of(a, a.q, token, head) + piece * 16;
    else
        from = row_of(a, a.q_rope, token, head) + (piece - kLatentPieces) * 16;
    uint64_t to = a.padded_q + static_cast<uint64_t>(row) * MLA_ABI_QK_DIM + piece * 16;
    *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
    for (uint32_t r = blockIdx.x * H128_PACK_THREADS + threadIdx.x; r < a.n_requests;
         r += gridDim.x * H128_PACK_THREADS)
        reinterpret_cast<uint64_t *>(a.padded_status)[r] = 0;
}

/* Grid: enough CTAs for n_tokens * heads rows of 32 * out_bytes pieces. */
extern "C" __global__ void __launch_bounds__(H128_UNPACK_THREADS) mla_h128_unpack(const __grid_constant__ h128_args a)
{
    using namespace mla;
    using namespace mla::h128;
    uint32_t pieces = kLatentPieces * a.out_bytes, at = blockIdx.x * H128_UNPACK_THREADS + threadIdx.x;
    uint32_t row = at / pieces, piece = at % pieces, token = row / a.heads, head = row - token * a.heads;
    if (at < a.n_seqs)
        merge_status(a, at);
    if (token >= a.n_tokens)
        return;
    uint64_t padded = static_cast<uint64_t>(token) * H128_HEADS + head;
    uint64_t from = a.padded_o + (padded * pieces + piece) * 16;
    *reinterpret_cast<uint4 *>(row_of(a, a.o, token, head) + piece * 16) = *reinterpret_cast<const uint4 *>(from);
    if (piece == 0 && a.lse.base != 0)
        *reinterpret_cast<float *>(row_of(a, a.lse, token, head)) =
            reinterpret_cast<const float *>(a.padded_lse)[padded];
}
