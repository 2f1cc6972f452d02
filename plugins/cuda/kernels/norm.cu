// Computes norm2 and the coefficient that clips gradients. Squares are computed and accumulated in f64, because the
// square of an f32 overflows beyond 1.8e19. The sum is stored as f64. It takes two f64 operations per element, so A100
// and Hopper remain memory-bound.
//
// Inputs are divided into chunks by sizes alone, one block each, so results are bitwise identical in every run.
#include <algorithm>
#include <cfloat>
#include <vector>

#include "block.cuh"
#include "launch.h"
#include "sums.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

struct Chunk {
  const float* data;
  int64_t count;
  double weight;
};

// Returns the elements of 128 KiB, or for very large tensors those of a 4096th.
int64_t chunk_size(int64_t elements) { return std::max<int64_t>(32768, (elements + 4095) / 4096); }
int64_t chunk_count(int64_t elements) { return (elements + chunk_size(elements) - 1) / chunk_size(elements); }

__global__ void __launch_bounds__(kThreads, kStreamingBlocks) sum_chunks(const Chunk* chunks, double* parts) {
  constexpr int N = kPack<float>;
  const Chunk chunk = chunks[blockIdx.x];
  const Run run = run_of(chunk.data, chunk.count);
  double sums[N] = {};
  const float* body = chunk.data + run.head;
#pragma unroll 4
  for (int64_t pack = threadIdx.x; pack < run.packs; pack += kThreads) {
    float x[N];
    load(body + pack * N, x);
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  // The elements before the first pack and after the last: less than two packs.
  const int64_t i = static_cast<int64_t>(threadIdx.x) < run.head ? threadIdx.x : threadIdx.x + run.packs * N;
  if (i < chunk.count && threadIdx.x < 2 * N)
    sums[0] += static_cast<double>(chunk.data[i]) * static_cast<double>(chunk.data[i]);
  const double sum = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (threadIdx.x == 0) parts[blockIdx.x] = chunk.weight * sum;
}

// Divides a run into chunks of `size` elements.
void add_chunks(const Chunk& run, int64_t size, std::vector<Chunk>& chunks) {
  for (int64_t begin = 0; begin < run.count; begin += size)
    chunks.push_back({run.data + begin, std::min(size, run.count - begin), run.weight});
}

// Returns the chunks of whole tensors. The attribute `weights` has one number for each tensor, 1 by default.
std::vector<Chunk> whole_tensors(const OpView& view) {
  const std::vector<double> weights = view.numbers("weights");
  if (!weights.empty() && weights.size() != view.reads())
    throw Failure(PRUN_EINVAL, "norm2: one of `weights` is wanted for each tensor");
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < view.reads(); ++i) {
    const int64_t count = view.read(i).count();
    add_chunks({view.in<float>(i), count, weights.empty() ? 1 : weights[i]}, chunk_size(count), chunks);
  }
  return chunks;
}

// Returns the rank's part of one flat vector, whose elements from piece_starts[i] on have the weight piece_weights[i].
std::vector<Chunk> weighted_pieces(const OpView& view) {
  const std::span<const int64_t> starts = view.integers("piece_starts");
  const std::vector<double> weights = view.numbers("piece_weights");
  if (view.reads() != 1 || weights.size() != starts.size())
    throw Failure(PRUN_EINVAL, "norm2: of pieces, one tensor is summed, and each start has a weight");
  const float* data = view.in<float>(0);
  const int64_t n = view.read(0).count(), offset = n * view.share("axis").index;
  std::vector<Chunk> runs, chunks;
  int64_t begin = 0;
  const auto add = [&](int64_t end, double weight) {
    end = std::clamp<int64_t>(end, begin, n);
    if (!runs.empty() && runs.back().weight == weight)
      runs.back().count += end - begin;
    else if (begin < end)
      runs.push_back({data + begin, end - begin, weight});
    begin = end;
  };
  for (size_t i = 0; i < starts.size(); ++i) add(starts[i] - offset, i == 0 ? 1 : weights[i - 1]);
  add(n, weights.empty() ? 1 : weights.back());
  for (const Chunk& run : runs) add_chunks(run, chunk_size(n), chunks);
  return chunks;
}

// Returns an upper bound of the chunks: the runs of pieces add up to the tensor, and each may leave a partial chunk.
int64_t most_chunks(const OpView& view) {
  int64_t chunks = static_cast<int64_t>(view.integers("piece_starts").size()) + 1;
  for (size_t i = 0; i < view.reads(); ++i) chunks += chunk_count(view.read(i).count());
  return chunks;
}

size_t workspace(const OpView& view) { return static_cast<size_t>(most_chunks(view)) * sizeof(double); }

std::unique_ptr<Kernel> make_norm2(const OpView& view) {
  view.expect_count(view.write(0), 1);
  const std::vector<Chunk> chunks = view.has("piece_starts") ? weighted_pieces(view) : whole_tensors(view);
  const int64_t count = static_cast<int64_t>(chunks.size());
  double* sum = view.out<double>(0);
  const Scratch parts = scratch(view, chunks.size() * sizeof(double));
  const std::shared_ptr<void> table =
      chunks.empty() ? nullptr : device_table(view.context(), chunks.data(), chunks.size() * sizeof(Chunk));
  return kernel_of([=](cudaStream_t stream) {
    double* data = static_cast<double*>(parts.data);
    if (count > 0)
      launch(sum_chunks, static_cast<unsigned>(count), kThreads, 0, stream, static_cast<const Chunk*>(table.get()),
             data);
    finish_sum(stream, data, count, 1, sum);
  });
}

// Computes the coefficient as torch.nn.utils.clip_grad_norm_ does; a norm that is NaN clips nothing.
__global__ void clip(const double* norm2, float* coefficient, double* norm, double max, bool skip) {
  const double length = sqrt(*norm2), factor = max / (length + 1e-6);
  *coefficient = static_cast<float>(max > 0 && factor < 1.0 ? factor : 1.0);
  if (skip && !(*norm2 <= DBL_MAX)) *coefficient = -1.0f;
  if (norm != nullptr) *norm = length;
}

std::unique_ptr<Kernel> make_clip_coefficient(const OpView& view) {
  view.expect_count(view.read(0), 1);
  for (size_t i = 0; i < view.writes(); ++i) view.expect_count(view.write(i), 1);
  return kernel_of([norm2 = view.in<double>(0), coefficient = view.out<float>(0),
                    norm = view.writes() > 1 ? view.out<double>(1) : nullptr, max = view.number("max", 1),
                    skip = view.integer("skip", 0) != 0](cudaStream_t stream) {
    launch(clip, 1, 1, 0, stream, norm2, coefficient, norm, max, skip);
  });
}

std::string refuses_norm2(const OpView& view) {
  for (size_t i = 0; i < view.reads(); ++i)
    if (view.read(i).dtype != PRUN_F32) return "it sums squares of f32";
  return view.write(0).dtype == PRUN_F64 ? "" : "its sum is f64";
}

std::string refuses_clip(const OpView& view) {
  if (view.read(0).dtype != PRUN_F64 || (view.writes() > 1 && view.write(1).dtype != PRUN_F64))
    return "its sum and its norm are f64";
  return view.write(0).dtype == PRUN_F32 ? "" : "its coefficient is f32";
}

const KernelFamily kFamily = {{"norm2", make_norm2, workspace, refuses_norm2},
                              {"clip_coefficient", make_clip_coefficient, nullptr, refuses_clip}};

}  // namespace
}  // namespace prun::cuda
