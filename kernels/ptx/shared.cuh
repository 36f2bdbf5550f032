/* Loads and stores of the shared window by address, volatile and in order. One instruction per function. */
#ifndef MLA_KERNELS_PTX_SHARED_CUH
#define MLA_KERNELS_PTX_SHARED_CUH

#include <stdint.h>

namespace mla
{

__device__ __forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector)
{
    uint32_t d;
    asm volatile("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

__device__ __forceinline__ void store_shared_16(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void load_shared_16(uint32_t from, uint32_t (&v)[4])
{
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ float load_shared_f32(uint32_t from)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ uint32_t load_shared_u32(uint32_t from)
{
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ uint32_t load_shared_u8(uint32_t from)
{
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ void store_shared_f32(uint32_t to, float v)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}

__device__ __forceinline__ void store_shared_u32(uint32_t to, uint32_t v)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

__device__ __forceinline__ void store_shared_u8(uint32_t to, uint32_t v)
{
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

__device__ __forceinline__ void load_shared_f32x2(uint32_t from, float &x, float &y)
{
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(from) : "memory");
}

__device__ __forceinline__ uint64_t load_shared_u64(uint32_t from)
{
    uint64_t v;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(v) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ void store_shared_u64(uint32_t to, uint64_t v)
{
    asm volatile("st.shared.b64 [%0], %1;" ::"r"(to), "l"(v) : "memory");
}

/* Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void stmatrix_x4(uint32_t to, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* The same, transposed: a register has two neighbouring rows' elements, of the column of its lane's four. */
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t to, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

} // namespace mla

#endif
