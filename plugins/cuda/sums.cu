#include "block.cuh"
#include "launch.h"
#include "sums.h"

namespace prun_cuda {
namespace {

__global__ void __launch_bounds__(1024) add_parts(const double* parts, int64_t count, double scale, float* sum) {
  double mine = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) mine += parts[i];
  const double total = block_sum(mine);
  if (threadIdx.x == 0) *sum = static_cast<float>(scale * total);
}

}  // namespace

void finish_sum(cudaStream_t stream, const double* parts, int64_t count, double scale, float* sum) {
  const unsigned threads = count <= 32 ? 32 : count <= 256 ? 256 : 1024;
  launch(add_parts, 1, threads, 0, stream, parts, count, scale, sum);
}

}  // namespace prun_cuda
