// cross_entropy with its softmax fused: rows are read once and no probabilities are stored, only the log-sum-exp.
// cross_entropy_and_grad reads rows from memory once, too: it makes a row's gradient while the cache holds the row. The
// gradient also serves vocabularies that are split over ranks; their loss is in split_cross_entropy.cc.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/ops/columns.h"
#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/ops/flush_subnormals.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr double kLn2 = 0.69314718055994531;

// Less than what a sum of powers has room for beside exact terms.
constexpr float kRoom = 0x1p32f;

// 2^t of t < 127; of more it may be less than that, but not less than kRoom.
template <class V>
PRUN_INLINE V power_of(const V& t) {
  if constexpr (kScales<V>)
    return scaled_exp2_f32(t);
  else
    return power_of_two(at_most(t, 126.0f));
}

// Elements that are asked for ahead, and of which the largest is looked for first.
template <class T>
constexpr int64_t kPiece = 4096 / sizeof(T);

// Σ 2^(x·log2 e - top), and f(at) beside it.
template <int lanes, class T, class F>
PRUN_INLINE float sum_of_powers(const T* x, int64_t width, float top, const F& f) {
  Two<lanes> sums = {};
  for_two_lanes<lanes, T>(width, [&](auto at) PRUN_INLINED {
    ask_for<2 * lanes>(x + kPiece<T> + at.i);
    sums += at.only(each(at.load(x) * kLog2E - top, [](const auto& t) PRUN_INLINED { return power_of(t); }));
    f(at);
  });
  return fold<lanes>(sums.v[0] + sums.v[1], kAdd);
}

// Rows come from memory once, in one pass: powers are relative to the largest of a row's first piece. If another
// exceeds that by more than a sum has room for, which is rare, the row is added up again, relative to its largest.
template <int lanes, class T, class F>
PRUN_INLINE float log_sum_exp(const T* x, int64_t width, const F& beside) {
  const auto largest = [x](int64_t count) PRUN_INLINED {
    return std::max(largest_lanes<lanes>(x, count) * kLog2E, std::numeric_limits<float>::lowest());
  };
  float top = largest(std::min(kPiece<T>, width)), sum = sum_of_powers<lanes>(x, width, top, beside);
  if (!(sum < kRoom)) {
    top = largest(width);
    sum = sum_of_powers<lanes>(x, width, top, [](const auto&) PRUN_INLINED {});
  }
  return static_cast<float>((static_cast<double>(top) + std::log2(static_cast<double>(sum))) * kLn2);
}

// 2^t as exact as results of type T; 0 where it is none of the normal numbers.
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
  float shift, factor;
  template <class V>
  PRUN_INLINE V operator()(const V& x) const {
    return factor * probability<T>(V((x - shift) * kLog2E));
  }
};

// One row's, which may lie where the logits are.
template <class T>
struct RowGradient {
  const T* from;
  T* to;
  ScaledProbability<T> of;
  int64_t target;  // its column, or -1
  float hit;       // the logit there

  PRUN_INLINE RowGradient(const T* logits, T* dlogits, const Columns& columns, int32_t id, float lse, float scale)
      : from(logits), to(dlogits), of{lse, id == kIgnoredTarget ? 0 : scale}, target(columns.find(id)) {
    hit = target < 0 ? 0 : load(from[target]);
  }
  template <class At>
  PRUN_INLINE void operator()(const At& at) const {
    at.store(to, each(at.load(from), of));
  }
  PRUN_INLINE void finish(const Columns& columns) const {
    for (int64_t i = columns.valid; i < columns.count; ++i) store(to[i], 0);
    if (target >= 0) store(to[target], of.factor * (exp_f32(hit - of.shift) - 1.0f));
  }
};

template <class T>
void gradient(const T* logits, const int32_t* targets, const float* lse, T* dlogits, int64_t first, int64_t last,
              Columns columns, float scale) {
  const FlushSubnormals flush;
  with_lanes([=]<int lanes>() PRUN_INLINED {
    for (int64_t row = first; row < last; ++row) {
      const int64_t at = row * columns.count;
      const RowGradient<T> one(logits + at, dlogits + at, columns, targets[row], lse[row], scale);
      map_lanes<lanes>(one.of, columns.valid, one.to, one.from);
      one.finish(columns);
    }
  });
}

// The last columns may be padding.
Columns whole_columns(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  PRUN_CHECK(columns.valid == columns.vocab, "a split vocabulary has a loss of its own");
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
                    scale = view.attrs().number("scale", 1)] {
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
      if (targets[row] == kIgnoredTarget) continue;
      sum +=
          static_cast<double>(lse[row]) - static_cast<double>(load(logits[row * width + columns.find(targets[row])]));
    }
    *loss = static_cast<float>(scale * sum);
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
                    scale = static_cast<float>(view.attrs().number("scale", 1))] {
    parallel_rows(threads, rows, [&](int64_t begin, int64_t end) {
      gradient(logits, targets, lse, dlogits, begin, end, columns, scale);
    });
  });
}

// Of rows [first, last), and each row's logit of its target, which the gradient overwrites. A row's gradient is made
// beside the next row's sum: so memory is read and written at the same time. Where no cache holds these two rows and
// what is written, it is made at once, while one holds the row.
template <class T>
void loss_and_gradient(const T* logits, const int32_t* targets, float* lse, float* hits, T* dlogits, int64_t first,
                       int64_t last, Columns columns, float scale) {
  const FlushSubnormals flush;
  const bool together = 4 * columns.count * static_cast<int64_t>(sizeof(T)) <= second_level_cache();
  with_lanes([=]<int lanes>() PRUN_INLINED {
    const int64_t width = columns.count, valid = columns.valid;
    const auto alone = [](const auto&) PRUN_INLINED {};
    for (int64_t row = first; row < last; ++row) {
      if (row == first || !together) lse[row] = log_sum_exp<lanes>(logits + row * width, valid, alone);
      const RowGradient<T> one(logits + row * width, dlogits + row * width, columns, targets[row], lse[row], scale);
      hits[row] = targets[row] == kIgnoredTarget ? lse[row] : one.hit;
      if (together && row + 1 < last)
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
                    columns, threads = view.threads(), scale = view.attrs().number("scale", 1)] {
    columns.require(targets, rows);
    float* hit = reinterpret_cast<float*>(hits.data);
    parallel_rows(threads, rows, [&](int64_t begin, int64_t end) {
      loss_and_gradient(logits, targets, lse, hit, dlogits, begin, end, columns, static_cast<float>(scale));
    });
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) sum += static_cast<double>(lse[row]) - static_cast<double>(hit[row]);
    *loss = static_cast<float>(scale * sum);
  });
}

}  // namespace

const Family cross_entropy_kernels = {
    {"cross_entropy", PRUN_FLOAT_MAKER(read(0), forward<T>(view))},
    {"cross_entropy_grad", PRUN_FLOAT_MAKER(read(0), backward<T>(view))},
    {"cross_entropy_and_grad", PRUN_FLOAT_MAKER(read(0), both<T>(view)), Accepts::floats, workspace}};

}  // namespace prun::cpu
