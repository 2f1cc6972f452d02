// route and its gradient. A few lanes of a warp choose a token's experts; slots are then assigned in the order of
// tokens, by ranks.cuh.
#include <bit>

#include "block.cuh"
#include "launch.h"
#include "prun/sdk/routing.h"
#include "ranks.cuh"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

struct Sizes {
  int64_t tokens, experts, k;
  int lanes;  // lanes per token: a power of two
  int64_t capacity, groups, kept;
  bool sigmoid, renormalise, biased;
  float factor;
  // Whether experts are chosen by their scores; otherwise by their logits, whose order is the same.
  __host__ __device__ bool by_scores() const { return biased || kept < groups; }
};

Sizes sizes_of(const OpView& view) {
  const Shape logits = view.read(0).shape;
  Sizes s{logits.rows(), logits.last(), view.integer("k", 1), 1, view.integer("capacity"), view.integer("groups", 1)};
  if (s.capacity == 0) s.capacity = s.tokens;
  s.kept = view.integer("groups_kept", s.groups);
  s.sigmoid = view.text("scores", "softmax") == "sigmoid";
  s.renormalise = view.integer("renormalise", 1) != 0;
  s.biased = view.integer("biased") != 0;
  s.factor = static_cast<float>(view.number("factor", 1));
  while (s.lanes < kWarp && s.lanes < s.experts) s.lanes *= 2;
  view.expect(s.k > 0 && s.k <= s.experts && s.tokens * s.k <= std::numeric_limits<int32_t>::max(),
              std::to_string(s.k) + " experts for each of " + shape_text(logits));
  view.expect(s.groups > 0 && s.groups <= s.lanes && s.experts % s.groups == 0,
              std::to_string(s.groups) + " groups of " + std::to_string(s.experts) + " experts");
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

__device__ __forceinline__ float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }

// The softmax over all of a row's logits: exp(x − top) · inverse. In all lanes of the token.
struct Softmax {
  float top, inverse, sum;
};
template <class T>
__device__ Softmax softmax_of(const T* x, const Sizes& s, int lane) {
  float top = -INFINITY, sum = 0;
  for (int64_t e = lane; e < s.experts; e += s.lanes) top = fmaxf(top, widen(x[e]));
  top = over_lanes(top, s.lanes, [](float a, float b) { return fmaxf(a, b); });
  for (int64_t e = lane; e < s.experts; e += s.lanes) sum += expf(widen(x[e]) - top);
  sum = over_lanes(sum, s.lanes, Add{});
  return {top, 1.0f / sum, sum};
}

// The keys by which experts are chosen.
template <class T>
struct Keys {
  const T* x;
  const float* bias;  // may be null
  Softmax soft;
  uint32_t groups;  // bit g: group g is kept

  __device__ float value(const Sizes& s, int64_t e) const {
    const float logit = widen(x[e]);
    if (!s.by_scores()) return logit;
    const float score = s.sigmoid ? sigmoid_of(logit) : expf(logit - soft.top) * soft.inverse;
    return bias != nullptr ? score + bias[e] : score;
  }

  // Returns the largest key below `bound` of experts [first, end) in kept groups, in all lanes of the token.
  __device__ uint64_t next(const Sizes& s, int lane, uint64_t bound, int64_t first, int64_t end) const {
    uint64_t best = 0;
    for (int64_t e = first + lane; e < end; e += s.lanes) {
      if ((groups >> (e / (s.experts / s.groups)) & 1) == 0) continue;
      const uint64_t key = key_of(value(s, e), e);
      if (key < bound && key > best) best = key;
    }
    return over_lanes(best, s.lanes, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  }
};

// Returns the bits of the groups with the largest sums of their two largest keys. Lane g keeps the sum of group g.
template <class T>
__device__ uint32_t best_groups(const Keys<T>& keys, const Sizes& s, int lane) {
  const int64_t size = s.experts / s.groups;
  uint64_t mine = 0;
  for (int64_t g = 0; g < s.groups; ++g) {
    const uint64_t first = keys.next(s, lane, ~uint64_t{0}, g * size, (g + 1) * size);
    float sum = keys.value(s, expert_of(first));
    if (size > 1) sum += keys.value(s, expert_of(keys.next(s, lane, first, g * size, (g + 1) * size)));
    if (lane == g) mine = key_of(sum, g);
  }
  uint32_t kept = 0;
  for (int64_t i = 0; i < s.kept; ++i) {
    const uint64_t best = over_lanes(mine, s.lanes, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
    kept |= 1u << expert_of(best);
    if (mine == best) mine = 0;
  }
  return kept;
}

// Divides the weights of a token's experts by their sum, in one lane.
__device__ __forceinline__ void finish_weights(const Sizes& s, float* w, float sum) {
  const float by = !s.renormalise ? 1.0f : s.sigmoid ? sum + sdk::kLeastScore : sum;
  for (int64_t j = 0; j < s.k; ++j) w[j] = w[j] / by * s.factor;
}

// Chooses the experts of all tokens, kept in `slots` until slots are assigned, and computes their weights. `bias` and
// `runs` may be null.
template <class T>
__global__ void choose(Sizes s, const T* logits, const float* bias, const int32_t* runs, float* weights,
                       int32_t* slots) {
  const Walk walk(s);
  for (int64_t base = walk.first; base < s.tokens; base += walk.step) {
    const int64_t token = walk.token(base, s);
    const bool writes = walk.lane == 0 && token < s.tokens;
    const int64_t mine = token < s.tokens ? token : s.tokens - 1;
    const T* row = logits + mine * s.experts;
    const bool all = !s.sigmoid && (s.by_scores() || !s.renormalise);
    Keys<T> keys{row, bias, all ? softmax_of(row, s, walk.lane) : Softmax{}, 0xffffffffu};
    if (s.kept < s.groups) keys.groups = best_groups(keys, s, walk.lane);
    float *w = weights + token * s.k, top = 0, sum = 0;
    uint64_t key = ~uint64_t{0};
    for (int64_t j = 0; j < s.k; ++j) {
      key = keys.next(s, walk.lane, key, 0, s.experts);
      const int32_t expert = expert_of(key);
      const float logit = widen(row[expert]);
      top = j == 0 ? logit : fmaxf(top, logit);
      if (writes) slots[token * s.k + j] = expert, w[j] = logit;
    }
    if (!writes) continue;
    if (all && !s.renormalise) top = keys.soft.top;
    for (int64_t j = 0; j < s.k; ++j) {
      w[j] = s.sigmoid ? sigmoid_of(w[j]) : s.renormalise ? expf(w[j] - top) : expf(w[j] - top) * keys.soft.inverse;
      sum += w[j];
    }
    finish_weights(s, w, sum);
    if (runs == nullptr || sdk::counts(runs + 2 * token)) continue;
    for (int64_t j = 0; j < s.k; ++j) slots[token * s.k + j] = sdk::kUnrouted;
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
    slots[choice] = sdk::slot_of(expert, rank, capacity);
  }
};

__global__ void begin_experts(Chunks chunks, int32_t* in_chunks, int64_t capacity, float* counts, int32_t* filled) {
  for (int64_t e = first_item(); e < chunks.buckets; e += item_stride()) {
    const int32_t count = begin_chunks(chunks, in_chunks, e);
    counts[e] = static_cast<float>(count);
    filled[e] = count < capacity ? count : static_cast<int32_t>(capacity);
  }
}

Chunks chunks_of(const OpView& view) {
  const Sizes s = sizes_of(view);
  return Chunks(s.tokens * s.k, s.experts);
}

template <class T>
std::unique_ptr<Kernel> route(const OpView& view) {
  const Sizes s = sizes_of(view);
  for (size_t i : {0, 1}) view.expect_count(view.write(i), s.tokens * s.k);
  for (size_t i : {2, 3}) view.expect_count(view.write(i), s.experts);
  view.expect(s.experts * s.capacity <= std::numeric_limits<int32_t>::max(),
              std::to_string(s.experts) + " experts of " + std::to_string(s.capacity) + " slots");
  const float* bias = s.biased ? view.in<float>(1) : nullptr;
  if (s.biased) view.expect_count(view.read(1), s.experts);
  const size_t last = view.reads() - 1;
  const int32_t* runs = view.integer("runs") != 0 ? view.in<int32_t>(last) : nullptr;
  if (runs != nullptr) view.expect_count(view.read(last), 2 * s.tokens);
  const Chunks chunks = chunks_of(view);
  return kernel_of([=, logits = view.in<T>(0), weights = view.out<float>(0), slots = view.out<int32_t>(1),
                    counts = view.out<float>(2), filled = view.out<int32_t>(3),
                    room = scratch(view, chunks.bytes())](cudaStream_t stream) {
    int32_t* in_chunks = static_cast<int32_t*>(room.data);
    launch(choose<T>, blocks_for(s.tokens * s.lanes, kThreads), kThreads, 0, stream, s, logits, bias, runs, weights,
           slots);
    count_in_chunks(Chosen{slots}, chunks, in_chunks, stream);
    launch(begin_experts, blocks_for(s.experts, kThreads), kThreads, 0, stream, chunks, in_chunks, s.capacity, counts,
           filled);
    rank_in_chunks(Chosen{slots}, GiveSlot{slots, s.capacity}, chunks, in_chunks, stream);
  });
}

// The losses of a router, as factors of their gradients.
struct Losses {
  const float* counts;    // null: neither loss
  float aux, z;           // aux·experts and 2·z
  double covered, scale;  // choices that the counts cover, a token's share of the means
  bool some;              // tokens that do not count are among the covered ones; their number follows from the counts
};

// Computes dlogit = w·(dw − Σ w·dw / factor) of the chosen experts, with w the weights, times 1 − s if s is the
// sigmoid. If weights are not divided by their sum, Σ is not subtracted there, and a softmax has −p·Σ w·dw for each
// expert. The balancing loss adds p·(g − Σ p·g) for each expert, with p the scores divided by their sum, times 1 − s
// for sigmoids, and g = share·counts its gradient with respect to them; the z-loss adds z·lse·p with p the softmax.
template <class T>
__global__ void route_gradients(Sizes s, const T* logits, const float* weights, const float* dweights,
                                const int32_t* slots, Losses losses, T* dlogits) {
  const Walk walk(s);
  float share = 0, z = 0;
  if (losses.counts != nullptr) {
    double choices = losses.covered;
    if (losses.some) {
      float counted = 0;
      for (int64_t e = walk.lane; e < s.experts; e += s.lanes) counted += losses.counts[e];
      counted = over_lanes(counted, s.lanes, Add{});
      choices = counted < 1 ? 1.0 : static_cast<double>(counted);
    }
    const double of_token = losses.scale * losses.covered / choices;
    share = static_cast<float>(losses.aux * of_token / choices), z = static_cast<float>(losses.z * of_token);
  }
  for (int64_t base = walk.first; base < s.tokens; base += walk.step) {
    const int64_t token = walk.token(base, s), mine = token < s.tokens ? token : s.tokens - 1;
    const T* x = logits + mine * s.experts;
    const float *w = weights + mine * s.k, *dw = dweights + mine * s.k;
    const int32_t* places = slots + mine * s.k;
    T* dx = dlogits + mine * s.experts;
    const bool counts = places[0] != sdk::kUnrouted;
    float along = 0, chosen = 0, mean = 0, sum = 1;
    for (int64_t j = 0; j < s.k; ++j) along += w[j] * dw[j], chosen += w[j] / s.factor * dw[j];
    if (!s.renormalise) chosen = 0;
    const Softmax soft =
        losses.counts != nullptr || !(s.sigmoid || s.renormalise) ? softmax_of(x, s, walk.lane) : Softmax{};
    if (losses.counts != nullptr) {
      sum = 0;
      for (int64_t e = walk.lane; e < s.experts; e += s.lanes) {
        const float score = s.sigmoid ? sigmoid_of(widen(x[e])) : expf(widen(x[e]) - soft.top);
        sum += score, mean += score * losses.counts[e];
      }
      sum = over_lanes(sum, s.lanes, Add{}), mean = over_lanes(mean, s.lanes, Add{}) / sum;
    }
    const float lse = losses.counts != nullptr ? soft.top + logf(soft.sum) : 0.0f;
    for (int64_t e = walk.lane; token < s.tokens && e < s.experts; e += s.lanes) {
      float d = 0;
      const float logit = widen(x[e]), score = s.sigmoid ? sigmoid_of(logit) : 0.0f,
                  slope = s.sigmoid ? 1.0f - score : 1.0f;
      if (losses.counts != nullptr) {
        const float p = expf(logit - soft.top);
        d += (s.sigmoid ? score : p) * slope * (share / sum) * (losses.counts[e] - mean);
        d += p * soft.inverse * (z * lse);
      }
      for (int64_t j = 0; j < s.k; ++j)
        if (counts && sdk::expert_of(places[j], s.capacity) == e) d += w[j] * (dw[j] - chosen) * slope;
      if (!s.sigmoid && !s.renormalise) d -= expf(logit - soft.top) * soft.inverse * along;
      dx[e] = narrow<T>(counts ? d : 0.0f);
    }
  }
}

template <class T>
std::unique_ptr<Kernel> route_grad(const OpView& view) {
  const Sizes s = sizes_of(view);
  for (size_t i : {1, 2, 3}) view.expect_count(view.read(i), s.tokens * s.k);
  view.expect_count(view.write(0), s.tokens * s.experts);
  Losses losses{};
  losses.counts = view.reads() > 4 ? view.in<float>(4) : nullptr;
  if (losses.counts != nullptr) view.expect_count(view.read(4), s.experts);
  losses.aux = static_cast<float>(view.number("aux") * static_cast<double>(s.experts));
  losses.z = static_cast<float>(2 * view.number("z"));
  losses.covered = static_cast<double>(view.integer("tokens", s.tokens) * s.k);
  losses.scale = view.number("scale", 1.0 / static_cast<double>(s.tokens));
  losses.some = view.integer("runs") != 0;
  return kernel_of([=, logits = view.in<T>(0), weights = view.in<float>(1), dweights = view.in<float>(2),
                    slots = view.in<int32_t>(3), dlogits = view.out<T>(0)](cudaStream_t stream) {
    launch(route_gradients<T>, blocks_for(s.tokens * s.lanes, kThreads), kThreads, 0, stream, s, logits, weights,
           dweights, slots, losses, dlogits);
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
