// route and its gradient (Shazeer et al., "Outrageously Large Neural Networks", 2017; the balancing loss is that of
// Fedus et al., "Switch Transformers", 2022). Experts are chosen for all tokens concurrently. Slots are then assigned
// sequentially in the order of tokens, so that they do not depend on the number of threads.
#include <cmath>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vectors.h"
#include "prun/sdk/routing.h"

namespace prun::cpu {
namespace {

struct Sizes {
  int64_t tokens, experts, k, capacity, groups, kept;
  bool sigmoid, renormalise, biased;
  float factor;
  // Whether experts are chosen by their scores; otherwise by their logits, whose order is the same.
  bool by_scores() const { return biased || kept < groups; }
};

Sizes sizes_of(const OpView& view) {
  const Tensor& logits = view.read(0);
  const Attrs& attrs = view.attrs();
  Sizes s{row_count(logits.shape), last_dim(logits.shape), attrs.integer("k", 1), attrs.integer("capacity"),
          attrs.integer("groups", 1)};
  if (s.capacity == 0) s.capacity = s.tokens;
  s.kept = attrs.integer("groups_kept", s.groups);
  s.sigmoid = attrs.text("scores", "softmax") == "sigmoid";
  s.renormalise = attrs.integer("renormalise", 1) != 0;
  s.biased = attrs.integer("biased") != 0;
  s.factor = static_cast<float>(attrs.number("factor", 1));
  PRUN_CHECK(s.k > 0 && s.k <= s.experts && s.groups > 0 && s.experts % s.groups == 0, shape_text(logits.shape));
  return s;
}

PRUN_INLINE float sigmoid_of(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

// The softmax over all of a row's logits: exp(x − top) · inverse.
struct Softmax {
  float top, inverse, lse;
};
template <class T>
PRUN_INLINE Softmax softmax_of(const T* x, int64_t n) {
  float top = load(x[0]), sum = 0;
  for (int64_t e = 1; e < n; ++e) top = load(x[e]) > top ? load(x[e]) : top;
#pragma omp simd reduction(+ : sum)
  for (int64_t e = 0; e < n; ++e) sum += exp_f32(load(x[e]) - top);
  return {top, 1.0f / sum, top + std::log(sum)};
}

// Sets chosen[0..k) to the experts of the k largest keys, largest first; of equal keys the lower expert comes first.
// The experts are distinct even if keys are NaN. Needs k <= experts.
PRUN_INLINE void choose_experts(const float* keys, int64_t experts, int64_t k, int32_t* chosen) {
  for (int64_t j = 0; j < k; ++j) {
    int32_t best = -1;
    for (int32_t e = 0; e < experts; ++e) {
      bool taken = false;
      for (int64_t i = 0; i < j; ++i) taken = taken || chosen[i] == e;
      if (!taken && (best < 0 || keys[e] > keys[best])) best = e;
    }
    chosen[j] = best;
  }
}

// Returns the sum of a group's two largest keys.
PRUN_INLINE float group_score(const float* keys, int64_t size) {
  float first = keys[0], second = -INFINITY;
  for (int64_t e = 1; e < size; ++e) {
    const float key = keys[e];
    second = key > first ? first : key > second ? key : second;
    first = key > first ? key : first;
  }
  return size > 1 ? first + second : first;
}

// Sets the keys of all but the best groups to −inf. `room`: of a float and an int for each group.
PRUN_INLINE void keep_groups(const Sizes& s, float* keys, float* room) {
  const int64_t size = s.experts / s.groups;
  int32_t* best = reinterpret_cast<int32_t*>(room + s.groups);
  for (int64_t g = 0; g < s.groups; ++g) room[g] = group_score(keys + g * size, size);
  choose_experts(room, s.groups, s.kept, best);
  for (int64_t g = 0; g < s.groups; ++g) {
    bool kept = false;
    for (int64_t i = 0; i < s.kept; ++i) kept = kept || best[i] == g;
    for (int64_t e = g * size; !kept && e < (g + 1) * size; ++e) keys[e] = -INFINITY;
  }
}

// Writes the keys by which experts are chosen. `room`: as that of keep_groups.
template <class T>
PRUN_INLINE void write_keys(const Sizes& s, const T* x, const float* bias, float* keys, float* room) {
  if (!s.by_scores()) {
    for (int64_t e = 0; e < s.experts; ++e) keys[e] = load(x[e]);
    return;
  }
  const Softmax soft = s.sigmoid ? Softmax{} : softmax_of(x, s.experts);
  for (int64_t e = 0; e < s.experts; ++e) {
    keys[e] = s.sigmoid ? sigmoid_of(load(x[e])) : exp_f32(load(x[e]) - soft.top) * soft.inverse;
    if (bias != nullptr) keys[e] += bias[e];
  }
  if (s.kept < s.groups) keep_groups(s, keys, room);
}

// Writes the weights of a token's chosen experts.
template <class T>
PRUN_INLINE void write_weights(const Sizes& s, const T* x, const int32_t* chosen, float* w) {
  float sum = 0, top = load(x[chosen[0]]);
  if (s.sigmoid) {
    for (int64_t j = 0; j < s.k; ++j) sum += w[j] = sigmoid_of(load(x[chosen[j]]));
    sum = s.renormalise ? sum + sdk::kLeastScore : 1.0f;
  } else if (s.renormalise) {
    for (int64_t j = 1; j < s.k; ++j) top = load(x[chosen[j]]) > top ? load(x[chosen[j]]) : top;
    for (int64_t j = 0; j < s.k; ++j) {
      w[j] = exp_f32(load(x[chosen[j]]) - top);
      sum += w[j];
    }
  } else {
    const Softmax soft = softmax_of(x, s.experts);
    for (int64_t j = 0; j < s.k; ++j) w[j] = exp_f32(load(x[chosen[j]]) - soft.top) * soft.inverse;
    sum = 1;
  }
  for (int64_t j = 0; j < s.k; ++j) w[j] = w[j] / sum * s.factor;
}

// Chooses the experts of tokens [begin, end), kept in `slots` until slots are assigned, and computes their weights.
// `runs` may be null.
template <class T>
PRUN_CLONES void choose(const Sizes& s, const T* logits, const float* bias, const int32_t* runs, float* weights,
                        int32_t* slots, float* keys, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    const T* row = logits + n * s.experts;
    int32_t* chosen = slots + n * s.k;
    write_keys(s, row, bias, keys, keys + s.experts);
    choose_experts(keys, s.experts, s.k, chosen);
    write_weights(s, row, chosen, weights + n * s.k);
    if (runs != nullptr && !sdk::counts(runs + 2 * n)) std::fill(chosen, chosen + s.k, sdk::kUnrouted);
  }
}

// Replaces experts by their slots. Counts in f32 are exact up to 2^24 choices of one expert.
void assign_slots(const Sizes& s, int32_t* slots, float* counts, int32_t* filled) {
  std::fill(counts, counts + s.experts, 0.0f);
  for (int64_t i = 0; i < s.tokens * s.k; ++i) {
    const int32_t expert = slots[i];
    if (expert == sdk::kUnrouted) continue;
    slots[i] = sdk::slot_of(expert, static_cast<int64_t>(counts[expert]), s.capacity);
    counts[expert] += 1;
  }
  for (int64_t e = 0; e < s.experts; ++e)
    filled[e] = static_cast<int32_t>(std::min(static_cast<int64_t>(counts[e]), s.capacity));
}

// Returns the bytes of scratch per thread: a row, and two numbers for each group.
int64_t forward_share(const OpView& view) {
  const Sizes s = sizes_of(view);
  return round_up((s.experts + 2 * s.groups) * static_cast<int64_t>(sizeof(float)), kAlignBytes);
}

template <class T>
std::unique_ptr<Kernel> forward(const OpView& view) {
  const Sizes s = sizes_of(view);
  for (size_t i : {0, 1}) view.expect_count(view.write(i), s.tokens * s.k);
  for (size_t i : {2, 3}) view.expect_count(view.write(i), s.experts);
  const float* bias = s.biased ? view.in<float>(1) : nullptr;
  if (s.biased) view.expect_count(view.read(1), s.experts);
  const size_t last = view.reads() - 1;
  const int32_t* runs = view.attrs().integer("runs") != 0 ? view.in<int32_t>(last) : nullptr;
  if (runs != nullptr) view.expect_count(view.read(last), 2 * s.tokens);
  const int64_t bytes = forward_share(view);
  return kernel_of([s, bias, runs, logits = view.in<T>(0), weights = view.out<float>(0), slots = view.out<int32_t>(1),
                    counts = view.out<float>(2), filled = view.out<int32_t>(3), threads = view.threads(), bytes,
                    scratch = view.scratch(bytes * view.threads())] {
    parallel_for(threads, threads, [&](int64_t i, int thread) {
      choose(s, logits, bias, runs, weights, slots, reinterpret_cast<float*>(scratch.data + thread * bytes),
             s.tokens * i / threads, s.tokens * (i + 1) / threads);
    });
    assign_slots(s, slots, counts, filled);
  });
}

// The losses of a router, as factors of their gradients.
struct Losses {
  const float* counts;  // null: neither loss
  float share, z;       // of a count of the balancing loss, and of lse·p of the z-loss
};

// Adds p·(g − Σ p·g) to every expert, with g = share·counts and p the softmax of the logits, or the sigmoids divided by
// their sum, whose derivatives have a factor 1 − s more; and z·lse·p.
template <class T>
PRUN_INLINE void add_losses(const Sizes& s, const T* x, const Losses& losses, float* row) {
  const Softmax soft = softmax_of(x, s.experts);
  float along = 0, sum = 0;
  if (s.sigmoid) {
    for (int64_t e = 0; e < s.experts; ++e) {
      const float score = sigmoid_of(load(x[e]));
      sum += score, along += score * losses.counts[e];
    }
    const float mean = along / sum, scale = losses.share / sum;
    for (int64_t e = 0; e < s.experts; ++e) {
      const float score = sigmoid_of(load(x[e]));
      row[e] += score * (1.0f - score) * scale * (losses.counts[e] - mean);
    }
  } else {
#pragma omp simd reduction(+ : along)
    for (int64_t e = 0; e < s.experts; ++e) along += exp_f32(load(x[e]) - soft.top) * losses.counts[e];
    const float mean = along * soft.inverse, scale = losses.share * soft.inverse;
#pragma omp simd
    for (int64_t e = 0; e < s.experts; ++e)
      row[e] += exp_f32(load(x[e]) - soft.top) * scale * (losses.counts[e] - mean);
  }
  if (losses.z == 0) return;
  const float scale = losses.z * soft.lse * soft.inverse;
#pragma omp simd
  for (int64_t e = 0; e < s.experts; ++e) row[e] += exp_f32(load(x[e]) - soft.top) * scale;
}

// Computes dlogit = w·(dw − Σ w·dw / factor) for a chosen expert with weight w, times 1 − s if s is its sigmoid. If the
// weights are not divided by their sum, Σ is not subtracted there, and a softmax has −p·Σ w·dw for every expert.
template <class T>
PRUN_INLINE void gradients(const Sizes& s, const T* logits, const float* weights, const float* dweights,
                           const int32_t* slots, const Losses& losses, float* row, T* dlogits, int64_t begin,
                           int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    const T* x = logits + n * s.experts;
    const float *w = weights + n * s.k, *dw = dweights + n * s.k;
    const int32_t* places = slots + n * s.k;
    for (int64_t e = 0; e < s.experts; ++e) row[e] = 0;
    if (places[0] != sdk::kUnrouted) {
      if (losses.counts != nullptr) add_losses(s, x, losses, row);
      float along = 0, mean = 0;
      for (int64_t j = 0; j < s.k; ++j) along += w[j] * dw[j], mean += w[j] / s.factor * dw[j];
      if (!s.renormalise) mean = 0;
      for (int64_t j = 0; j < s.k; ++j) {
        const int32_t e = sdk::expert_of(places[j], s.capacity);
        const float slope = s.sigmoid ? 1.0f - sigmoid_of(load(x[e])) : 1.0f;
        row[e] += w[j] * (dw[j] - mean) * slope;
      }
      if (!s.sigmoid && !s.renormalise) {
        const Softmax soft = softmax_of(x, s.experts);
        const float scale = along * soft.inverse;
#pragma omp simd
        for (int64_t e = 0; e < s.experts; ++e) row[e] -= exp_f32(load(x[e]) - soft.top) * scale;
      }
    }
#pragma omp simd
    for (int64_t e = 0; e < s.experts; ++e) store(dlogits[n * s.experts + e], row[e]);
  }
}

// Returns the bytes of scratch per thread: a row.
int64_t backward_share(const OpView& view) {
  return round_up(last_dim(view.read(0).shape) * static_cast<int64_t>(sizeof(float)), kAlignBytes);
}

template <class T>
std::unique_ptr<Kernel> backward(const OpView& view) {
  const Sizes s = sizes_of(view);
  for (size_t i : {1, 2, 3}) view.expect_count(view.read(i), s.tokens * s.k);
  view.expect_count(view.write(0), s.tokens * s.experts);
  const float* counts = view.reads() > 4 ? view.in<float>(4) : nullptr;
  if (counts != nullptr) view.expect_count(view.read(4), s.experts);
  // A token has `scale` of the mean probability P of the loss aux·experts·Σ f·P, f = counts / (k·tokens). If some
  // tokens do not count, the number of the others follows from the counts.
  const bool some = view.attrs().integer("runs") != 0;
  const double covered = static_cast<double>(view.attrs().integer("tokens", s.tokens) * s.k);
  const double scale = view.attrs().number("scale", 1.0 / static_cast<double>(s.tokens));
  const double aux = view.attrs().number("aux") * static_cast<double>(s.experts), z = 2 * view.attrs().number("z");
  const int64_t bytes = backward_share(view);
  return kernel_of([s, logits = view.in<T>(0), weights = view.in<float>(1), dweights = view.in<float>(2),
                    slots = view.in<int32_t>(3), counts, dlogits = view.out<T>(0), covered, scale, aux, z, some,
                    threads = view.threads(), bytes, scratch = view.scratch(bytes * view.threads())] {
    double choices = covered;
    if (some && counts != nullptr) {
      choices = 0;
      for (int64_t e = 0; e < s.experts; ++e) choices += static_cast<double>(counts[e]);
      choices = std::max(choices, 1.0);
    }
    const double of_token = scale * covered / choices;
    const Losses losses{counts, static_cast<float>(aux * of_token / choices), static_cast<float>(z * of_token)};
    parallel_for(threads, threads, [&](int64_t i, int thread) {
      float* row = reinterpret_cast<float*>(scratch.data + thread * bytes);
      with_lanes([&]<int>() PRUN_INLINED {
        gradients(s, logits, weights, dweights, slots, losses, row, dlogits, s.tokens * i / threads,
                  s.tokens * (i + 1) / threads);
      });
    });
  });
}

}  // namespace

const Family route_kernels = {
    {"route", PRUN_FLOAT_MAKER(read(0), forward<T>(view)), Accepts::floats,
     [](const OpView& v) { return forward_share(v) * v.threads(); }},
    {"route_grad", PRUN_FLOAT_MAKER(read(0), backward<T>(view)), Accepts::floats,
     [](const OpView& v) { return backward_share(v) * v.threads(); }},
};

}  // namespace prun::cpu
