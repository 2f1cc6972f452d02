// cached_attention, which replaces attention in generation. Each query of each head makes one pass over its cached keys
// with the online softmax (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), so the scratch
// does not grow with the context.
//
// Surprising fact: a call first writes the keys and values of all its tokens; a query attends to those up to its own
// position.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/attention/heads.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {
namespace {

// Computes softmax(q·kᵀ/√head)·v over `keys` rows, `stride` apart, in blocks of kBlock keys. `sum`: `head` floats of
// scratch.
template <class T>
PRUN_INLINE void attend(const T* q, const T* k, const T* v, int64_t keys, int64_t stride, int64_t size, float* sum,
                        T* out) {
  constexpr int64_t kBlock = 32;
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  float max = -std::numeric_limits<float>::infinity(), total = 0, p[kBlock];
  for (int64_t i = 0; i < size; ++i) sum[i] = 0;
  for (int64_t first = 0; first < keys; first += kBlock) {
    const int64_t count = keys - first < kBlock ? keys - first : kBlock;
    float block_max = max;
    for (int64_t j = 0; j < count; ++j) {
      const T* key = k + (first + j) * stride;
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < size; ++i) dot += load(q[i]) * load(key[i]);
      p[j] = dot * scale;
      block_max = p[j] > block_max ? p[j] : block_max;
    }
    const float correction = exp_f32(max - block_max);  // 0 for the first block, as exp(-inf)
    max = block_max;
    total *= correction;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) sum[i] *= correction;
    for (int64_t j = 0; j < count; ++j) {
      const float weight = exp_f32(p[j] - max);
      const T* value = v + (first + j) * stride;
      total += weight;
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) sum[i] += weight * load(value[i]);
    }
  }
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) store(out[i], sum[i] / total);
}

int64_t attention_scratch(const OpView& view) { return view.threads() * ThreadScratch::bytes_of(Heads(view).head); }

template <class T>
std::unique_ptr<Kernel> cached_attention(const OpView& view) {
  const Heads s(view);
  const int64_t context = view.write(1).shape[1], kept = s.kv_width();
  view.expect_count(view.read(1), s.batch * s.length);
  view.expect_count(view.read(2), s.batch * context * kept);
  view.expect_count(view.write(0), s.batch * s.length * s.width);
  return kernel_of([s, context, kept, qkv = view.in<T>(0), at = view.in<int32_t>(1), out = view.out<T>(0),
                    cache = view.out<T>(1), threads = view.threads(), scratch = ThreadScratch(view, s.head)] {
    for (int64_t row = 0; row < s.batch * s.length; ++row) {
      PRUN_CHECK(at[row] >= 0 && at[row] < context, std::to_string(at[row]));
      std::memcpy(cache + (row / s.length * context + at[row]) * kept, qkv + row * s.stride + s.width,
                  kept * sizeof(T));
    }
    parallel_for(threads, s.batch * s.length * s.heads, [&](int64_t i, int thread) {
      const int64_t row = i / s.heads, h = i % s.heads;
      const T* keys = cache + row / s.length * context * kept + h / s.group() * s.head;
      with_lanes([&]<int>() PRUN_INLINED {
        attend(qkv + row * s.stride + s.q(h), keys, keys + kept / 2, at[row] + 1, kept, s.head, scratch.of(thread),
               out + i * s.head);
      });
    });
  });
}

}  // namespace

const Family decode_kernels = {
    {"cached_attention", PRUN_FLOAT_MAKER(read(0), cached_attention<T>(view)), Accepts::floats, attention_scratch}};

}  // namespace prun::cpu
