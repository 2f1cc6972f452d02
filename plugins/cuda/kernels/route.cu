// route and its gradient. A few lanes of a warp choose a token's experts; slots are then assigned in the order of
// tokens, by ranks.cuh.
#include <bit>

#include "block.cuh"
#include "launch.h"
#include "ranks.cuh"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

struct Sizes {
  int64_t tokens, experts, k;
  int lanes;  // lanes per token: a power of two
};

Sizes sizes_of(const OpView& view) {
  const Shape logits = view.read(0).shape;
  Sizes s{logits.rows(), logits.last(), view.integer("k", 1), 1};
  while (s.lanes < kWarp && s.lanes < s.experts) s.lanes *= 2;
  view.expect(s.k > 0 && s.k <= s.experts && s.tokens * s.k <= std::numeric_limits<int32_t>::max(),
              std::to_string(s.k) + " experts for each of " + shape_text(logits));
  return s;
}

// Assigns tokens to lanes. All lanes of a warp take the same number of steps; lanes without a token repeat the last
// one.
struct Walk {
  int64_t first, step;
  int lane;  // index of this lane among the token's lanes
  __device__ explicit Walk(const Sizes& s)
      : first(first_item() / kWarp * (kWarp / s.lanes)),
        step(item_stride() / s.lanes),
        lane(static_cast<int>(threadIdx.x) % s.lanes) {}
  __device__ int64_t token(int64_t base, const Sizes& s) const {
    return base + static_cast<int>(threadIdx.x) % kWarp / s.lanes;
  }
};

template <class T, class F>
__device__ __forceinline__ T over_lanes(T x, int lanes, F combine) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}

// Returns a key that orders logits; of equal logits that of the lower expert has the larger key. All keys of a token
// differ. The key of a NaN is below those of all numbers.
__device__ __forceinline__ uint64_t key_of(float logit, int64_t expert) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit == 0 ? 0.0f : logit);
  const uint32_t ordered = logit != logit ? 0 : bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(expert));
}
__device__ __forceinline__ int32_t expert_of(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// Returns the largest key below `bound`, in all lanes of the token.
template <class T>
__device__ uint64_t next_key(const T* logits, const Sizes& s, int lane, uint64_t bound) {
  uint64_t best = 0;
  for (int64_t e = lane; e < s.experts; e += s.lanes) {
    const uint64_t key = key_of(widen(logits[e]), e);
    if (key < bound && key > best) best = key;
  }
  return over_lanes(best, s.lanes, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
}

// Chooses the experts of all tokens, kept in `slots` until slots are assigned, and computes the softmax over their
// logits.
template <class T>
__global__ void choose(Sizes s, const T* logits, float* weights, int32_t* slots) {
  const Walk walk(s);
  for (int64_t base = walk.first; base < s.tokens; base += walk.step) {
    const int64_t token = walk.token(base, s);
    const bool writes = walk.lane == 0 && token < s.tokens;
    const T* row = logits + (token < s.tokens ? token : s.tokens - 1) * s.experts;
    float *w = weights + token * s.k, top = 0, sum = 0;
    uint64_t key = ~uint64_t{0};
    for (int64_t j = 0; j < s.k; ++j) {
      key = next_key(row, s, walk.lane, key);
      const int32_t expert = expert_of(key);
      const float logit = widen(row[expert]);
      if (j == 0) top = logit;
      const float power = expf(logit - top);
      sum += power;
      if (writes) slots[token * s.k + j] = expert, w[j] = power;
    }
    for (int64_t j = 0; writes && j < s.k; ++j) w[j] /= sum;
  }
}

struct Chosen {
  const int32_t* experts;
  __device__ int32_t operator()(int64_t choice) const { return experts[choice]; }
};

struct GiveSlot {
  int32_t* slots;
  int64_t capacity;
  __device__ void operator()(int64_t choice, int32_t expert, int32_t rank) const {
    slots[choice] = rank < capacity ? static_cast<int32_t>(expert * capacity + rank) : -1;
  }
};

__global__ void begin_experts(Chunks chunks, int32_t* in_chunks, float* counts) {
  for (int64_t e = first_item(); e < chunks.buckets; e += item_stride())
    counts[e] = static_cast<float>(begin_chunks(chunks, in_chunks, e));
}

Chunks chunks_of(const OpView& view) {
  const Sizes s = sizes_of(view);
  return Chunks(s.tokens * s.k, s.experts);
}

template <class T>
std::unique_ptr<Kernel> route(const OpView& view) {
  const Sizes s = sizes_of(view);
  for (size_t i : {0, 1}) view.expect_count(view.write(i), s.tokens * s.k);
  view.expect_count(view.write(2), s.experts);
  const int64_t given = view.integer("capacity"), capacity = given == 0 ? s.tokens : given;
  view.expect(s.experts * capacity <= std::numeric_limits<int32_t>::max(),
              std::to_string(s.experts) + " experts of " + std::to_string(capacity) + " slots");
  const Chunks chunks = chunks_of(view);
  return kernel_of([=, logits = view.in<T>(0), weights = view.out<float>(0), slots = view.out<int32_t>(1),
                    counts = view.out<float>(2), room = scratch(view, chunks.bytes())](cudaStream_t stream) {
    int32_t* in_chunks = static_cast<int32_t*>(room.data);
    launch(choose<T>, blocks_for(s.tokens * s.lanes, kThreads), kThreads, 0, stream, s, logits, weights, slots);
    count_in_chunks(Chosen{slots}, chunks, in_chunks, stream);
    launch(begin_experts, blocks_for(s.experts, kThreads), kThreads, 0, stream, chunks, in_chunks, counts);
    rank_in_chunks(Chosen{slots}, GiveSlot{slots, capacity}, chunks, in_chunks, stream);
  });
}

// Computes dlogit = w·(dw − Σ w·dw) of the chosen experts, with w the weights. The balancing loss adds p·(g − Σ p·g)
// for each expert, with p the probabilities and g = share·counts its gradient with respect to them.
template <class T>
__global__ void route_gradients(Sizes s, const T* logits, const float* weights, const float* dweights,
                                const float* counts, float share, T* dlogits) {
  const Walk walk(s);
  for (int64_t base = walk.first; base < s.tokens; base += walk.step) {
    const int64_t token = walk.token(base, s), mine = token < s.tokens ? token : s.tokens - 1;
    const T* x = logits + mine * s.experts;
    const float *w = weights + mine * s.k, *dw = dweights + mine * s.k;
    T* dx = dlogits + mine * s.experts;
    uint64_t key = next_key(x, s, walk.lane, ~uint64_t{0});
    const float top = widen(x[expert_of(key)]);
    float sum = 0, along = 0, scale = 0, mean = 0;
    if (counts != nullptr) {
      for (int64_t e = walk.lane; e < s.experts; e += s.lanes) {
        const float power = expf(widen(x[e]) - top);
        sum += power, along += power * counts[e];
      }
      sum = over_lanes(sum, s.lanes, Add{}), along = over_lanes(along, s.lanes, Add{});
      scale = share / sum, mean = along / sum;
    }
    const auto balance = [&](int64_t e) {
      return counts != nullptr ? expf(widen(x[e]) - top) * scale * (counts[e] - mean) : 0.0f;
    };
    float chosen = 0;
    for (int64_t j = 0; j < s.k; ++j) chosen += w[j] * dw[j];
    for (int64_t j = 0; j < s.k; ++j) {
      if (j > 0) key = next_key(x, s, walk.lane, key);
      const int32_t e = expert_of(key);
      if (token < s.tokens && e % s.lanes == walk.lane) dx[e] = narrow<T>(balance(e) + w[j] * (dw[j] - chosen));
    }
    for (int64_t e = walk.lane; token < s.tokens && e < s.experts; e += s.lanes) {
      if (key_of(widen(x[e]), e) < key) dx[e] = narrow<T>(balance(e));
    }
  }
}

template <class T>
std::unique_ptr<Kernel> route_grad(const OpView& view) {
  const Sizes s = sizes_of(view);
  for (size_t i : {1, 2}) view.expect_count(view.read(i), s.tokens * s.k);
  view.expect_count(view.write(0), s.tokens * s.experts);
  // With aux = 0 counts are not read.
  const double aux = view.number("aux");
  const float* counts = view.reads() > 3 && aux != 0 ? view.in<float>(3) : nullptr;
  if (counts != nullptr) view.expect_count(view.read(3), s.experts);
  // g = aux·experts·f with f = counts / (k·tokens), for each token's share of the mean probability.
  const double covered = static_cast<double>(view.integer("tokens", s.tokens) * s.k);
  const double scale = view.number("scale", 1.0 / static_cast<double>(s.tokens));
  const float share = static_cast<float>(aux * static_cast<double>(s.experts) * scale / covered);
  return kernel_of([=, logits = view.in<T>(0), weights = view.in<float>(1), dweights = view.in<float>(2),
                    dlogits = view.out<T>(0)](cudaStream_t stream) {
    launch(route_gradients<T>, blocks_for(s.tokens * s.lanes, kThreads), kThreads, 0, stream, s, logits, weights,
           dweights, counts, share, dlogits);
  });
}

std::unique_ptr<Kernel> make_route(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return route<T>(view); });
}
std::unique_ptr<Kernel> make_route_grad(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return route_grad<T>(view); });
}

const KernelFamily kFamily = {
    {"route", make_route, [](const OpView& view) { return chunks_of(view).bytes(); }},
    {"route_grad", make_route_grad},
};

}  // namespace
}  // namespace prun::cuda
