// Tensor cores and asynchronous copies: the plugin's only inline PTX, for sm_80 and newer. A compiler for the CPU sees
// only declarations; tests/substitutes/cuda/mma.cc defines them there, following the comments here.
//
// All lanes of a warp call the first three together. In the layouts g = lane / 4 and t = lane % 4.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace prun::cuda {

// Computes d [16,8] += a [16,16]·b [16,8]: d is f32, a and b hold bf16 in pairs, the first in the low half.
//   d: 0, 1 are (row g, columns 2t, 2t+1); 2, 3 are (row g+8, the same)
//   a: pairs of columns 2t, 2t+1 of rows g (0) and g+8 (1), and of columns 2t+8, 2t+9 of rows g (2) and g+8 (3)
//   b: pairs of rows 2t, 2t+1 (b0) and 2t+8, 2t+9 (b1) of column g
__device__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

// Loads four 8x8 matrices of 16-bit elements from shared memory. Lane 8i+j passes the address of row j of matrix i: 16
// bytes, aligned to 16. In r[i] a lane receives elements (g, 2t) and (g, 2t+1) of matrix i; transposed: (2t, g) and
// (2t+1, g).
__device__ void load_matrices(uint32_t (&r)[4], const void* row);
__device__ void load_matrices_transposed(uint32_t (&r)[4], const void* row);

// Copies 16 bytes from global to shared memory, both aligned to 16. If `there` is false, writes zeros and reads
// nothing. The calling thread may read the bytes after wait_copies, the other threads of its block after a barrier that
// follows it.
__device__ void copy_16(void* shared, const void* global, bool there);
__device__ void wait_copies();

// Returns 2^x; results below 2^-126 are 0.
__device__ float exp2_approximate(float x);

#ifdef __CUDACC__

__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

__device__ __forceinline__ void copy_16(void* shared, const void* global, bool there) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(__cvta_generic_to_global(global)), "r"(there ? 16 : 0)
      : "memory");
}

__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#endif

}  // namespace prun::cuda
