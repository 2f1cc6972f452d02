// cross_entropy with its softmax fused: rows are read once, and only the log-sum-exp is stored, no probabilities.
// cross_entropy_and_grad also reads rows from memory once, because it computes a row's gradient while the row is
// cached.
//
// If the vocabulary is split over ranks, the loss takes three ops with an all-reduce after each of the first two:
// maxima (cross_entropy_max), sums (cross_entropy_sums), loss (cross_entropy_finish). The gradient is the same op.
#include <algorithm>
#include <cmath>
#include <limits>

#include "device/ids.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {
namespace {

// A rank's columns of the logits: the whole vocabulary, or the rank's part if it is split over an axis.
struct Columns {
  int64_t first, count;  // the rank has `count` columns from `first` on
  int64_t valid;         // columns in the vocabulary; the others are padding
  int64_t vocab;

  // Returns the column of a target, or -1 if it is another rank's or ignored.
  PRUN_INLINE int64_t find(int32_t target) const {
    return target < first || target >= first + count ? -1 : target - first;
  }
  // Ends the job if a target is outside the vocabulary. Only the ops that compute the loss call it, because they
  // precede those of the gradient.
  void require(const int32_t* targets, int64_t rows) const { require_targets(targets, rows, vocab, kTargetOutside); }
};

Columns columns_of(const OpView& view, const Tensor& logits) {
  const Share share = view.share("axis");
  Columns c;
  c.count = last_dim(logits.shape);
  c.first = share.index * c.count;
  c.vocab = view.attrs().integer("vocab", share.of * c.count);
  c.valid = std::clamp<int64_t>(c.vocab - c.first, 0, c.count);
  return c;
}

// Returns the sum of a row's logits.
template <class T>
PRUN_INLINE double sum_of(const T* from, int64_t count) {
  constexpr int64_t kBlock = 1024;  // f32 sums of so many terms, added in f64
  double sum = 0;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t end = std::min(first + kBlock, count);
    float block = 0;
#pragma omp simd reduction(+ : block)
    for (int64_t i = first; i < end; ++i) block += load(from[i]);
    sum += static_cast<double>(block);
  }
  return sum;
}

// The terms of a row's loss besides its log-sum-exp.
struct Terms {
  float smoothing;      // weight of the mean logit; the target's logit has 1 - smoothing (torch's label_smoothing)
  double scale;         // factor of every row
  const float* shares;  // factors of the rows; null = 1

  PRUN_INLINE float factor(int64_t row, int32_t target) const {
    if (target == kIgnoredTarget) return 0;
    return static_cast<float>(scale) * (shares == nullptr ? 1.0f : shares[row]);
  }
  PRUN_INLINE double share(int64_t row) const { return shares == nullptr ? 1 : static_cast<double>(shares[row]); }

  // Returns this rank's part of the smoothed logit of a row's target; `at`: its column, or -1.
  template <class T>
  PRUN_INLINE float logit(const T* from, int64_t at, const Columns& columns) const {
    const float hit = at < 0 ? 0 : load(from[at]);
    if (smoothing == 0) return hit;
    const double mean = sum_of(from, columns.valid) / static_cast<double>(columns.vocab),
                 own = static_cast<double>(hit);
    return static_cast<float>(own + static_cast<double>(smoothing) * (mean - own));
  }
  // Returns the part of the one-hot that each column has.
  PRUN_INLINE float others(const Columns& columns) const { return smoothing / static_cast<float>(columns.vocab); }
};

// `shares`: index of the optional input.
Terms terms_of(const OpView& view, size_t shares, int64_t rows) {
  Terms terms = {static_cast<float>(view.attrs().number("label_smoothing", 0)), view.attrs().number("scale", 1),
                 nullptr};
  if (view.reads() > shares) {
    view.expect_count(view.read(shares), rows);
    terms.shares = view.in<float>(shares);
  }
  return terms;
}

constexpr float kLog2E = 1.44269504f;
constexpr double kLn2 = 0.69314718055994531;

// Limit of a sum of powers in which the terms near 1 are still exact.
constexpr float kLimit = 0x1p32f;

// Returns 2^t for t < 127; for a larger t, a smaller power that is at least kLimit.
template <class V>
PRUN_INLINE V power_of(const V& t) {
  if constexpr (kScales<V>)
    return scaled_exp2_f32(t);
  else
    return power_of_two(at_most(t, 126.0f));
}

// Elements of the prefetch distance, and of a row's first piece, whose maximum is computed first.
template <class T>
constexpr int64_t kPiece = 4096 / sizeof(T);

// Computes Σ 2^(x·log2 e - max), and calls f(at) in the same loop. Prefetches the next piece.
template <int lanes, class T, class F>
PRUN_INLINE float sum_of_powers(const T* x, int64_t width, float max, const F& f) {
  Two<lanes> sums = {};
  for_two_lanes<lanes, T>(width, [&](auto at) PRUN_INLINED {
    prefetch_lines<2 * lanes>(x + kPiece<T> + at.i);
    sums += at.only(each(at.load(x) * kLog2E - max, [](const auto& t) PRUN_INLINED { return power_of(t); }));
    f(at);
  });
  return fold<lanes>(sums.v[0] + sums.v[1], kAdd);
}

// Returns a row's log-sum-exp in one pass, with powers relative to the maximum of its first piece. If the sum exceeds
// kLimit, which is rare, it is recomputed relative to the maximum of the row. `overlap` is called with each vector of
// the first pass.
template <int lanes, class T, class F>
PRUN_INLINE float log_sum_exp(const T* x, int64_t width, const F& overlap) {
  const auto maximum = [x](int64_t count) PRUN_INLINED {
    return std::max(largest_lanes<lanes>(x, count) * kLog2E, std::numeric_limits<float>::lowest());
  };
  float max = maximum(std::min(kPiece<T>, width)), sum = sum_of_powers<lanes>(x, width, max, overlap);
  if (!(sum < kLimit)) {
    max = maximum(width);
    sum = sum_of_powers<lanes>(x, width, max, [](const auto&) PRUN_INLINED {});
  }
  return static_cast<float>((static_cast<double>(max) + std::log2(static_cast<double>(sum))) * kLn2);
}

// Returns 2^t with the precision of T; 0 if it is subnormal.
template <class T, class V>
PRUN_INLINE V probability(const V& t) {
  if constexpr (kScales<V>) {
    if constexpr (std::is_same_v<T, bf16>)
      return rough_exp2_f32(t);
    else
      return scaled_exp2_f32(t);
  } else {
    const auto or_zero = []<class One>(const One& x, const One& power)
                             PRUN_INLINED -> One { return x < -100.0f ? 0.0f : power; };
    return each_of(or_zero, t, power_of_two(t));
  }
}
template <class T>
struct ScaledProbability {
  static constexpr bool kOfGroups = true;
  float shift, factor, less;  // less: subtracted from each probability, times the factor
  template <class V>
  PRUN_INLINE V operator()(const V& x) const {
    return factor * probability<T>(V((x - shift) * kLog2E)) - less;
  }
};

// The gradient of one row, which may overwrite the logits.
template <class T>
struct RowGradient {
  const T* from;
  T* to;
  ScaledProbability<T> of;
  int64_t target;   // its column, or -1
  float hit, less;  // the logit there; the number subtracted from its probability

  PRUN_INLINE RowGradient(const T* logits, T* dlogits, const Columns& columns, int32_t id, float lse, float factor,
                          const Terms& terms)
      : from(logits),
        to(dlogits),
        of{lse, factor, factor * terms.others(columns)},
        target(columns.find(id)),
        less(1.0f - terms.smoothing + terms.others(columns)) {
    hit = target < 0 ? 0 : load(from[target]);
  }
  template <class At>
  PRUN_INLINE void operator()(const At& at) const {
    at.store(to, each(at.load(from), of));
  }
  PRUN_INLINE void finish(const Columns& columns) const {
    for (int64_t i = columns.valid; i < columns.count; ++i) store(to[i], 0);
    if (target >= 0) store(to[target], of.factor * (exp_f32(hit - of.shift) - less));
  }
};

template <class T>
void gradient(const T* logits, const int32_t* targets, const float* lse, T* dlogits, int64_t first, int64_t last,
              Columns columns, Terms terms) {
  const FlushSubnormals flush;
  with_lanes([=]<int lanes>() PRUN_INLINED {
    for (int64_t row = first; row < last; ++row) {
      const int64_t at = row * columns.count;
      const RowGradient<T> one(logits + at, dlogits + at, columns, targets[row], lse[row],
                               terms.factor(row, targets[row]), terms);
      map_lanes<lanes>(one.of, columns.valid, one.to, one.from);
      one.finish(columns);
    }
  });
}

Columns whole_columns(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  PRUN_CHECK(columns.valid == columns.vocab, "a split vocabulary takes cross_entropy_max, _sums and _finish");
  return columns;
}

int64_t workspace(const OpView& view) { return row_count(view.read(0).shape) * static_cast<int64_t>(sizeof(float)); }

template <class T>
std::unique_ptr<Kernel> forward(const OpView& view) {
  const Columns columns = whole_columns(view);
  const int64_t width = columns.count, rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), rows);
  view.expect_count(view.write(0), 1);
  view.expect_count(view.write(1), rows);
  return kernel_of([logits = view.in<T>(0), targets = view.in<int32_t>(1), loss = view.out<float>(0),
                    lse = view.out<float>(1), rows, width, columns, threads = view.threads(),
                    terms = terms_of(view, 2, rows)] {
    columns.require(targets, rows);
    parallel_rows(threads, rows, [&](int64_t begin, int64_t end) {
      const FlushSubnormals flush;
      with_lanes([&]<int lanes>() PRUN_INLINED {
        for (int64_t row = begin; row < end; ++row)
          lse[row] = log_sum_exp<lanes>(logits + row * width, columns.valid, [](const auto&) PRUN_INLINED {});
      });
    });
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      if (terms.factor(row, targets[row]) == 0) continue;
      const float logit = terms.logit(logits + row * width, columns.find(targets[row]), columns);
      sum += terms.share(row) * (static_cast<double>(lse[row]) - static_cast<double>(logit));
    }
    *loss = static_cast<float>(terms.scale * sum);
  });
}

template <class T>
std::unique_ptr<Kernel> backward(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  const int64_t rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), rows);
  view.expect_count(view.read(2), rows);
  view.expect_count(view.write(0), rows * columns.count);
  return kernel_of([logits = view.in<T>(0), targets = view.in<int32_t>(1), lse = view.in<float>(2),
                    dlogits = view.out<T>(0), rows, columns, threads = view.threads(),
                    terms = terms_of(view, 3, rows)] {
    parallel_rows(threads, rows, [&](int64_t begin, int64_t end) {
      gradient(logits, targets, lse, dlogits, begin, end, columns, terms);
    });
  });
}

// Computes lse and gradients of rows [first, last), and saves the (smoothed) logits of their targets, which gradients
// may overwrite.
//
//      row r       | log-sum-exp |  gradient   |
//      row r+1                   | log-sum-exp |  gradient   |
//
// The gradient of a row runs in the loop of the next row's log-sum-exp, so that memory is read and written
// concurrently. If the second-level cache does not hold both rows, the gradient runs at once, while the row is cached.
template <class T>
void loss_and_gradient(const T* logits, const int32_t* targets, float* lse, float* hits, T* dlogits, int64_t first,
                       int64_t last, Columns columns, Terms terms) {
  const FlushSubnormals flush;
  const bool pipelined = 4 * columns.count * static_cast<int64_t>(sizeof(T)) <= second_level_cache();
  with_lanes([=]<int lanes>() PRUN_INLINED {
    const int64_t width = columns.count, valid = columns.valid;
    const auto alone = [](const auto&) PRUN_INLINED {};
    for (int64_t row = first; row < last; ++row) {
      if (row == first || !pipelined) lse[row] = log_sum_exp<lanes>(logits + row * width, valid, alone);
      const float factor = terms.factor(row, targets[row]);
      const RowGradient<T> one(logits + row * width, dlogits + row * width, columns, targets[row], lse[row], factor,
                               terms);
      hits[row] = factor == 0 ? lse[row] : terms.logit(one.from, one.target, columns);
      if (pipelined && row + 1 < last)
        lse[row + 1] = log_sum_exp<lanes>(logits + (row + 1) * width, valid, one);
      else
        map_lanes<lanes>(one.of, valid, one.to, one.from);
      one.finish(columns);
    }
  });
}

template <class T>
std::unique_ptr<Kernel> both(const OpView& view) {
  const Columns columns = whole_columns(view);
  const int64_t rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), rows);
  view.expect_count(view.write(0), 1);
  view.expect_count(view.write(1), rows);
  view.expect_count(view.write(2), rows * columns.count);
  return kernel_of([logits = view.in<T>(0), targets = view.in<int32_t>(1), loss = view.out<float>(0),
                    lse = view.out<float>(1), dlogits = view.out<T>(2), hits = view.scratch(workspace(view)), rows,
                    columns, threads = view.threads(), terms = terms_of(view, 2, rows)] {
    columns.require(targets, rows);
    float* hit = reinterpret_cast<float*>(hits.data);
    parallel_rows(threads, rows, [&](int64_t begin, int64_t end) {
      loss_and_gradient(logits, targets, lse, hit, dlogits, begin, end, columns, terms);
    });
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row)
      sum += terms.share(row) * (static_cast<double>(lse[row]) - static_cast<double>(hit[row]));
    *loss = static_cast<float>(terms.scale * sum);
  });
}

// The three ops of a split vocabulary. The maximum of a rank whose columns are all padding is -inf.
template <class T>
PRUN_CLONES void row_maxima(const T* logits, float* maxima, int64_t first, int64_t last, Columns columns) {
  for (int64_t row = first; row < last; ++row) {
    const T* from = logits + row * columns.count;
    float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < columns.valid; ++i) largest = load(from[i]) > largest ? load(from[i]) : largest;
    maxima[row] = largest;
  }
}

template <class T>
PRUN_INLINE void row_sums(const T* logits, const int32_t* targets, const float* maxima, float* sums, float* hits,
                          int64_t first, int64_t last, Columns columns, Terms terms) {
  for (int64_t row = first; row < last; ++row) {
    const T* from = logits + row * columns.count;
    const float max = maxima[row];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < columns.valid; ++i) sum += exp_f32(load(from[i]) - max);
    sums[row] = sum;
    hits[row] = terms.logit(from, columns.find(targets[row]), columns);
  }
}

template <class T>
std::unique_ptr<Kernel> max_kernel(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  const int64_t rows = row_count(view.read(0).shape);
  view.expect_count(view.write(0), rows);
  return kernel_of([logits = view.in<T>(0), maxima = view.out<float>(0), rows, columns, threads = view.threads()] {
    parallel_rows(threads, rows, [&](int64_t begin, int64_t end) { row_maxima(logits, maxima, begin, end, columns); });
  });
}

template <class T>
std::unique_ptr<Kernel> sums_kernel(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  const int64_t rows = row_count(view.read(0).shape);
  view.expect_count(view.read(1), rows);
  view.expect_count(view.read(2), rows);
  view.expect_count(view.write(0), 2 * rows);
  return kernel_of([logits = view.in<T>(0), targets = view.in<int32_t>(1), maxima = view.in<float>(2),
                    sums = view.out<float>(0), rows, columns, threads = view.threads(),
                    terms = terms_of(view, 3, rows)] {
    columns.require(targets, rows);
    parallel_rows(threads, rows, [&](int64_t begin, int64_t end) {
      with_lanes([&]<int>() PRUN_INLINED {
        row_sums(logits, targets, maxima, sums, sums + rows, begin, end, columns, terms);
      });
    });
  });
}

std::unique_ptr<Kernel> make_finish(const OpView& view) {
  const int64_t rows = view.write(1).count();
  view.expect_count(view.read(0), 2 * rows);
  view.expect_count(view.read(1), rows);
  view.expect_count(view.read(3), rows);
  view.expect_count(view.write(0), 1);
  return kernel_of([sums = view.in<float>(0), maxima = view.in<float>(1), targets = view.in<int32_t>(3),
                    loss = view.out<float>(0), lse = view.out<float>(1), rows, terms = terms_of(view, 4, rows)] {
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      lse[row] = maxima[row] + std::log(sums[row]);
      if (terms.factor(row, targets[row]) == 0) continue;
      sum += terms.share(row) * (static_cast<double>(lse[row]) - static_cast<double>(sums[rows + row]));
    }
    *loss = static_cast<float>(terms.scale * sum);
  });
}

}  // namespace

const Family cross_entropy_kernels = {
    {"cross_entropy", PRUN_FLOAT_MAKER(read(0), forward<T>(view))},
    {"cross_entropy_grad", PRUN_FLOAT_MAKER(read(0), backward<T>(view))},
    {"cross_entropy_and_grad", PRUN_FLOAT_MAKER(read(0), both<T>(view)), Accepts::floats, workspace}};

const Family split_cross_entropy_kernels = {{"cross_entropy_max", PRUN_FLOAT_MAKER(read(0), max_kernel<T>(view))},
                                            {"cross_entropy_sums", PRUN_FLOAT_MAKER(read(0), sums_kernel<T>(view))},
                                            {"cross_entropy_finish", make_finish}};

}  // namespace prun::cpu
