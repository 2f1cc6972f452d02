#include "block.cuh"
#include "launch.h"
#include "sums.h"

namespace prun::cuda {
namespace {

template <class Sum>
__global__ void __launch_bounds__(1024) add_parts(const double* parts, int64_t count, double scale, Sum* sum) {
  double mine = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) mine += parts[i];
  const double total = block_sum(mine);
  if (threadIdx.x == 0) *sum = static_cast<Sum>(scale * total);
}

constexpr int kGroups = 16;  // warps per block: each adds every 16th part of the block's 32 columns

__global__ void __launch_bounds__(kGroups* kWarp)
    add_columns(const float* parts, int64_t count, int64_t width, float* sums, float* second, const float* added) {
  __shared__ float groups[kGroups][kWarp];
  const int lane = threadIdx.x % kWarp, group = threadIdx.x / kWarp;
  const int64_t columns = second != nullptr ? 2 * width : width, column = int64_t{blockIdx.x} * kWarp + lane;
  float sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (int64_t part = group; part < count; part += kGroups) sum += parts[part * columns + column];
  }
  groups[group][lane] = sum;
  __syncthreads();
  if (group != 0 || column >= columns) return;
#pragma unroll
  for (int g = 1; g < kGroups; ++g) sum += groups[g][lane];
  if (column < width)
    sums[column] = added != nullptr ? added[column] + sum : sum;
  else
    second[column - width] = sum;
}

template <class Sum>
void launch_add_parts(cudaStream_t stream, const double* parts, int64_t count, double scale, Sum* sum) {
  const unsigned threads = count <= 32 ? 32 : count <= 256 ? 256 : 1024;
  launch(add_parts<Sum>, 1, threads, 0, stream, parts, count, scale, sum);
}

}  // namespace

void finish_sum(cudaStream_t stream, const double* parts, int64_t count, double scale, float* sum) {
  launch_add_parts(stream, parts, count, scale, sum);
}
void finish_sum(cudaStream_t stream, const double* parts, int64_t count, double scale, double* sum) {
  launch_add_parts(stream, parts, count, scale, sum);
}

void finish_columns(cudaStream_t stream, const float* parts, int64_t count, int64_t width, float* sums, float* second,
                    const float* added) {
  const int64_t columns = second != nullptr ? 2 * width : width;
  launch(add_columns, blocks_for(columns, kWarp, INT32_MAX), kGroups * kWarp, 0, stream, parts, count, width, sums,
         second, added);
}

}  // namespace prun::cuda
