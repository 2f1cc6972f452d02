// Building blocks of kernels: numbers as f32, packs of 16 bytes, and reductions over the threads of a warp or a block.
//
// Operands may be the result's own memory where the CPU kernels allow it, so no pointer of such a kernel is
// __restrict__ and none is read by __ldg: each element is read and written by one thread.
#pragma once
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "op.h"

namespace prun::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// The minimum of resident blocks in __launch_bounds__ of memory-bound kernels whose blocks have 256 threads. Without it
// nvcc targets full occupancy and 32 registers, which cannot hold four 16-byte loads in flight; with it a thread may
// have 64 registers.
inline constexpr int kStreamingBlocks = 4;

// The type that arithmetic on T runs in.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, bf16>, float, T>;

template <class T>
__host__ __device__ __forceinline__ Wide<T> widen(T x) {
  if constexpr (std::is_same_v<T, bf16>)
    return __bfloat162float(x);
  else
    return x;
}
// Converts to T, rounding to nearest even.
template <class T>
__host__ __device__ __forceinline__ T narrow(Wide<T> x) {
  if constexpr (std::is_same_v<T, bf16>)
    return __float2bfloat16_rn(x);
  else
    return x;
}

// N elements that are accessed together: one instruction if they have at most 16 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];

  // Returns element i as a wide number. A bf16 is the high half of an f32, so that is one instruction on the pair that
  // holds it; for sm_90, `widen` converts 16 bits, for which nvcc first moves each element to a register of its own.
  __device__ __forceinline__ Wide<T> wide(int i) const {
    if constexpr (std::is_same_v<T, bf16> && N % 2 == 0) {
      struct Pairs {
        uint32_t of[N / 2];
      };
      const uint32_t pair = std::bit_cast<Pairs>(*this).of[i / 2];
      return std::bit_cast<float>(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
    } else {
      return widen(v[i]);
    }
  }
};

// The built-in type of a pack's size. A pack is stored by an intrinsic, because nvcc 13.0 splits a plain store, even of
// a uint4, into elements if addresses are not simple enough.
template <size_t kBytes>
using Word =
    std::conditional_t<kBytes == 16, uint4,
                       std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, uint32_t, uint16_t>>>;

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  return std::bit_cast<Pack<T, N>>(*reinterpret_cast<const Word<sizeof(T) * N>*>(from));
}
template <int N, class T>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, N>& pack) {
  using Whole = Word<sizeof(T) * N>;
  __stwb(reinterpret_cast<Whole*>(to), std::bit_cast<Whole>(pack));
}
// Stores data that is not read soon, so that it is the first to leave the L2 cache.
template <int N, class T>
__device__ __forceinline__ void stream_pack(T* to, const Pack<T, N>& pack) {
  using Whole = Word<sizeof(T) * N>;
  __stcs(reinterpret_cast<Whole*>(to), std::bit_cast<Whole>(pack));
}

// Elements in 16 bytes, the widest access of a thread.
template <class T>
inline constexpr int kPack = static_cast<int>(16 / sizeof(T));

// Returns whether packs of 16 bytes may be accessed at these pointers. A maker checks once, because pointers never
// change.
template <class... T>
bool aligned(const T*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}
// Returns whether the same holds for every row of matrices with this width.
template <class T, class... U>
bool rows_aligned(int64_t width, const T* first, const U*... others) {
  return width % kPack<T> == 0 && aligned(first, others...);
}

// Loads from[0..N) as wide numbers, by accesses of 16 bytes, or of N elements if these are fewer. `from` is aligned to
// the size of an access.
template <int N, class T>
__device__ __forceinline__ void load(const T* from, Wide<T> (&to)[N]) {
  constexpr int kStep = N < kPack<T> ? N : kPack<T>;
  static_assert(N % kStep == 0);
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    const auto pack = load_pack<kStep>(from + i);
#pragma unroll
    for (int j = 0; j < kStep; ++j) to[i + j] = pack.wide(j);
  }
}

// Rounds a pack to T; one instruction rounds two bf16.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> narrowed(const Wide<T>* from) {
  Pack<T, N> pack;
  if constexpr (std::is_same_v<T, bf16> && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(from[i], from[i + 1]);
      pack.v[i] = pair.x, pack.v[i + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) pack.v[i] = narrow<T>(from[i]);
  }
  return pack;
}

template <int N, class T>
__device__ __forceinline__ void store(T* to, const Wide<T> (&from)[N]) {
  constexpr int kStep = N < kPack<T> ? N : kPack<T>;
  static_assert(N % kStep == 0);
#pragma unroll
  for (int i = 0; i < N; i += kStep) store_pack(to + i, narrowed<T, kStep>(from + i));
}

// Stores to shared memory as `store` does to global memory.
template <int N>
__device__ __forceinline__ void store_shared(float* to, const float (&from)[N]) {
  constexpr int kStep = N < kPack<float> ? N : kPack<float>;
  static_assert(N % kStep == 0);
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    Pack<float, kStep> pack;
#pragma unroll
    for (int j = 0; j < kStep; ++j) pack.v[j] = from[i + j];
    *reinterpret_cast<Pack<float, kStep>*>(to + i) = pack;
  }
}

// A loop over items by the whole grid: this thread's first item, and the distance to its next.
__device__ __forceinline__ int64_t first_item() { return blockIdx.x * int64_t{blockDim.x} + threadIdx.x; }
__device__ __forceinline__ int64_t item_stride() { return gridDim.x * int64_t{blockDim.x}; }

// A run of elements at any address: `head` of them up to the first aligned address, then `packs` of kPack.
struct Run {
  int64_t head, packs;
};
template <class T>
__device__ __forceinline__ Run run_of(const T* from, int64_t count) {
  const int64_t ahead = static_cast<int64_t>((16 - reinterpret_cast<uintptr_t>(from) % 16) % 16 / sizeof(T));
  const int64_t head = ahead < count ? ahead : count;
  return {head, (count - head) / kPack<T>};
}

// Reductions. Every thread receives the result, bitwise identical in all and in every run, because the order is fixed.
struct Add {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Larger {  // ignores NaNs
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b || a != a ? b : a;
  }
};

// All lanes of the warp must call it.
template <class T, class F>
__device__ __forceinline__ T warp_reduce(T x, F combine) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}

// Performs K reductions at once. All threads of the block must call it; the block has one dimension, whole warps.
template <class T, int K, class F>
__device__ __forceinline__ void block_reduce(T (&x)[K], T identity, F combine) {
  __shared__ T parts[K][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int k = 0; k < K; ++k) x[k] = warp_reduce(x[k], combine);
  if (blockDim.x == kWarp) return;
  __syncthreads();  // the parts of the previous call have been read
  if (lane == 0) {
#pragma unroll
    for (int k = 0; k < K; ++k) parts[k][warp] = x[k];
  }
  __syncthreads();
  const bool filled = lane < static_cast<int>(blockDim.x) / kWarp;
#pragma unroll
  for (int k = 0; k < K; ++k) x[k] = warp_reduce(filled ? parts[k][lane] : identity, combine);
}

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
  return warp_reduce(x, Add{});
}
template <class T>
__device__ __forceinline__ T block_sum(T x) {
  T one[1] = {x};
  block_reduce(one, T(0), Add{});
  return one[0];
}
template <class T>
__device__ __forceinline__ T block_max(T x) {
  T one[1] = {x};
  block_reduce(one, -std::numeric_limits<T>::infinity(), Larger{});
  return one[0];
}

}  // namespace prun::cuda
