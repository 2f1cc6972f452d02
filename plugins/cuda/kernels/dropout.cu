// dropout: the mask is drawn and never stored, so forward and backward are the same kernel. prun/philox.h defines the
// random words.
//
// Surprising fact: random words cost more than memory traffic, so none is drawn twice. For each group of 64 elements 8
// lanes draw two blocks each and exchange the bits of their 8 words, because the 8 neighbours that a lane loads
// together have words of 8 different blocks.
#include <bit>

#include "block.cuh"
#include "launch.h"
#include "prun/philox.h"

namespace prun::cuda {
namespace {

namespace philox = prun::philox;

constexpr int kThreads = 256, kRowsPerBlock = kThreads / kWarp;
constexpr int kGroup = 64, kLanes = 8, kElements = kGroup / kLanes;  // sizes of a group of elements that 8 lanes share

struct Dropout {
  int64_t rows, length, width;    // extents of x
  int64_t sample, whole, column;  // number of x's first row; elements of a whole token, and x's first one in it
  uint64_t key;
  uint32_t bound;
  float factor;
  TokenPositions at;
};

// Returns a mask: bit i is set if element i of this lane's 8 is kept. All lanes of the warp must call it; 8 neighbours
// have the same group.
__device__ unsigned draw(uint64_t stream, uint64_t sample, uint64_t group, uint32_t bound) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  unsigned drawn = 0;  // bit 4·b + w: word w of this lane's block b
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const philox::Words words = philox::block(stream, sample, group * 16 + static_cast<uint64_t>(2 * lane + b));
#pragma unroll
    for (int w = 0; w < 4; ++w) drawn |= (words[w] >= bound ? 1u : 0u) << (4 * b + w);
  }
  // Element 8·lane + i has word lane / 2 of block 8·(lane % 2) + i, which lane 4·(lane % 2) + i / 2 of the 8 has drawn.
  unsigned mine = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned theirs = __shfl_sync(kAllLanes, drawn, lane % 2 * 4 + i, kLanes) >> (lane / 2);
    mine |= ((theirs & 1u) | (theirs >> 4 & 1u) << 1) << (2 * i);
  }
  return mine;
}

// Returns x if the lowest bit is set, otherwise 0. Branch-free, so that neighbours share one store.
__device__ float kept_or_zero(float x, unsigned bit) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & (0u - (bit & 1u)));
}

// Processes one row per warp at a time. kPacked: rows begin at a multiple of 8 elements, in memory and in the sample.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    drop(const T* x, T* y, Dropout d, const prun_step_values* values) {
  const uint64_t stream = philox::dropout_stream(values->seed, d.key, static_cast<uint64_t>(values->step));
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first_row = blockIdx.x * static_cast<int64_t>(kRowsPerBlock) + threadIdx.x / kWarp;
  for (int64_t row = first_row; row < d.rows; row += gridDim.x * static_cast<int64_t>(kRowsPerBlock)) {
    const int64_t in_batch = row / d.length;
    const int64_t begin = d.at.of(row - in_batch * d.length) * d.whole + d.column, end = begin + d.width;
    const T* from = x + row * d.width;
    T* to = y + row * d.width;
    for (int64_t group = begin / kGroup; group * kGroup < end; group += kWarp / kLanes) {
      const int64_t mine = group + lane / kLanes;
      const unsigned kept =
          draw(stream, static_cast<uint64_t>(d.sample + in_batch), static_cast<uint64_t>(mine), d.bound);
      const int64_t at = mine * kGroup + lane % kLanes * kElements - begin;  // offset in the row
      if (kPacked) {
        if (at < 0 || at >= d.width) continue;
        Wide<T> v[kElements];
        load(from + at, v);
#pragma unroll
        for (int i = 0; i < kElements; ++i) v[i] = kept_or_zero(d.factor * v[i], kept >> i);
        store(to + at, v);
      } else {
        for (int i = 0; i < kElements; ++i) {
          if (at + i < 0 || at + i >= d.width) continue;
          to[at + i] = narrow<T>(kept_or_zero(d.factor * widen(from[at + i]), kept >> i));
        }
      }
    }
  }
}

Dropout dropout_of(const OpView& view) {
  const Shape shape = view.read(0).shape;
  view.expect(shape.rank() == 2 || shape.rank() == 3, shape_text(shape));
  const double p = view.number("p");
  view.expect(p >= 0 && p < 1, "p = " + std::to_string(p));
  view.expect_count(view.write(0), shape.count());
  const int64_t batch = shape[0], length = shape.rank() == 3 ? shape[1] : 1, width = shape.last();
  const Share split = view.share("split_axis");
  Dropout d;
  d.rows = batch * length, d.length = length, d.width = width;
  d.sample = view.share("rows_axis").index * view.integer("samples", batch) + view.integer("first");
  d.whole = view.integer("width", split.of * width);
  d.column = split.index * width;
  d.key = static_cast<uint64_t>(view.integer("key"));
  d.bound = philox::dropout_bound(p);
  d.factor = static_cast<float>(1 / (1 - p));
  d.at = view.token_positions(length);
  return d;
}

std::unique_ptr<Kernel> make_dropout(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const T* x = view.in<T>(0);
    T* y = view.out<T>(0);
    const Dropout d = dropout_of(view);
    const bool packed = d.width % kElements == 0 && d.whole % kElements == 0 && aligned(x, y);
    return kernel_of([=, values = view.values(), blocks = blocks_for(d.rows, kRowsPerBlock)](cudaStream_t stream) {
      launch(packed ? drop<T, true> : drop<T, false>, blocks, kThreads, 0, stream, x, y, d, values);
    });
  });
}

const KernelFamily kFamily = {{"dropout", make_dropout}};

}  // namespace
}  // namespace prun::cuda
