/* One CTA per sequence: reads what device memory decides (once), checks it, resolves page ids and limits, and writes
 * the records of the sequence's units. Loads come in two rounds: the sequence's record; then all that it names.
 *
 * The records lie in device memory, come with the launch in this kernel's parameter, or are in the host's memory: then
 * its CTAs also bring those that the next kernels read to their place in device memory. A parameter is memory
 * like other memory, which all threads load from at once; the instructions for parameters would take it word by word.
 */
#include <stddef.h>

#include "kernels/device/output.cuh"
#include "kernels/device/records.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/sm90/launch.h"

namespace mla::sm90
{

constexpr uint32_t kPrepareThreads = 512;
constexpr uint32_t kPagesAtOnce = 4; /* of a thread */
constexpr uint32_t kPartsAtOnce = 128;
constexpr uint32_t kNone = 0xffffffffu;

static_assert(sizeof(mla_sm90_unit) == 160 && sizeof(mla_sm90_part) == 32 && sizeof(mla_sm90_seq) == 240, "in vectors");
constexpr uint32_t kUnitVectors = sizeof(mla_sm90_unit) / 16;
constexpr uint32_t kPartVectors = sizeof(mla_sm90_part) / 16;
constexpr uint32_t kSeqVectors = sizeof(mla_sm90_seq) / 16;

/* Decode CTAs may come to an SM while this kernel is there still: together they must fit its shared memory. */
struct __align__(16) Shared
{
    mla_sm90_seq seq;
    mla_sm90_unit split; /* as seq.unit, of split units */
    mla_sm90_part parts[kPartsAtOnce];
    unsigned long long fault; /* as in status words: what this launch finds */
    uint32_t length;
    uint32_t most;
};
static_assert(kPartsAtOnce * kPartVectors <= kPrepareThreads / 2);
static_assert(sizeof(Shared) < 5000, "what the decode kernel leaves");

/* To the caller's word, and for this launch. */
__device__ __forceinline__ void report_of_seq(Shared &sh, uint32_t code, uint32_t index)
{
    report(sh.seq.status, code, index);
    report(reinterpret_cast<uint64_t>(&sh.fault), code, index);
}

__device__ __forceinline__ uint4 *vectors(void *p)
{
    return reinterpret_cast<uint4 *>(p);
}

__device__ __forceinline__ uint32_t pages_of(uint32_t keys)
{
    return keys / MLA_ABI_PAGE_TOKENS + (keys % MLA_ABI_PAGE_TOKENS != 0);
}

__device__ __forceinline__ int32_t read_length(const mla_sm90_seq &seq)
{
    return seq.kv_len != 0 ? read_once(seq.kv_len, 0) : static_cast<int32_t>(seq.kv_len_max);
}

/* By the thread that has read it. A length that is out of range is reported and counts as 0. */
__device__ __forceinline__ void check_length(Shared &sh, int32_t length)
{
    if (length < 0 || static_cast<uint32_t>(length) > sh.seq.kv_len_max) {
        report_of_seq(sh, kKvLenOutOfRange, 0);
        length = 0;
    }
    sh.length = static_cast<uint32_t>(length);
}

__device__ __forceinline__ uint32_t limit_causal(const Shared &sh, uint32_t token)
{
    return static_cast<uint32_t>(clamp(static_cast<int64_t>(sh.length) - sh.seq.q_len + token + 1, sh.length));
}

/* Keys that each query sees. visible: the count of token threadIdx.x, which has been read. Returns the most, the same
 * for all threads. */
__device__ __forceinline__ uint32_t resolve_limits(Shared &sh, int32_t visible)
{
    uint32_t *limits = reinterpret_cast<uint32_t *>(sh.seq.unit.limits);
    for (uint32_t token = threadIdx.x; token < sh.seq.q_len; token += kPrepareThreads) {
        uint32_t limit = sh.length;
        if (sh.seq.mask == MLA_ABI_MASK_CAUSAL) {
            limit = limit_causal(sh, token);
        } else if (sh.seq.mask == MLA_ABI_MASK_VISIBLE) {
            if (token != threadIdx.x)
                visible = read_once(sh.seq.visible, token);
            limit = static_cast<uint32_t>(visible);
            if (visible < 0 || limit > sh.length) {
                report_of_seq(sh, kVisibleOutOfRange, token);
                limit = 0;
            }
            atomicMax(&sh.most, limit);
        }
        limits[token] = limit;
    }
    if (sh.seq.mask != MLA_ABI_MASK_VISIBLE)
        return sh.length; /* the last token sees all */
    __syncthreads();      /* limits are in memory, too: mask_from() reads them */
    return sh.most;
}

__device__ __forceinline__ uint32_t entry_of(uint32_t page, uint32_t per_entry)
{
    return per_entry == 1 ? page : page / per_entry; /* a division in front of the loads costs time */
}

/* Table entries of pages, kPagesAtOnce to a thread, from page first on. Each is read once for each of its pages, and
 * what was read is what is checked and used. */
__device__ __forceinline__ void read_entries(const mla_sm90_seq &seq, uint32_t first, uint32_t pages,
                                             uint32_t (&entry)[kPagesAtOnce])
{
#pragma unroll
    for (uint32_t i = 0; i < kPagesAtOnce; i++) {
        uint32_t page = first + i * kPrepareThreads;
        if (page < pages)
            entry[i] = static_cast<uint32_t>(read_once(seq.table, entry_of(page, seq.pages_per_entry)));
    }
}

/* Pages that some query of the sequence sees; entry: of the first ones. A bad entry becomes unit.beyond, for which the
 * copy engine gives zeros. */
__device__ __forceinline__ void resolve_pages(Shared &sh, uint32_t pages, uint32_t (&entry)[kPagesAtOnce])
{
    const mla_sm90_seq &seq = sh.seq;
    uint32_t *ids = reinterpret_cast<uint32_t *>(seq.unit.pages);
    uint32_t per_entry = seq.pages_per_entry;
    uint32_t entries = (pages + per_entry - 1) / per_entry;
    /* An entry is good when the pages that it is needed for exist: of the last one, fewer. */
    uint32_t bound = seq.num_pages / per_entry, last = entries == 0 ? 0 : pages - (entries - 1) * per_entry;
    uint32_t last_bound = seq.num_pages < last ? 0 : (seq.num_pages - last) / per_entry + 1;
    for (uint32_t first = threadIdx.x; first < pages; first += kPagesAtOnce * kPrepareThreads) {
        if (first != threadIdx.x)
            read_entries(seq, first, pages, entry);
#pragma unroll
        for (uint32_t i = 0; i < kPagesAtOnce; i++) {
            uint32_t page = first + i * kPrepareThreads;
            if (page >= pages)
                break;
            uint32_t e = entry_of(page, per_entry);
            bool good = entry[i] < (e + 1 == entries ? last_bound : bound);
            if (!good)
                report_of_seq(sh, kPageOutOfRange, e);
            ids[page] = good ? entry[i] * per_entry + (page - e * per_entry) : seq.unit.beyond;
        }
    }
}

/* First page (of the sequence) that one of the part's rows does not see whole. Limits need not be monotone. */
__device__ __forceinline__ uint32_t mask_from(const Shared &sh, const mla_sm90_part &part)
{
    uint32_t first = part.row0 / sh.seq.unit.heads;
    uint32_t least = sh.length;
    if (sh.seq.mask == MLA_ABI_MASK_CAUSAL)
        least = limit_causal(sh, first);
    if (sh.seq.mask == MLA_ABI_MASK_VISIBLE) {
        const uint32_t *limits = reinterpret_cast<const uint32_t *>(sh.seq.unit.limits);
        uint32_t last = (part.row0 + part.rows - 1) / sh.seq.unit.heads;
        least = kNone;
        for (uint32_t token = first; token <= last; token++)
            least = min(least, limits[token]);
    }
    return least / MLA_ABI_PAGE_TOKENS;
}

/* From these on rows of partials are written, whatever the job's outputs are like. */
__device__ __forceinline__ void make_split(const mla_sm90_launch &launch, Shared &sh)
{
    mla_sm90_unit u = sh.seq.unit;
    u.out_head = MLA_ABI_V_DIM * 2;
    u.out_token = u.out_head * u.heads;
    u.out = launch.abi.partial_o;
    u.lse_head = 4;
    u.lse_token = 4ll * u.heads;
    u.lse = launch.abi.partial_lse;
    u.out_type = MLA_SM90_OUT_PARTIAL;
    u.out_scale = kPartialScale;
    sh.split = u;
}

__device__ __forceinline__ void add(uint32_t &low, uint32_t &high, int64_t bytes)
{
    uint64_t sum = (static_cast<uint64_t>(high) << 32 | low) + static_cast<uint64_t>(bytes);
    low = static_cast<uint32_t>(sum);
    high = static_cast<uint32_t>(sum >> 32);
}

/* Vector k of the record of a part's unit. */
__device__ __forceinline__ uint4 unit_vector(Shared &sh, const mla_sm90_part &part, uint32_t pages, uint32_t k)
{
    static_assert(offsetof(mla_sm90_unit, pages) == 8 && offsetof(mla_sm90_unit, out) == 72, "vectors 0 and 4");
    static_assert(offsetof(mla_sm90_unit, lse) == 96 && offsetof(mla_sm90_unit, n_pages) == 120, "vectors 6 and 7");
    static_assert(offsetof(mla_sm90_unit, mask_from) == 128, "vector 8");
    uint4 v = vectors(part.split ? &sh.split : &sh.seq.unit)[k];
    uint32_t end = min(part.page_end, pages);
    bool sees = end > part.page_begin; /* else: one page beyond the plane, masked for all rows */
    if (k == 0) {
        add(v.z, v.w, 4ll * part.page_begin);
        if (!sees)
            v.z = v.w = 0;
    } else if (k == 4) {
        add(v.z, v.w, part.partial_row * MLA_ABI_V_DIM * 2);
    } else if (k == 6) {
        add(v.x, v.y, part.partial_row * 4);
    } else if (k == 7) {
        v.z = sees ? end - part.page_begin : 1;
        v.w = part.page_begin;
    } else if (k == 8) {
        uint32_t from = mask_from(sh, part);
        v.x = sees && from > part.page_begin ? from - part.page_begin : 0;
        v.y = part.row0;
        v.z = part.rows;
    }
    return v;
}

/* Vector i of the host's record at an address. shift: from the addresses of such records to where they are now. Past
 * L1, which has nothing to give: parameters of other launches have been at the same addresses. */
__device__ __forceinline__ uint4 host_vector(uint64_t address, uint64_t shift, uint32_t i)
{
    return load_l2_16(reinterpret_cast<const uint4 *>(address + shift) + i);
}

__device__ __forceinline__ void read_parts(Shared &sh, uint64_t shift, uint32_t first)
{
    uint32_t n = min(kPartsAtOnce, sh.seq.n_parts - first) * kPartVectors;
    if (threadIdx.x < n)
        vectors(sh.parts)[threadIdx.x] = host_vector(sh.seq.parts, shift, first * kPartVectors + threadIdx.x);
}

/* The first kPartsAtOnce parts have been read. Sixteen threads have a unit: its vectors leave together. */
__device__ __forceinline__ void write_units(const mla_sm90_launch &launch, uint64_t shift, Shared &sh, uint32_t pages)
{
    uint32_t k = threadIdx.x % 16;
    for (uint32_t first = 0; first < sh.seq.n_parts; first += kPartsAtOnce) {
        if (first != 0) {
            __syncthreads();
            read_parts(sh, shift, first);
            __syncthreads();
        }
        uint32_t n = min(kPartsAtOnce, sh.seq.n_parts - first);
        for (uint32_t p = threadIdx.x / 16; p < n; p += kPrepareThreads / 16)
            if (k < kUnitVectors)
                reinterpret_cast<uint4 *>(launch.units)[static_cast<uint64_t>(sh.parts[p].unit) * kUnitVectors + k] =
                    unit_vector(sh, sh.parts[p], pages, k);
    }
}

/* Vectors of the job's tensor maps, which the CTA of its first sequence has: of a half warp's threads one each. */
__device__ __forceinline__ bool has_map_vector(const mla_sm90_seq &seq, uint32_t at)
{
    return seq.maps != 0 && at < MLA_SM90_MAP_BYTES / 16;
}

/* The caller's word was 0 in front of the sequence's only launch: it is not asked, as that takes time. */
__device__ __forceinline__ void write_status(const mla_sm90_launch &launch, const mla_sm90_seq &seq, uint64_t fault)
{
    reinterpret_cast<uint64_t *>(launch.faults)[blockIdx.x] = fault;
    if (seq.user_status == 0)
        return;
    if (fault != 0 || (seq.flags & MLA_SM90_SEQ_PART))
        fault = *reinterpret_cast<volatile uint64_t *>(seq.status);
    *reinterpret_cast<volatile uint64_t *>(seq.user_status) = fault;
}

__device__ __forceinline__ void prepare(const mla_sm90_launch &launch, uint64_t shift, Shared &sh)
{
    if (threadIdx.x < kSeqVectors)
        vectors(&sh.seq)[threadIdx.x] = host_vector(launch.seqs, shift, blockIdx.x * kSeqVectors + threadIdx.x);
    if (threadIdx.x == 0) {
        sh.most = 0;
        sh.fault = 0;
    }
    __syncthreads();
    const mla_sm90_seq &seq = sh.seq;
    uint32_t entry[kPagesAtOnce];
    uint32_t map_at = threadIdx.x - (kPrepareThreads - 32);
    uint4 map = {};
    int32_t visible = 0, length = 0;
    if (seq.q_len != 0) { /* else nothing of the caller's is read, and there are no units */
        /* As many as there may be: how many are needed is known when the length has come. */
        read_entries(seq, threadIdx.x, pages_of(seq.kv_len_max), entry);
        if (seq.visible != 0 && threadIdx.x < seq.q_len)
            visible = read_once(seq.visible, threadIdx.x);
    }
    if (has_map_vector(seq, map_at))
        map = host_vector(seq.maps, shift, map_at);
    bool reads_length = seq.q_len != 0 && threadIdx.x == kPrepareThreads / 2 + 32;
    if (seq.q_len != 0) {
        /* Each by warps of its own behind the loads above: one that waits here keeps its warp from the next. */
        if (reads_length)
            length = read_length(seq);
        read_parts(sh, shift, 0);
        if (threadIdx.x == kPrepareThreads / 2)
            make_split(launch, sh);
    }
    if (has_map_vector(seq, map_at))
        vectors(reinterpret_cast<void *>(seq.unit.map))[map_at] = map;
    if (seq.q_len != 0) {
        if (reads_length)
            check_length(sh, length);
        __syncthreads();
        uint32_t pages = pages_of(resolve_limits(sh, visible));
        resolve_pages(sh, pages, entry);
        write_units(launch, shift, sh, pages);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        write_status(launch, seq, sh.fault);
}

/* What the next kernels read, by all CTAs together, and all warps but the one that reads the sequence's record. */
__device__ __forceinline__ void copy_blob(const mla_sm90_fetch &parameter, uint64_t from)
{
    constexpr uint32_t threads = kPrepareThreads - 32;
    if (threadIdx.x < 32)
        return;
    for (uint32_t i = parameter.first + blockIdx.x * threads + threadIdx.x - 32; i < parameter.n_vectors;
         i += gridDim.x * threads)
        reinterpret_cast<uint4 *>(parameter.launch.abi.jobs)[i] = host_vector(from, 0, i);
}

__device__ __forceinline__ void prepare_from(const mla_sm90_fetch &parameter, uint64_t from, Shared &sh)
{
    copy_blob(parameter, from);
    prepare(parameter.launch, from - parameter.launch.abi.jobs, sh);
}

struct Inline {
    mla_sm90_fetch head;
    uint4 blob[(MLA_SM90_INLINE_BYTES - sizeof(mla_sm90_fetch)) / sizeof(uint4)];
};
static_assert(sizeof(Inline) == MLA_SM90_INLINE_BYTES, "and nothing between or behind");

} // namespace mla::sm90

extern "C" __global__ void __launch_bounds__(512) mla_prepare_sm90(const __grid_constant__ mla_sm90_launch launch)
{
    __shared__ mla::sm90::Shared sh;
    mla::grid_launch_dependents();
    mla::sm90::prepare(launch, 0, sh);
}

extern "C" __global__ void __launch_bounds__(512)
    mla_prepare_sm90_inline(const __grid_constant__ mla::sm90::Inline parameter)
{
    __shared__ mla::sm90::Shared sh;
    mla::grid_launch_dependents();
    const uint4 *blob = parameter.blob;
    asm volatile("" : "+l"(blob)); /* an address like others from here on */
    mla::sm90::prepare_from(parameter.head, reinterpret_cast<uint64_t>(blob), sh);
}

/* Every CTA asks the host's memory for what it needs itself: two ways there and back, as of device memory. */
extern "C" __global__ void __launch_bounds__(512)
    mla_prepare_sm90_fetch(const __grid_constant__ mla_sm90_fetch parameter)
{
    __shared__ mla::sm90::Shared sh;
    mla::grid_launch_dependents();
    mla::sm90::prepare_from(parameter, parameter.from, sh);
}
