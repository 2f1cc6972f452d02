// Two outputs of attention o₁, o₂ over different keys, with log-sum-exps l₁, l₂, merge into one over all keys:
// l = log(exp l₁ + exp l₂) and o = exp(l₁ - l)·o₁ + exp(l₂ - l)·o₂ (Liu et al., "Ring Attention", 2023).
#include "attention_hops.h"
#include "cuda/kernels/block.cuh"
#include "cuda/kernels/launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// Merges one head of a row per warp. lse may be lse_before, so all lanes read it before one of them writes.
__global__ void __launch_bounds__(kThreads, 4) merge_outputs(const HopOutputs hop) {
  const HopRows& r = hop.rows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t all = r.batch * r.length * hop.heads;
  for (int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; i < all; i += int64_t{gridDim.x} * kWarps) {
    const int64_t head = i % hop.heads, row = i / hop.heads % r.length, sample = i / hop.heads / r.length;
    const int64_t at_lse = (sample * hop.heads + head) * r.length + row, at = i * hop.head;
    const float before = hop.lse_before[at_lse];
    float keep = 1, share = 0, lse = before;
    const int64_t part_row = row - r.first;
    const bool here = part_row >= 0 && part_row < r.count;
    if (here) {
      const float now = hop.part_lse[(sample * hop.heads + head) * r.count + part_row], most = fmaxf(before, now);
      const float old_share = expf(before - most), new_share = expf(now - most), both = old_share + new_share;
      keep = old_share / both, share = new_share / both, lse = most + logf(both);
    }
    __syncwarp();
    if (lane == 0) hop.lse[at_lse] = lse;
    const float* const part = hop.part + ((sample * r.count + part_row) * hop.heads + head) * hop.head;
    for (int c = 4 * lane; c < hop.head; c += 4 * kWarp) {
      float old[4], now[4];
      load(hop.out_before + at + c, old);
      if (here) {
        load(part + c, now);
#pragma unroll
        for (int e = 0; e < 4; ++e) old[e] = keep * old[e] + share * now[e];
      }
      store(hop.out + at + c, old);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 4)
    add_rows(const HopRows r, int64_t width, const bf16* part, const float* before, float* sum) {
  constexpr int N = kPack<bf16>;
  const int64_t packs = width / N, all = r.batch * r.length * packs;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += int64_t{gridDim.x} * kThreads) {
    const int64_t column = i % packs * N, row = i / packs % r.length, sample = i / packs / r.length;
    const int64_t part_row = row - r.first;
    float x[N] = {};
    if (before != nullptr) load(before + i * N, x);
    if (part_row >= 0 && part_row < r.count) {
      float more[N];
      load(part + (sample * r.count + part_row) * width + column, more);
#pragma unroll
      for (int e = 0; e < N; ++e) x[e] += more[e];
    }
    store(sum + i * N, x);
  }
}

__global__ void __launch_bounds__(kThreads) take_rows(const HopRows r, int64_t heads, const float* all, float* some) {
  const int64_t count = r.batch * heads * r.count;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads)
    some[i] = all[i / r.count * r.length + r.first + i % r.count];
}

}  // namespace

void merge_hop(cudaStream_t stream, const HopOutputs& hop) {
  const int64_t rows = hop.rows.batch * hop.rows.length * hop.heads;
  launch(merge_outputs, dim3(blocks_for(rows, kWarps)), kThreads, 0, stream, hop);
}

void add_hop_gradient(cudaStream_t stream, const HopRows& rows, int64_t width, const bf16* part, const float* before,
                      float* sum) {
  const int64_t packs = rows.batch * rows.length * width / kPack<bf16>;
  launch(add_rows, dim3(blocks_for(packs, kThreads)), kThreads, 0, stream, rows, width, part, before, sum);
}

void take_hop_rows(cudaStream_t stream, const HopRows& rows, int64_t heads, const float* all, float* some) {
  const int64_t count = rows.batch * heads * rows.count;
  launch(take_rows, dim3(blocks_for(count, kThreads)), kThreads, 0, stream, rows, heads, all, some);
}

}  // namespace prun::cuda
