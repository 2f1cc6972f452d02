#include "blas_trial.h"
#include "cuda/kernels/block.cuh"
#include "cuda/kernels/launch.h"

namespace prun::cuda {
namespace {

// Returns a number in [-1, 1), by the mixing function of MurmurHash3. Magnitudes are spread over 2^14, because f32 sums
// of bf16 numbers of one magnitude are exact in any order.
__device__ float number(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdu;
  x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53u;
  x ^= x >> 33;
  return (static_cast<float>(static_cast<uint32_t>(x) >> 8) / (1 << 23) - 1.0f) / static_cast<float>(1 << 2 * (x & 7));
}

template <class T>
__global__ void fill_matrix(T* data, TrialMatrix m) {
  const int64_t count = m.batch * m.rows * m.columns, k = m.k_is_rows ? m.rows : m.columns;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = i / m.columns % m.rows, column = i % m.columns;
    const int64_t along = m.k_is_rows ? row : column, across = m.k_is_rows ? column : row;
    const int64_t from_end = k - 1 - along, place = m.mirrored && from_end < along ? from_end : along;
    const float x = number(static_cast<uint64_t>((across * k + place) * 2 + m.is_b));
    const bool plain = !m.mirrored || !m.is_b || along < from_end;
    data[i] = narrow<T>(plain ? x : along > from_end ? -x : 0.0f);
  }
}

}  // namespace

void fill(cudaStream_t stream, const TrialMatrix& matrix, int dtype, void* data) {
  const int64_t count = matrix.batch * matrix.rows * matrix.columns;
  with_float(dtype, [&]<class T>() {
    launch(fill_matrix<T>, dim3(blocks_for(count, 256)), dim3(256), 0, stream, static_cast<T*>(data), matrix);
  });
}

}  // namespace prun::cuda
