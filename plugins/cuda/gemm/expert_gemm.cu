// GEMMs of experts that skip the slots without a token, whose number is on the device: tiles of rows without any are
// written as zeros, and steps of a sum over rows without any are omitted.
//
// Rows without a token are not read, because no op may have written them: a later round leaves the slots of experts
// without a token as they are.
//
// Surprising fact: cuBLASLt's GEMMs are faster per FLOP, so these are used only where most slots are empty (linear.cc).
#include "cuda/attention/mma.h"
#include "cuda/kernels/block.cuh"
#include "cuda/kernels/expert_slots.cuh"
#include "cuda/kernels/launch.h"
#include "expert_gemm.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

struct Sizes {
  int64_t m, n, k, batch;
};

// A tile of C, and the steps over k that it needs.
template <int rows, int columns, int deep, bool transpose_a>
struct Tile {
  int64_t entry, i0, j0;
  int64_t first;  // the first step; k: none

  __device__ Tile(const Sizes& s, const ExpertSlots& slots, int64_t index) {
    const int64_t down = (s.m + rows - 1) / rows, across = (s.n + columns - 1) / columns;
    entry = index / (down * across);
    i0 = index / across % down * rows, j0 = index % across * columns;
    if constexpr (transpose_a)
      first = slots.next(entry, 0, s.k);
    else
      first = slots.next(entry, i0, s.m) < (i0 + rows < s.m ? i0 + rows : s.m) ? 0 : s.k;
  }
  // Returns the step after the one at k0, or k.
  __device__ int64_t after(const Sizes& s, const ExpertSlots& slots, int64_t k0) const {
    if (k0 + deep >= s.k) return s.k;
    return transpose_a ? slots.next(entry, k0 + deep, s.k) : k0 + deep;
  }
  // Writes zeros, or `added`. `packed`: whether rows may be written in packs.
  template <class Out>
  __device__ void clear(const Sizes& s, const ExpertSlots& slots, const float* added, bool packed, Out* c) const {
    constexpr int kPacks = columns / kPack<Out>;
    if (transpose_a ? static_cast<const void*>(added) == static_cast<const void*>(c) : slots.leaves(entry)) return;
    for (int at = static_cast<int>(threadIdx.x); at < rows * kPacks; at += kThreads) {
      const int64_t i = i0 + at / kPacks, j = j0 + at % kPacks * kPack<Out>;
      if (i >= s.m || j >= s.n) continue;
      const int64_t to = (entry * s.m + i) * s.n + j;
      if (packed && added == nullptr) {
        store_pack(c + to, Pack<Out, kPack<Out>>{});
        continue;
      }
      for (int e = 0; e < kPack<Out> && j + e < s.n; ++e)
        c[to + e] = narrow<Out>(added != nullptr ? added[to + e] : 0.0f);
    }
  }
};

template <class Out>
__device__ void put(const Sizes& s, int64_t entry, int64_t i, int64_t j, float sum, const float* added, Out* c) {
  if (i >= s.m || j >= s.n) return;
  const int64_t at = (entry * s.m + i) * s.n + j;
  c[at] = narrow<Out>(added != nullptr ? sum + added[at] : sum);
}

// Writes two elements of a row.
template <class Out>
__device__ void put_pair(const Sizes& s, int64_t entry, int64_t i, int64_t j, const float* sums, const float* added,
                         bool packed, Out* c) {
  if (!packed) {
    put(s, entry, i, j, sums[0], added, c);
    put(s, entry, i, j + 1, sums[1], added, c);
    return;
  }
  if (i >= s.m || j >= s.n) return;
  const int64_t at = (entry * s.m + i) * s.n + j;
  float pair[2] = {sums[0], sums[1]};
  if (added != nullptr) pair[0] += added[at], pair[1] += added[at + 1];
  store(c + at, pair);
}

// On CUDA cores, f32 and rows that copies of 16 bytes do not fit: tiles of 64 x 64, of which a thread computes 4 x 4.
constexpr int kSide = 64, kDeep = 16, kEach = 4;

template <class In, class Out, bool transpose_a, bool transpose_b>
__global__ void __launch_bounds__(kThreads, 3)
    float_gemms(Sizes s, ExpertSlots slots, const In* a, const In* b, const float* added, bool packed, Out* c) {
  if (slots.is_idle() && (!transpose_a || static_cast<const void*>(added) == static_cast<const void*>(c))) return;
  __shared__ float tile_a[kDeep][kSide + 4], tile_b[kDeep][kSide + 4];
  const int me = static_cast<int>(threadIdx.x), across = me % (kSide / kEach) * kEach,
            down = me / (kSide / kEach) * kEach;
  using Part = Tile<kSide, kSide, kDeep, transpose_a>;
  const int64_t tiles = s.batch * ((s.m + kSide - 1) / kSide) * ((s.n + kSide - 1) / kSide);
  for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
    const Part tile(s, slots, index);
    if (tile.first >= s.k) {
      tile.clear(s, slots, added, packed, c);
      continue;
    }
    const In *from_a = a + tile.entry * s.m * s.k, *from_b = b + tile.entry * s.k * s.n;
    float sum[kEach][kEach] = {};
    for (int64_t k0 = tile.first; k0 < s.k; k0 = tile.after(s, slots, k0)) {
      for (int at = me; at < kSide * kDeep; at += kThreads) {
        const int la = transpose_a ? at / kSide : at % kDeep, ia = transpose_a ? at % kSide : at / kDeep;
        const int lb = transpose_b ? at % kDeep : at / kSide, jb = transpose_b ? at / kDeep : at % kSide;
        const int64_t i = tile.i0 + ia, j = tile.j0 + jb, ka = k0 + la, kb = k0 + lb;
        const bool in_a = i < s.m && ka < s.k && slots.has_token(tile.entry, transpose_a ? ka : i);
        const bool in_b = j < s.n && kb < s.k && (!transpose_a || slots.has_token(tile.entry, kb));
        tile_a[la][ia] = in_a ? widen(from_a[transpose_a ? ka * s.m + i : i * s.k + ka]) : 0.0f;
        tile_b[lb][jb] = in_b ? widen(from_b[transpose_b ? j * s.k + kb : kb * s.n + j]) : 0.0f;
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
// Two blocks run at once, because one cannot hide the latency of its copies.
constexpr int kRows = 128, kStep = 32, kPad = 8, kTensorBlocks = 2;

// A matrix in shared memory as it is stored: `rows` of k or of m (n).
template <bool k_is_rows>
struct Panel {
  static constexpr int kAcross = k_is_rows ? kRows : kStep, kDown = k_is_rows ? kStep : kRows, kPitch = kAcross + kPad;
  bf16 data[kDown * kPitch];

  __device__ const bf16* at(int down, int across) const { return data + down * kPitch + across; }

  static constexpr int kCopies = kDown * kAcross / 8 / kThreads;  // of a thread

  static __device__ int down(int copy) { return (static_cast<int>(threadIdx.x) + copy * kThreads) / (kAcross / 8); }
  static __device__ int across() { return static_cast<int>(threadIdx.x) % (kAcross / 8) * 8; }

  // Returns the bits of this thread's copies whose rows, `first` and those after it, have a token.
  static __device__ uint32_t with_token(const ExpertSlots& slots, int64_t expert, int64_t first, int64_t end) {
    uint32_t bits = 0;
#pragma unroll
    for (int copy = 0; copy < kCopies; ++copy)
      if (first + down(copy) < end && slots.has_token(expert, first + down(copy))) bits |= 1u << copy;
    return bits;
  }

  // Copies [k0, k0 + kStep) of k and [i0, i0 + kRows) of a matrix of extents k and `extent`; zeros for rows without
  // their bit.
  __device__ void load(const bf16* from, int64_t k0, int64_t k, int64_t i0, int64_t extent, uint32_t bits) {
#pragma unroll
    for (int copy = 0; copy < kCopies; ++copy) {
      const int down = Panel::down(copy), across = Panel::across();
      const int64_t row = (k_is_rows ? k0 : i0) + down, column = (k_is_rows ? i0 : k0) + across;
      const bool there = row < (k_is_rows ? k : extent) && column < (k_is_rows ? extent : k) && (bits >> copy & 1) != 0;
      copy_16(data + down * kPitch + across, there ? from + row * (k_is_rows ? extent : k) + column : from, there);
    }
  }
};

template <class Out, bool transpose_a, bool transpose_b>
__global__ void __launch_bounds__(kThreads, kTensorBlocks)
    tensor_gemms(Sizes s, ExpertSlots slots, const bf16* a, const bf16* b, const float* added, bool packed, Out* c) {
  if (slots.is_idle() && (!transpose_a || static_cast<const void*>(added) == static_cast<const void*>(c))) return;
  __shared__ __align__(16) Panel<transpose_a> panels_a[2];
  __shared__ __align__(16) Panel<!transpose_b> panels_b[2];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int rows = warp / 4 * 64, columns = warp % 4 * 32, matrix = lane / 8, line = lane % 8;
  using Part = Tile<kRows, kRows, kStep, transpose_a>;
  const int64_t tiles = s.batch * ((s.m + kRows - 1) / kRows) * ((s.n + kRows - 1) / kRows);
  for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
    const Part tile(s, slots, index);
    if (tile.first >= s.k) {
      tile.clear(s, slots, added, packed, c);
      continue;
    }
    const bf16 *from_a = a + tile.entry * s.m * s.k, *from_b = b + tile.entry * s.k * s.n;
    float sum[4][4][4] = {};
    int stage = 0;
    int64_t k0 = tile.first;
    uint32_t rows_a = transpose_a ? 0 : Panel<transpose_a>::with_token(slots, tile.entry, tile.i0, s.m);
    const auto load = [&](int to, int64_t first) {
      if constexpr (transpose_a) rows_a = Panel<transpose_a>::with_token(slots, tile.entry, first, s.k);
      panels_a[to].load(from_a, first, s.k, tile.i0, s.m, rows_a);
      panels_b[to].load(from_b, first, s.k, tile.j0, s.n, transpose_a ? rows_a : ~0u);
    };
    load(0, k0);
    wait_copies();
    __syncthreads();
    while (k0 < s.k) {
      const int64_t next = tile.after(s, slots, k0);
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
        for (int e = 0; e < 4; e += 2)
          put_pair(s, tile.entry, tile.i0 + rows + 16 * i + lane / 4 + e / 2 * 8,
                   tile.j0 + columns + 8 * j + lane % 4 * 2, &sum[i][j][e], added, packed, c);
  }
}

template <class In, class Out>
using Gemms = void (*)(Sizes, ExpertSlots, const In*, const In*, const float*, bool, Out*);

template <class In, class Out>
std::unique_ptr<Kernel> kernel(const OpView& view, Gemms<In, Out> gemms, int side, const Gemm& g) {
  const Sizes s{g.shape.m, g.shape.n, g.shape.k, g.shape.batch};
  const int64_t tiles = s.batch * ((s.m + side - 1) / side) * ((s.n + side - 1) / side);
  const unsigned blocks =
      blocks_for(tiles, 1, view.integer("round") > 0 ? kTensorBlocks * view.context().multiprocessors() : INT32_MAX);
  const ExpertSlots slots = expert_slots_of(view, 2, s.batch, g.shape.transpose_a ? s.k : s.m);
  const bool packed = rows_aligned(s.n, static_cast<const Out*>(g.c));
  return kernel_of([=, a = static_cast<const In*>(g.a), b = static_cast<const In*>(g.b),
                    added = static_cast<const float*>(g.added), c = static_cast<Out*>(g.c)](cudaStream_t stream) {
    if (tiles > 0) launch(gemms, blocks, kThreads, 0, stream, s, slots, a, b, added, packed, c);
  });
}

template <class T>
std::unique_ptr<Kernel> float_kernel(const OpView& view, const Gemm& g) {
  if (g.shape.transpose_a) return kernel<T, float>(view, float_gemms<T, float, true, false>, kSide, g);
  return kernel<T, T>(view, g.shape.transpose_b ? float_gemms<T, T, false, true> : float_gemms<T, T, false, false>,
                      kSide, g);
}

}  // namespace

bool takes_expert_gemm(const Gemm& gemm) {
  const GemmShape& s = gemm.shape;
  if (s.input == PRUN_F32) return true;
  // Rows as stored are copied in pieces of 16 bytes.
  const int64_t row_a = s.transpose_a ? s.m : s.k, row_b = s.transpose_b ? s.k : s.n;
  return row_a % 8 == 0 && row_b % 8 == 0 &&
         aligned(static_cast<const bf16*>(gemm.a), static_cast<const bf16*>(gemm.b));
}

std::unique_ptr<Kernel> make_expert_gemm(const OpView& view, const Gemm& g) {
  if (g.shape.input == PRUN_F32) return float_kernel<float>(view, g);
  if (!takes_expert_gemm(g)) return float_kernel<bf16>(view, g);
  if (g.shape.transpose_a) return kernel<bf16, float>(view, tensor_gemms<float, true, false>, kRows, g);
  return kernel<bf16, bf16>(
      view, g.shape.transpose_b ? tensor_gemms<bf16, false, true> : tensor_gemms<bf16, false, false>, kRows, g);
}

}  // namespace prun::cuda
