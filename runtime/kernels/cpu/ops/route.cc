// route and its gradient (Shazeer et al., "Outrageously Large Neural Networks", 2017; the balancing loss is that of
// Fedus et al., "Switch Transformers", 2022). Experts are chosen for all tokens concurrently. Slots are then assigned
// sequentially in the order of tokens, so that they do not depend on the number of threads.
#include <cmath>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {
namespace {

struct Sizes {
  int64_t tokens, experts, k;
};

Sizes sizes_of(const OpView& view) {
  const Tensor& logits = view.read(0);
  const Sizes s{row_count(logits.shape), last_dim(logits.shape), view.attrs().integer("k", 1)};
  PRUN_CHECK(s.k > 0 && s.k <= s.experts, shape_text(logits.shape));
  return s;
}

// Sets chosen[0..k) to the experts of the k largest logits, largest first; of equal logits the lower expert comes
// first. The experts are distinct even if logits are NaN. Needs k <= experts.
template <class T>
PRUN_INLINE void choose_experts(const T* logits, int64_t experts, int64_t k, int32_t* chosen) {
  for (int64_t j = 0; j < k; ++j) {
    int32_t best = -1;
    for (int32_t e = 0; e < experts; ++e) {
      bool taken = false;
      for (int64_t i = 0; i < j; ++i) taken = taken || chosen[i] == e;
      if (!taken && (best < 0 || load(logits[e]) > load(logits[best]))) best = e;
    }
    chosen[j] = best;
  }
}

// Chooses the experts of tokens [begin, end), kept in `slots` until slots are assigned, and computes the softmax over
// their logits.
template <class T>
PRUN_CLONES void choose(const Sizes& s, const T* logits, float* weights, int32_t* slots, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    const T* row = logits + n * s.experts;
    int32_t* chosen = slots + n * s.k;
    float* w = weights + n * s.k;
    choose_experts(row, s.experts, s.k, chosen);
    float sum = 0;
    for (int64_t j = 0; j < s.k; ++j) {
      w[j] = exp_f32(load(row[chosen[j]]) - load(row[chosen[0]]));
      sum += w[j];
    }
    for (int64_t j = 0; j < s.k; ++j) w[j] /= sum;
  }
}

// Replaces experts by their slots; -1 beyond the capacity. Counts in f32 are exact up to 2^24 choices of one expert.
void assign_slots(const Sizes& s, int64_t capacity, int32_t* slots, float* counts) {
  std::fill(counts, counts + s.experts, 0.0f);
  for (int64_t i = 0; i < s.tokens * s.k; ++i) {
    const int32_t expert = slots[i];
    const int64_t place = static_cast<int64_t>(counts[expert]);
    slots[i] = place < capacity ? static_cast<int32_t>(expert * capacity + place) : -1;
    counts[expert] += 1;
  }
}

template <class T>
std::unique_ptr<Kernel> forward(const OpView& view) {
  const Sizes s = sizes_of(view);
  for (size_t i : {0, 1}) view.expect_count(view.write(i), s.tokens * s.k);
  view.expect_count(view.write(2), s.experts);
  const int64_t limit = view.attrs().integer("capacity"), capacity = limit == 0 ? s.tokens : limit;
  return kernel_of([s, capacity, logits = view.in<T>(0), weights = view.out<float>(0), slots = view.out<int32_t>(1),
                    counts = view.out<float>(2), threads = view.threads()] {
    parallel_rows(threads, s.tokens,
                  [&](int64_t begin, int64_t end) { choose(s, logits, weights, slots, begin, end); });
    assign_slots(s, capacity, slots, counts);
  });
}

// Computes dlogit = w·(dw − Σ w·dw) for a chosen expert with weight w. The balancing loss adds p·(g − Σ p·g) to every
// expert, with p its probability and g = share·counts.
template <class T>
PRUN_INLINE void gradients(const Sizes& s, const T* logits, const float* weights, const float* dweights,
                           const float* counts, float share, int32_t* chosen, float* row, T* dlogits, int64_t begin,
                           int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    const T* x = logits + n * s.experts;
    const float *w = weights + n * s.k, *dw = dweights + n * s.k;
    for (int64_t e = 0; e < s.experts; ++e) row[e] = 0;
    choose_experts(x, s.experts, s.k, chosen);
    if (counts != nullptr) {
      const float top = load(x[chosen[0]]);
      float sum = 0, along = 0;
#pragma omp simd reduction(+ : sum, along)
      for (int64_t e = 0; e < s.experts; ++e) {
        row[e] = exp_f32(load(x[e]) - top);
        sum += row[e];
        along += row[e] * counts[e];
      }
      const float inverse = 1.0f / sum, mean = along * inverse;
#pragma omp simd
      for (int64_t e = 0; e < s.experts; ++e) row[e] *= inverse * share * (counts[e] - mean);
    }
    float along = 0;
    for (int64_t j = 0; j < s.k; ++j) along += w[j] * dw[j];
    for (int64_t j = 0; j < s.k; ++j) row[chosen[j]] += w[j] * (dw[j] - along);
#pragma omp simd
    for (int64_t e = 0; e < s.experts; ++e) store(dlogits[n * s.experts + e], row[e]);
  }
}

// Returns the bytes of scratch per thread: k choices and a row.
int64_t backward_share(const OpView& view) {
  const Sizes s = sizes_of(view);
  return round_up((s.k + s.experts) * static_cast<int64_t>(sizeof(float)), kAlignBytes);
}

template <class T>
std::unique_ptr<Kernel> backward(const OpView& view) {
  const Sizes s = sizes_of(view);
  for (size_t i : {1, 2}) view.expect_count(view.read(i), s.tokens * s.k);
  view.expect_count(view.write(0), s.tokens * s.experts);
  const float* counts = view.reads() > 3 ? view.in<float>(3) : nullptr;
  if (counts != nullptr) view.expect_count(view.read(3), s.experts);
  // g = aux·experts·f / tokens with f = counts / (k·tokens): a token has 1/tokens of the mean probability.
  const double covered = static_cast<double>(view.attrs().integer("tokens", s.tokens) * s.k);
  const double scale = view.attrs().number("scale", 1.0 / static_cast<double>(s.tokens));
  const double share = view.attrs().number("aux") * static_cast<double>(s.experts) * scale / covered;
  const int64_t bytes = backward_share(view);
  return kernel_of([s, logits = view.in<T>(0), weights = view.in<float>(1), dweights = view.in<float>(2), counts,
                    dlogits = view.out<T>(0), share = static_cast<float>(share), threads = view.threads(), bytes,
                    scratch = view.scratch(bytes * view.threads())] {
    parallel_for(threads, threads, [&](int64_t i, int thread) {
      int32_t* chosen = reinterpret_cast<int32_t*>(scratch.data + thread * bytes);
      float* row = reinterpret_cast<float*>(chosen + s.k);
      with_lanes([&]<int>() PRUN_INLINED {
        gradients(s, logits, weights, dweights, counts, share, chosen, row, dlogits, s.tokens * i / threads,
                  s.tokens * (i + 1) / threads);
      });
    });
  });
}

}  // namespace

const Family route_kernels = {
    {"route", PRUN_FLOAT_MAKER(read(0), forward<T>(view))},
    {"route_grad", PRUN_FLOAT_MAKER(read(0), backward<T>(view)), Accepts::floats,
     [](const OpView& v) { return backward_share(v) * v.threads(); }},
};

}  // namespace prun::cpu
