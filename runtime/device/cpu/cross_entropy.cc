// cross_entropy with its softmax fused: rows are read once and no probabilities are stored, only the log-sum-exp.
// cross_entropy_and_grad reads rows from memory once, too: it makes a row's gradient while the cache holds the row. The
// gradient also serves vocabularies that are split over ranks; their loss is in split_cross_entropy.cc.
#include <cmath>
#include <limits>

#include "device/cpu/columns.h"
#include "device/cpu/elementwise.h"
#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/simd.h"
#include "device/cpu/vector_math.h"
#include "device/cpu/vectors.h"

namespace prun::cpu {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr double kLn2 = 0.69314718055994531;

// Rows come from memory once: a piece at a time, which stays in the fastest cache, is looked through for its largest
// element and then added up in powers of two, relative to what was the largest at some piece before. Only what exceeds
// that by more than a sum has room for becomes the new measure, and the sum so far is made smaller.
template <class T>
void log_sum_exp(const T* logits, float* lse, int64_t first, int64_t last, int64_t width) {
  constexpr int64_t kPiece = 4096 / sizeof(T), kLine = 64 / sizeof(T);
  constexpr float kRoom = 32;
  with_lanes([=]<int lanes>() PRUN_INLINED {
    for (int64_t row = first; row < last; ++row) {
      const T* from = logits + row * width;
      float top = std::numeric_limits<float>::lowest();
      Two<lanes> sums = {};
      for (int64_t i = 0; i < width; i += kPiece) {
        const int64_t count = std::min(kPiece, width - i);
        const T* piece = from + i;
        const float largest = largest_lanes<lanes>(piece, count) * kLog2E;
        if (largest > top + kRoom) {
          sums = sums * power_of_two(top - largest);
          top = largest;
        }
        for_two_lanes<lanes, T>(count, [&](auto at) PRUN_INLINED {
          for (int64_t line = 0; line < 2 * lanes; line += kLine) __builtin_prefetch(piece + kPiece + at.i + line);
          sums += at.only(each(at.load(piece) * kLog2E - top, [](auto t) PRUN_INLINED { return power_of_two(t); }));
        });
      }
      const float sum = fold<lanes>(sums.v[0] + sums.v[1], kAdd);
      lse[row] = static_cast<float>((static_cast<double>(top) + std::log2(static_cast<double>(sum))) * kLn2);
    }
  });
}

// 2^t as exact as results of type T; 0 where it is none of the normal numbers.
template <class T, class V>
PRUN_INLINE V probability(const V& t) {
  if constexpr (std::is_same_v<T, bf16> && kVectorAsm && kVectorBytes<V> == 64) {
    return rough_exp2_f32(t);
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

template <class T>
void gradient(const T* logits, const int32_t* targets, const float* lse, T* dlogits, int64_t first, int64_t last,
              Columns columns, float scale) {
  with_lanes([=]<int lanes>() PRUN_INLINED {
    for (int64_t row = first; row < last; ++row) {
      const T* from = logits + row * columns.count;
      T* to = dlogits + row * columns.count;
      const float shift = lse[row];
      const int64_t target = columns.find(targets[row]);
      const float hit = target < 0 ? 0 : load(from[target]);  // read first: dlogits may be the same memory
      const float factor = targets[row] == kIgnoredTarget ? 0 : scale;
      map_lanes<lanes>(ScaledProbability<T>{shift, factor}, columns.valid, to, from);
      for (int64_t i = columns.valid; i < columns.count; ++i) store(to[i], 0);
      if (target >= 0) store(to[target], factor * (exp_f32(hit - shift) - 1.0f));
    }
  });
}

Columns whole_columns(const OpView& view) {
  const Columns columns = columns_of(view, view.read(0));
  PRUN_CHECK(columns.valid == columns.count && columns.vocab == columns.count,
             "a split vocabulary has a loss of its own");
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
    parallel_rows(threads, rows, [&](int64_t begin, int64_t end) { log_sum_exp(logits, lse, begin, end, width); });
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

// Keeps each row's target logit, for the sum over rows in their order, before the gradient overwrites it.
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
      for (int64_t row = begin; row < end; ++row) {
        log_sum_exp(logits, lse, row, row + 1, columns.count);
        const bool ignored = targets[row] == kIgnoredTarget;
        hit[row] = ignored ? lse[row] : load(logits[row * columns.count + columns.find(targets[row])]);
        gradient(logits, targets, lse, dlogits, row, row + 1, columns, static_cast<float>(scale));
      }
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
