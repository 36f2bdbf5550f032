/* Grids that follow each other on a stream, launched with CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
 * nothing happens without it, or on devices that do not know it. One instruction per function. */
#ifndef MLA_KERNELS_PTX_GRID_CUH
#define MLA_KERNELS_PTX_GRID_CUH

namespace mla
{

/* The grid before this one has ended and what it wrote can be read. */
__device__ __forceinline__ void grid_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next grid may start once all CTAs of this one have said so or ended. */
__device__ __forceinline__ void grid_launch_dependents()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

} // namespace mla

#endif
