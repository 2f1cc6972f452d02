// rotary_at and cached_attention: what a generation has in place of rotary and attention. A block has one query of one
// head; its warps take keys in turn, each with a softmax that corrects itself as larger scores come (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018). Where queries are too few to fill the GPU, several
// blocks share the keys of one and a second kernel merges what they found (Dao et al., "Flash-Decoding", 2023).
//
// Surprising fact: how many blocks share a query follows from the cache's size, not from how much of it is filled,
// which only the device knows: the launch is the same for every token, so a graph of it can be replayed.
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "block.cuh"
#include "launch.h"
#include "prun/sdk/rotary.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Turns {
  int64_t rows, width, half, heads;
};

// Of each row the pairs that turn, then the elements that stay. Angles are made in f64, as those of rotary are, and in
// half turns: cos and sin of radians keep a table of π's digits in local memory for large ones.
template <class T>
__global__ void turn_at(const T* x, const int32_t* at, T* y, const double* half_turns, Turns r) {
  const int64_t pairs = r.heads * r.half, items = pairs + (x == y ? 0 : r.width - 2 * pairs);
  for (int64_t i = first_item(); i < r.rows * items; i += item_stride()) {
    const int64_t row = i / items, item = i - row * items;
    if (item >= pairs) {
      y[row * r.width + pairs + item] = x[row * r.width + pairs + item];
      continue;
    }
    const int64_t head = item / r.half, pair = item - head * r.half;
    const double angle = at[row] * half_turns[pair];
    const float cosine = static_cast<float>(cospi(angle)), sine = static_cast<float>(sinpi(angle));
    const int64_t low = row * r.width + head * 2 * r.half + pair, high = low + r.half;
    const float a = widen(x[low]), b = widen(x[high]);
    y[low] = narrow<T>(a * cosine - b * sine);
    y[high] = narrow<T>(b * cosine + a * sine);
  }
}

template <class T>
std::unique_ptr<Kernel> rotary_at(const OpView& view) {
  const Shape shape = view.read(0).shape;
  const Turns r{shape.rows(), shape.last(), view.integer("size") / 2, view.integer("heads")};
  view.expect(r.half > 0 && r.heads * 2 * r.half <= r.width,
              std::to_string(r.heads) + " heads of " + std::to_string(2 * r.half) + " in " + shape_text(shape));
  view.expect_count(view.read(1), r.rows);
  view.expect_count(view.write(0), r.rows * r.width);
  std::vector<double> speeds = sdk::rotary_speeds(
      r.half, view.text("scaling"), [&](const char* name, double usual) { return view.number(name, usual); });
  for (double& speed : speeds) speed /= std::numbers::pi;
  const std::shared_ptr<void> table = device_table(view.context(), speeds.data(), speeds.size() * sizeof(double));
  return kernel_of([=, x = view.in<T>(0), at = view.in<int32_t>(1), y = view.out<T>(0)](cudaStream_t stream) {
    launch(turn_at<T>, blocks_for(r.rows * r.width, kThreads), kThreads, 0, stream, x, at, y,
           static_cast<const double*>(table.get()), r);
  });
}

constexpr int64_t kMostHead = 256;  // elements: eight of a lane

struct Cache {
  int64_t batch, length, context, heads, kv_heads, size, splits = 1;
  explicit Cache(const OpView& view)
      : batch(view.read(0).shape[0]),
        length(view.read(0).shape[1]),
        context(view.write(1).shape[1]),
        heads(view.integer("heads", 1)),
        kv_heads(view.integer("kv_heads", heads)),
        size(view.read(0).shape.last() / (heads + 2 * kv_heads)) {
    constexpr int64_t kLeastKeys = 256, kBlocks = 512;  // of a block; that fill the largest GPU some times over
    while (splits * 2 * kLeastKeys <= context && queries() * splits * 2 <= kBlocks) splits *= 2;
  }
  __host__ __device__ int64_t row() const { return (heads + 2 * kv_heads) * size; }  // of qkv
  __host__ __device__ int64_t kept() const { return 2 * kv_heads * size; }           // of the cache
  __host__ __device__ int64_t queries() const { return batch * length * heads; }
  size_t workspace() const { return splits == 1 ? 0 : static_cast<size_t>(queries() * splits * (size + 2)) * 4; }
};

// Of rows of one sample at the same position the last is kept, as if they were written in turn. Positions are the
// host's own numbers; one that is none is not written.
template <class T>
__global__ void keep(const T* qkv, const int32_t* at, T* cache, Cache s) {
  for (int64_t i = first_item(); i < s.batch * s.length * s.kept(); i += item_stride()) {
    const int64_t row = i / s.kept(), element = i - row * s.kept(), end = (row / s.length + 1) * s.length;
    bool last = at[row] >= 0 && at[row] < s.context;
    for (int64_t later = row + 1; later < end; ++later) last = last && at[later] != at[row];
    if (last)
      cache[(row / s.length * s.context + at[row]) * s.kept() + element] =
          qkv[row * s.row() + s.heads * s.size + element];
  }
}

// A softmax that is not divided yet: Σ exp(score − top)·value, and the same of ones.
__device__ __forceinline__ float shift_of(float top) { return top == kNone ? 0.0f : top; }

// What is left of several such, `stride` apart, of `size` elements, then top and total.
template <class Store>
__device__ __forceinline__ void merge(const float* parts, int64_t count, int64_t stride, int64_t size, Store store) {
  float top = kNone;
  for (int64_t p = 0; p < count; ++p) top = fmaxf(top, parts[p * stride + size]);
  for (int64_t e = threadIdx.x; e < size; e += blockDim.x) {
    float sum = 0, total = 0;
    for (int64_t p = 0; p < count; ++p) {
      const float weight = expf(parts[p * stride + size] - shift_of(top));
      sum += weight * parts[p * stride + e];
      total += weight * parts[p * stride + size + 1];
    }
    store(e, sum, top, total);
  }
}

// Block (query, split).
template <class T>
__global__ void attend(const T* qkv, const int32_t* at, const T* cache, T* out, float* found, Cache s) {
  constexpr int kEach = kMostHead / kWarp, kKeys = 4;  // elements of a lane; keys whose dots overlap
  PRUN_SHARED(shared);
  float* parts = reinterpret_cast<float*>(shared);  // [kWarps][size + 2]
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t query = blockIdx.x, row = query / s.heads, head = query % s.heads;
  const int64_t position = at[row] < s.context ? at[row] : s.context - 1, keys = position + 1;
  const int64_t share = (keys + s.splits - 1) / s.splits, first = blockIdx.y * share;
  const int64_t end = first + share < keys ? first + share : keys;
  const T* k = cache + row / s.length * s.context * s.kept() + head * s.kv_heads / s.heads * s.size;
  const T* v = k + s.kv_heads * s.size;
  const T* q = qkv + row * s.row() + head * s.size;
  const float scale = 1.0f / sqrtf(static_cast<float>(s.size));
  float own[kEach], sum[kEach] = {}, top = kNone, total = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) own[i] = lane + i * kWarp < s.size ? widen(q[lane + i * kWarp]) * scale : 0.0f;
  for (int64_t from = first + warp * kKeys; from < end; from += kWarps * kKeys) {
    float score[kKeys];
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (from + j < end && lane + i * kWarp < s.size)
          dot += own[i] * widen(k[(from + j) * s.kept() + lane + i * kWarp]);
      score[j] = from + j < end ? warp_sum(dot) : kNone;
    }
    float larger = top;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) larger = fmaxf(larger, score[j]);
    const float correction = expf(top - larger);  // of the first keys: of -inf, 0
    top = larger, total *= correction;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum[i] *= correction;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      if (from + j >= end) continue;
      const float weight = expf(score[j] - top);
      total += weight;
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (lane + i * kWarp < s.size) sum[i] += weight * widen(v[(from + j) * s.kept() + lane + i * kWarp]);
    }
  }
  float* mine = parts + warp * (s.size + 2);
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (lane + i * kWarp < s.size) mine[lane + i * kWarp] = sum[i];
  if (lane == 0) mine[s.size] = top, mine[s.size + 1] = total;
  __syncthreads();
  float* part = found + (query * s.splits + blockIdx.y) * (s.size + 2);
  merge(parts, kWarps, s.size + 2, s.size, [&](int64_t e, float x, float largest, float all) {
    if (s.splits == 1) {
      out[query * s.size + e] = narrow<T>(x / all);
    } else {
      part[e] = x;
      if (e == 0) part[s.size] = largest, part[s.size + 1] = all;
    }
  });
}

template <class T>
__global__ void merge_splits(const float* found, T* out, Cache s) {
  const int64_t query = blockIdx.x;
  merge(found + query * s.splits * (s.size + 2), s.splits, s.size + 2, s.size,
        [&](int64_t e, float x, float, float all) { out[query * s.size + e] = narrow<T>(x / all); });
}

template <class T>
std::unique_ptr<Kernel> cached_attention(const OpView& view) {
  const Cache s(view);
  view.expect_count(view.read(1), s.batch * s.length);
  view.expect_count(view.read(2), s.batch * s.context * s.kept());
  view.expect_count(view.write(0), s.queries() * s.size);
  const Scratch found = scratch(view, s.workspace());
  return kernel_of([=, qkv = view.in<T>(0), at = view.in<int32_t>(1), out = view.out<T>(0),
                    cache = view.out<T>(1)](cudaStream_t stream) {
    const auto queries = static_cast<unsigned>(s.queries());
    float* parts = static_cast<float*>(found.data);
    launch(keep<T>, blocks_for(s.batch * s.length * s.kept(), kThreads), kThreads, 0, stream, qkv, at, cache, s);
    launch(attend<T>, dim3(queries, static_cast<unsigned>(s.splits)), kThreads,
           kWarps * static_cast<size_t>(s.size + 2) * sizeof(float), stream, qkv, at, cache, out, parts, s);
    if (s.splits > 1) launch(merge_splits<T>, queries, kThreads, 0, stream, parts, out, s);
  });
}

std::string refuses_attention(const OpView& view) {
  const int dtype = view.read(0).dtype;
  if (dtype != PRUN_F32 && dtype != PRUN_BF16)
    return std::string(view.kind()) + " has kernels here for f32 and bf16 only";
  const int64_t size = Cache(view).size;
  if (size <= kMostHead) return "";
  return std::string(view.kind()) + ": a head has " + std::to_string(size) + " elements, at most " +
         std::to_string(kMostHead) + " here";
}

std::unique_ptr<Kernel> make_rotary_at(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return rotary_at<T>(view); });
}
std::unique_ptr<Kernel> make_cached_attention(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return cached_attention<T>(view); });
}

constexpr KernelEntry kEntries[] = {
    {"rotary_at", make_rotary_at},
    {"cached_attention", make_cached_attention, [](const OpView& view) { return Cache(view).workspace(); },
     refuses_attention},
};

}  // namespace

std::span<const KernelEntry> decode_kernels() { return kEntries; }

}  // namespace prun::cuda
