// A plain GEMM: C in tiles of 16 x 16, one thread per element, with tiles of A and B in shared memory.
#include "cuda/kernels/block.cuh"
#include "cuda/kernels/launch.h"
#include "gemm.h"

namespace prun::cuda {
namespace {

constexpr int kTile = 16;

// Elements to the next row, column and GEMM of a batch.
struct Strides {
  int64_t row, column, entry;
};

template <class In, class Out>
__global__ void plain_gemm(const In* a, Strides in_a, const In* b, Strides in_b, const Out* added, Out* c, Strides in_c,
                           int64_t m, int64_t n, int64_t k, int64_t batch) {
  __shared__ float tile_a[kTile][kTile + 1], tile_b[kTile][kTile + 1];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t down = (m + kTile - 1) / kTile, across = (n + kTile - 1) / kTile;
  for (int64_t tile = blockIdx.x; tile < batch * down * across; tile += gridDim.x) {
    const int64_t entry = tile / (down * across);
    const int64_t i = tile / across % down * kTile + y, j = tile % across * kTile + x;
    const In *from_a = a + entry * in_a.entry, *from_b = b + entry * in_b.entry;
    float sum = 0;
    for (int64_t first = 0; first < k; first += kTile) {
      tile_a[y][x] = i < m && first + x < k ? widen(from_a[i * in_a.row + (first + x) * in_a.column]) : 0.0f;
      tile_b[y][x] = first + y < k && j < n ? widen(from_b[(first + y) * in_b.row + j * in_b.column]) : 0.0f;
      __syncthreads();
      for (int l = 0; l < kTile; ++l) sum += tile_a[y][l] * tile_b[l][x];
      __syncthreads();
    }
    if (i >= m || j >= n) continue;
    const int64_t at = entry * in_c.entry + i * in_c.row + j;
    if (added != nullptr) sum += widen(added[at]);
    c[at] = narrow<Out>(sum);
  }
}

Strides strides(bool transposed, int64_t rows, int64_t columns, const MatrixStrides& of) {
  const int64_t row = of.row >= 0  ? of.row
                      : transposed ? rows
                                   : columns,
                entry = of.entry < 0 ? rows * columns : of.entry;
  return transposed ? Strides{1, row, entry} : Strides{row, 1, entry};
}

template <class In, class Out>
std::unique_ptr<Kernel> make(const GemmShape& s, const void* a, const void* b, const void* added, void* c) {
  const int64_t tiles = s.batch * ((s.m + kTile - 1) / kTile) * ((s.n + kTile - 1) / kTile);
  return kernel_of([=, in_a = strides(s.transpose_a, s.m, s.k, s.in_a), in_b = strides(s.transpose_b, s.k, s.n, s.in_b),
                    in_c = strides(false, s.m, s.n, s.in_c)](cudaStream_t stream) {
    launch(plain_gemm<In, Out>, dim3(blocks_for(tiles, 1)), dim3(kTile, kTile), 0, stream, static_cast<const In*>(a),
           in_a, static_cast<const In*>(b), in_b, static_cast<const Out*>(added), static_cast<Out*>(c), in_c, s.m, s.n,
           s.k, s.batch);
  });
}

}  // namespace

std::unique_ptr<Kernel> make_plain_gemm(const GemmShape& shape, const void* a, const void* b, const void* added,
                                        void* c) {
  if (shape.input == PRUN_F32) return make<float, float>(shape, a, b, added, c);
  return shape.output == PRUN_F32 ? make<bf16, float>(shape, a, b, added, c) : make<bf16, bf16>(shape, a, b, added, c);
}

}  // namespace prun::cuda
