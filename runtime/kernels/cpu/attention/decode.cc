// rotary_at and cached_attention: what a generation has in place of rotary and attention. Each query of each head is
// one pass over the keys before it, with a softmax that corrects itself as larger scores come (Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018), so scratch does not grow with the context.
//
// Surprising fact: a chunk's keys and values are all written first; a query sees those up to its own position.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/attention/rotary_speeds.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {
namespace {

// Angles are made in f64, as those of rotary are.
template <class T>
void turn_row(const T* x, T* y, const std::vector<double>& speeds, int64_t position, int64_t heads) {
  const int64_t half = std::ssize(speeds);
  for (int64_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * speeds[i];
    const float c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t low = h * 2 * half + i, high = low + half;
      const float a = load(x[low]), b = load(x[high]);
      store(y[low], a * c - b * s);
      store(y[high], b * c + a * s);
    }
  }
}

template <class T>
std::unique_ptr<Kernel> rotary_at(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  const int64_t half = view.attrs().integer("size") / 2, heads = view.attrs().integer("heads");
  view.expect_count(view.read(1), rows);
  view.expect_count(view.write(0), rows * width);
  return kernel_of([x = view.in<T>(0), at = view.in<int32_t>(1), y = view.out<T>(0), rows, width, heads,
                    speeds = rotary_speeds_of(view.attrs(), half), threads = view.threads()] {
    parallel_for(threads, rows, [&](int64_t row, int) {
      const T* from = x + row * width;
      T* to = y + row * width;
      turn_row(from, to, speeds, at[row], heads);
      const int64_t turned = heads * 2 * std::ssize(speeds);
      if (from != to) std::memcpy(to + turned, from + turned, (width - turned) * sizeof(T));
    });
  });
}

struct CacheSizes {
  int64_t batch, length, context, heads, kv_heads, size;
  explicit CacheSizes(const OpView& view)
      : batch(view.read(0).shape[0]),
        length(view.read(0).shape[1]),
        context(view.write(1).shape[1]),
        heads(view.attrs().integer("heads", 1)),
        kv_heads(view.attrs().integer("kv_heads", heads)),
        size(last_dim(view.read(0).shape) / (heads + 2 * kv_heads)) {}
  int64_t row() const { return (heads + 2 * kv_heads) * size; }  // of qkv
  int64_t kept() const { return 2 * kv_heads * size; }           // of the cache
};

// softmax(q·kᵀ/√size)·v over `keys` rows that lie `stride` apart; `sum` has room for the result.
template <class T>
PRUN_INLINE void attend(const T* q, const T* k, const T* v, int64_t keys, int64_t stride, int64_t size, float* sum,
                        T* out) {
  constexpr int64_t kBlock = 32;
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  float top = -std::numeric_limits<float>::infinity(), total = 0, p[kBlock];
  for (int64_t i = 0; i < size; ++i) sum[i] = 0;
  for (int64_t first = 0; first < keys; first += kBlock) {
    const int64_t count = keys - first < kBlock ? keys - first : kBlock;
    float block_top = top;
    for (int64_t j = 0; j < count; ++j) {
      const T* key = k + (first + j) * stride;
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < size; ++i) dot += load(q[i]) * load(key[i]);
      p[j] = dot * scale;
      block_top = p[j] > block_top ? p[j] : block_top;
    }
    const float correction = exp_f32(top - block_top);  // of the first block: of -inf, 0
    top = block_top;
    total *= correction;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) sum[i] *= correction;
    for (int64_t j = 0; j < count; ++j) {
      const float weight = exp_f32(p[j] - top);
      const T* value = v + (first + j) * stride;
      total += weight;
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) sum[i] += weight * load(value[i]);
    }
  }
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) store(out[i], sum[i] / total);
}

int64_t attention_scratch(const OpView& view) {
  return view.threads() *
         round_up(CacheSizes(view).size * static_cast<int64_t>(sizeof(float)), static_cast<int64_t>(kAlignBytes));
}

template <class T>
std::unique_ptr<Kernel> cached_attention(const OpView& view) {
  const CacheSizes s(view);
  view.expect_count(view.read(1), s.batch * s.length);
  view.expect_count(view.read(2), s.batch * s.context * s.kept());
  view.expect_count(view.write(0), s.batch * s.length * s.heads * s.size);
  return kernel_of([s, qkv = view.in<T>(0), at = view.in<int32_t>(1), out = view.out<T>(0), cache = view.out<T>(1),
                    threads = view.threads(), share = attention_scratch(view) / view.threads(),
                    scratch = view.scratch(attention_scratch(view))] {
    for (int64_t row = 0; row < s.batch * s.length; ++row) {
      PRUN_CHECK(at[row] >= 0 && at[row] < s.context, std::to_string(at[row]));
      std::memcpy(cache + (row / s.length * s.context + at[row]) * s.kept(), qkv + row * s.row() + s.heads * s.size,
                  s.kept() * sizeof(T));
    }
    parallel_for(threads, s.batch * s.length * s.heads, [&](int64_t i, int thread) {
      const int64_t row = i / s.heads, h = i % s.heads, shared = h * s.kv_heads / s.heads;
      const T* keys = cache + row / s.length * s.context * s.kept() + shared * s.size;
      with_lanes([&]<int>() PRUN_INLINED {
        attend(qkv + row * s.row() + h * s.size, keys, keys + s.kv_heads * s.size, at[row] + 1, s.kept(), s.size,
               reinterpret_cast<float*>(scratch.data + thread * share), out + i * s.size);
      });
    });
  });
}

}  // namespace

const Family decode_kernels = {
    {"rotary_at", PRUN_FLOAT_MAKER(read(0), rotary_at<T>(view))},
    {"cached_attention", PRUN_FLOAT_MAKER(read(0), cached_attention<T>(view)), Accepts::floats, attention_scratch}};

}  // namespace prun::cpu
