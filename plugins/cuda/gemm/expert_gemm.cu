// GEMMs of experts that skip the slots without a token, whose number is on the device: tiles of rows without any are
// written as zeros, and steps of a sum over rows without any are omitted.
//
// Surprising fact: cuBLASLt's GEMMs are faster per FLOP, so these are used only where most slots are empty (linear.cc).
#include "cuda/attention/mma.h"
#include "cuda/kernels/block.cuh"
#include "cuda/kernels/launch.h"
#include "expert_gemm.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

// The rows of each source of an expert's tokens, of which the first ones have a token: `counts` less those of earlier
// rounds.
struct Filled {
  const int32_t* counts;
  int64_t sources, rows, before;

  // Whether one of an expert's rows [first, end) has a token.
  __device__ bool any(int64_t expert, int64_t first, int64_t end) const {
    for (int64_t p = first / rows; p < sources && p * rows < end; ++p) {
      const int64_t from = first > p * rows ? first - p * rows : 0;
      if (counts[expert * sources + p] - before > from) return true;
    }
    return false;
  }
};

struct Sizes {
  int64_t m, n, k, batch;
};

// A tile of C, and the steps over k that it needs.
template <int rows, int columns, int deep, bool transpose_a>
struct Tile {
  int64_t entry, i0, j0;
  bool some;  // transpose_a: unknown; otherwise whether a row has a token

  __device__ Tile(const Sizes& s, const Filled& filled, int64_t index) {
    const int64_t down = (s.m + rows - 1) / rows, across = (s.n + columns - 1) / columns;
    entry = index / (down * across);
    i0 = index / across % down * rows, j0 = index % across * columns;
    some = transpose_a || filled.any(entry, i0, i0 + rows < s.m ? i0 + rows : s.m);
  }
  // Returns the first step at or after k0 that is needed, or k.
  __device__ int64_t step(const Sizes& s, const Filled& filled, int64_t k0) const {
    if (!some) return s.k;
    if constexpr (transpose_a)
      while (k0 < s.k && !filled.any(entry, k0, k0 + deep < s.k ? k0 + deep : s.k)) k0 += deep;
    return k0 < s.k ? k0 : s.k;
  }
};

template <class Out>
__device__ void put(const Sizes& s, int64_t entry, int64_t i, int64_t j, float sum, const float* added, Out* c) {
  if (i >= s.m || j >= s.n) return;
  const int64_t at = (entry * s.m + i) * s.n + j;
  c[at] = narrow<Out>(added != nullptr ? sum + added[at] : sum);
}

// f32: tiles of 64 x 64, of which a thread computes 4 x 4.
constexpr int kSide = 64, kDeep = 16, kEach = 4;

template <bool transpose_a, bool transpose_b>
__global__ void __launch_bounds__(kThreads)
    float_gemms(Sizes s, Filled filled, const float* a, const float* b, const float* added, float* c) {
  __shared__ float tile_a[kDeep][kSide + 4], tile_b[kDeep][kSide + 4];
  const int me = static_cast<int>(threadIdx.x), across = me % (kSide / kEach) * kEach,
            down = me / (kSide / kEach) * kEach;
  using Part = Tile<kSide, kSide, kDeep, transpose_a>;
  const int64_t tiles = s.batch * ((s.m + kSide - 1) / kSide) * ((s.n + kSide - 1) / kSide);
  for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
    const Part tile(s, filled, index);
    const float *from_a = a + tile.entry * s.m * s.k, *from_b = b + tile.entry * s.k * s.n;
    float sum[kEach][kEach] = {};
    for (int64_t k0 = tile.step(s, filled, 0); k0 < s.k; k0 = tile.step(s, filled, k0 + kDeep)) {
      for (int at = me; at < kSide * kDeep; at += kThreads) {
        const int la = transpose_a ? at / kSide : at % kDeep, ia = transpose_a ? at % kSide : at / kDeep;
        const int lb = transpose_b ? at % kDeep : at / kSide, jb = transpose_b ? at / kDeep : at % kSide;
        const int64_t i = tile.i0 + ia, j = tile.j0 + jb, ka = k0 + la, kb = k0 + lb;
        tile_a[la][ia] = i < s.m && ka < s.k ? from_a[transpose_a ? ka * s.m + i : i * s.k + ka] : 0.0f;
        tile_b[lb][jb] = j < s.n && kb < s.k ? from_b[transpose_b ? j * s.k + kb : kb * s.n + j] : 0.0f;
      }
      __syncthreads();
      for (int l = 0; l < kDeep; ++l) {
#pragma unroll
        for (int i = 0; i < kEach; ++i)
#pragma unroll
          for (int j = 0; j < kEach; ++j) sum[i][j] += tile_a[l][down + i] * tile_b[l][across + j];
      }
      __syncthreads();
    }
    for (int i = 0; i < kEach; ++i)
      for (int j = 0; j < kEach; ++j) put(s, tile.entry, tile.i0 + down + i, tile.j0 + across + j, sum[i][j], added, c);
  }
}

// bf16 on tensor cores: tiles of 128 x 128 in steps of 32, with the next step's copies in flight. Warp w of eight has
// rows 64·(w / 4) and columns 32·(w % 4) of the tile, as 4 x 4 matrices of 16 x 8.
constexpr int kRows = 128, kStep = 32, kPad = 8;

// A matrix in shared memory as it is stored: `rows` of k or of m (n).
template <bool k_is_rows>
struct Panel {
  static constexpr int kAcross = k_is_rows ? kRows : kStep, kDown = k_is_rows ? kStep : kRows, kPitch = kAcross + kPad;
  bf16 data[kDown * kPitch];

  __device__ const bf16* at(int down, int across) const { return data + down * kPitch + across; }

  // Copies [k0, k0 + kStep) of k and [i0, i0 + kRows) of a matrix of extents k and `extent`.
  __device__ void load(const bf16* from, int64_t k0, int64_t k, int64_t i0, int64_t extent) {
    for (int chunk = static_cast<int>(threadIdx.x); chunk < kDown * kAcross / 8; chunk += kThreads) {
      const int down = chunk / (kAcross / 8), across = chunk % (kAcross / 8) * 8;
      const int64_t row = (k_is_rows ? k0 : i0) + down, column = (k_is_rows ? i0 : k0) + across;
      const bool there = row < (k_is_rows ? k : extent) && column < (k_is_rows ? extent : k);
      copy_16(data + down * kPitch + across, there ? from + row * (k_is_rows ? extent : k) + column : from, there);
    }
  }
};

template <class Out, bool transpose_a, bool transpose_b>
__global__ void __launch_bounds__(kThreads)
    tensor_gemms(Sizes s, Filled filled, const bf16* a, const bf16* b, const float* added, Out* c) {
  __shared__ __align__(16) Panel<transpose_a> panels_a[2];
  __shared__ __align__(16) Panel<!transpose_b> panels_b[2];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int rows = warp / 4 * 64, columns = warp % 4 * 32, matrix = lane / 8, line = lane % 8;
  using Part = Tile<kRows, kRows, kStep, transpose_a>;
  const int64_t tiles = s.batch * ((s.m + kRows - 1) / kRows) * ((s.n + kRows - 1) / kRows);
  for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
    const Part tile(s, filled, index);
    const bf16 *from_a = a + tile.entry * s.m * s.k, *from_b = b + tile.entry * s.k * s.n;
    float sum[4][4][4] = {};
    int stage = 0;
    int64_t k0 = tile.step(s, filled, 0);
    const auto load = [&](int to, int64_t first) {
      panels_a[to].load(from_a, first, s.k, tile.i0, s.m);
      panels_b[to].load(from_b, first, s.k, tile.j0, s.n);
    };
    if (k0 < s.k) load(0, k0);
    wait_copies();
    __syncthreads();
    while (k0 < s.k) {
      const int64_t next = tile.step(s, filled, k0 + kStep);
      if (next < s.k) load(1 - stage, next);
      for (int deep = 0; deep < kStep; deep += 16) {
        uint32_t left[4][4], right[2][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = rows + 16 * i;
          if constexpr (transpose_a)
            load_matrices_transposed(left[i], panels_a[stage].at(deep + matrix / 2 * 8 + line, at + matrix % 2 * 8));
          else
            load_matrices(left[i], panels_a[stage].at(at + matrix % 2 * 8 + line, deep + matrix / 2 * 8));
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int at = columns + 16 * j;
          if constexpr (transpose_b)
            load_matrices(right[j], panels_b[stage].at(at + matrix / 2 * 8 + line, deep + matrix % 2 * 8));
          else
            load_matrices_transposed(right[j], panels_b[stage].at(deep + matrix % 2 * 8 + line, at + matrix / 2 * 8));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            multiply_add(sum[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
      }
      wait_copies();
      __syncthreads();
      stage = 1 - stage, k0 = next;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          put(s, tile.entry, tile.i0 + rows + 16 * i + lane / 4 + e / 2 * 8,
              tile.j0 + columns + 8 * j + lane % 4 * 2 + e % 2, sum[i][j][e], added, c);
  }
}

template <class In, class Out>
using Gemms = void (*)(Sizes, Filled, const In*, const In*, const float*, Out*);

template <class In, class Out>
std::unique_ptr<Kernel> kernel(Gemms<In, Out> gemms, int side, const Gemm& g, const Filled& filled) {
  const Sizes s{g.shape.m, g.shape.n, g.shape.k, g.shape.batch};
  const int64_t tiles = s.batch * ((s.m + side - 1) / side) * ((s.n + side - 1) / side);
  return kernel_of([=, a = static_cast<const In*>(g.a), b = static_cast<const In*>(g.b),
                    added = static_cast<const float*>(g.added), c = static_cast<Out*>(g.c)](cudaStream_t stream) {
    if (tiles > 0) launch(gemms, blocks_for(tiles, 1), kThreads, 0, stream, s, filled, a, b, added, c);
  });
}

bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace

bool takes_expert_gemm(const Gemm& gemm, int capability) {
  const GemmShape& s = gemm.shape;
  if (s.input == PRUN_F32) return true;
  // Rows as stored are copied in pieces of 16 bytes.
  const int64_t row_a = s.transpose_a ? s.m : s.k, row_b = s.transpose_b ? s.k : s.n;
  return capability >= 80 && row_a % 8 == 0 && row_b % 8 == 0 && aligned(gemm.a) && aligned(gemm.b);
}

std::unique_ptr<Kernel> make_expert_gemm(const Gemm& g, const int32_t* counts, int64_t sources, int64_t round) {
  const GemmShape& s = g.shape;
  const int64_t rows = (s.transpose_a ? s.k : s.m) / sources;
  const Filled filled{counts, sources, rows, round * rows};
  if (s.input == PRUN_F32) {
    const Gemms<float, float> gemms = s.transpose_a   ? float_gemms<true, false>
                                      : s.transpose_b ? float_gemms<false, true>
                                                      : float_gemms<false, false>;
    return kernel(gemms, kSide, g, filled);
  }
  if (s.transpose_a) return kernel<bf16, float>(tensor_gemms<float, true, false>, kRows, g, filled);
  return kernel<bf16, bf16>(s.transpose_b ? tensor_gemms<bf16, false, true> : tensor_gemms<bf16, false, false>, kRows,
                            g, filled);
}

}  // namespace prun::cuda
