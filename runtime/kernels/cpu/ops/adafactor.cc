// factor_means, factor_norms and adafactor: the formulas of torch.optim.Adafactor (Shazeer and Stern, Adafactor, 2018).
// A rank's part of a parameter may begin and end within a row.
//
// Surprising fact: gradients are read twice for their means, once by rows and once by columns, so that threads share no
// sums and results do not depend on the number of threads.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/ops/update_operands.h"
#include "prun/sdk/factored_updates.h"

namespace prun::cpu {
namespace {

using sdk::FactoredParameter;
using sdk::FactoredRange;

PRUN_CLONES float squares(const float* x, int64_t n, Clip clip) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const float g = clip.of(x[i]);
    sum += g * g;
  }
  return sum;
}

PRUN_CLONES void add_squares(const float* x, double* sums, int64_t n, Clip clip) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = clip.of(x[i]);
    sums[i] += g * g;
  }
}

PRUN_CLONES void follow(float* average, const float* mean, int64_t n, float share) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) average[i] += share * (mean[i] - average[i]);
}

// Estimates of the squares of a row's elements: `of_row` times the columns' averages.
struct RowEstimate {
  const float* columns;
  float of_row, least;
  PRUN_INLINE float update(float g, int64_t i) const { return g / std::sqrt(std::max(of_row * columns[i], least)); }
};

PRUN_CLONES float update_squares(const float* grad, int64_t n, RowEstimate row, Clip clip) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const float u = row.update(clip.of(grad[i]), i);
    sum += u * u;
  }
  return sum;
}

template <class T>
PRUN_CLONES void apply(const float* grad, T* param, int64_t n, RowEstimate row, Clip clip, float rate, float kept) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = load(param[i]);
    store(param[i], p - (kept * p + rate * row.update(clip.of(grad[i]), i)));
  }
}

// Operands of the three ops. The rank's part of the vector of parameters begins at its element `offset`.
struct Operands {
  std::vector<FactoredParameter> parameters;
  sdk::FactoredOperands vectors;
  const float* grad;
  const float* clip = nullptr;
  int64_t offset, n;
  int threads;
  double eps1, beta2_decay;
  const StepTable* table;

  explicit Operands(const OpView& view)
      : parameters(sdk::factored_parameters(view.attrs())),
        vectors(sdk::factored_operands(parameters)),
        grad(view.in<float>(0)),
        offset(view.share("axis").index * view.attrs().integer("shard")),
        n(view.read(0).count()),
        threads(view.threads()),
        eps1(view.attrs().number("eps1")),
        beta2_decay(view.attrs().number("beta2_decay")),
        table(view.table()) {
    view.expect_count(view.read(1), n);
    if (view.attrs().integer("clipped") != 0) clip = view.in<float>(view.reads() - 1);
  }
  bool skips() const { return clip != nullptr && *clip < 0; }
  FactoredRange range_of(const FactoredParameter& one) const { return sdk::range_in_shard(one, offset, n); }
  sdk::FactoredStep step(double rate) const {
    return sdk::factored_step(static_cast<double>(table->update + 1), rate, beta2_decay);
  }
};

// Calls f(row, first column, place in the shard, count) for the runs of rows in elements [begin, end) of a range; rows
// of all matrices are numbered in sequence.
template <class F>
void each_run(const FactoredParameter& one, const FactoredRange& range, int64_t begin, int64_t end, const F& f) {
  for (int64_t e = range.begin + begin; e < range.begin + end;) {
    const int64_t column = e % one.columns, count = std::min(one.columns - column, range.begin + end - e);
    f(e / one.columns, column, range.at + e - range.begin, count);
    e += count;
  }
}

void means_of_rows(const Operands& o, const FactoredParameter& one, const FactoredRange& range, float* rows) {
  const int64_t first = range.begin / one.columns, count = (range.end - 1) / one.columns + 1 - first;
  const auto share = 1 / static_cast<double>(one.whole_columns);
  const Clip clip(o.clip);
  parallel_for(range.end - range.begin < 16384 ? 1 : o.threads, count, [&](int64_t i, int) {
    const int64_t row = first + i, begin = std::max(row * one.columns, range.begin) - range.begin,
                  end = std::min((row + 1) * one.columns, range.end) - range.begin;
    const FlushSubnormals flush;
    rows[row] = static_cast<float>(squares(o.grad + range.at + begin, end - begin, clip) * share);
  });
}

void means_of_columns(const Operands& o, const FactoredParameter& one, const FactoredRange& range, float* columns) {
  constexpr int64_t kChunk = 256;
  const auto share = one.is_matrix() ? 1 / static_cast<double>(one.whole_rows) : 1;
  const int64_t chunks = (one.columns + kChunk - 1) / kChunk, matrix = one.rows * one.columns;
  const Clip clip(o.clip);
  parallel_for(range.end - range.begin < 16384 ? 1 : o.threads, one.leads * chunks, [&](int64_t i, int) {
    const int64_t lead = i / chunks, first = i % chunks * kChunk, last = std::min(first + kChunk, one.columns);
    const int64_t begin = std::max(lead * matrix, range.begin), end = std::min((lead + 1) * matrix, range.end);
    if (begin >= end) return;
    const FlushSubnormals flush;
    double sums[kChunk] = {};
    for (int64_t row = begin / one.columns; row * one.columns < end; ++row) {
      const int64_t from = std::max(row * one.columns + first, begin), to = std::min(row * one.columns + last, end);
      if (from < to)
        add_squares(o.grad + range.at + from - range.begin, sums + from - row * one.columns - first, to - from, clip);
    }
    for (int64_t c = first; c < last; ++c)
      columns[lead * one.columns + c] = static_cast<float>(sums[c - first] * share);
  });
}

std::unique_ptr<Kernel> make_means(const OpView& view) {
  std::vector<float*> means;
  std::vector<int64_t> counts;
  for (size_t w = 0; w < view.writes(); ++w)
    means.push_back(view.out<float>(w)), counts.push_back(view.write(w).count());
  return kernel_of([o = Operands(view), means = std::move(means), counts = std::move(counts)] {
    for (size_t w = 0; w < means.size(); ++w) std::fill_n(means[w], counts[w], 0.0f);
    for (const FactoredParameter& one : o.parameters) {
      const FactoredRange range = o.range_of(one);
      if (range.begin == range.end) continue;
      if (one.is_matrix()) means_of_rows(o, one, range, means[one.row_in] + one.row_at);
      means_of_columns(o, one, range, means[one.column_in] + one.column_at);
    }
  });
}

// The averages of one parameter's means.
class Averages {
 public:
  Averages(const Operands& o, const FactoredParameter& one, const auto& vectors)
      : one_(one),
        rows_(one.is_matrix() ? vectors[one.row_in] + one.row_at : nullptr),
        columns_(vectors[one.column_in] + one.column_at),
        least_(std::max(FLT_MIN, static_cast<float>(o.eps1 * o.eps1))) {
    if (!one.is_matrix()) return;
    const bool by_rows = one.has_all_rows();
    const int64_t count = by_rows ? one.rows : one.columns;
    for (int64_t lead = 0; lead < one.leads; ++lead) {
      const float* of = (by_rows ? rows_ : columns_) + lead * count;
      double sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += of[i];
      const double mean = sum / static_cast<double>(by_rows ? one.whole_rows : one.whole_columns);
      factors_.push_back(1 / std::max(mean, o.eps1));
    }
  }
  // `row`: its number among the rows of all matrices.
  RowEstimate estimate(int64_t row, int64_t column) const {
    const int64_t lead = row / one_.rows;
    const auto of_row = rows_ != nullptr ? static_cast<float>(rows_[row] * factors_[lead]) : 1.0f;
    return {columns_ + lead * one_.columns + column, of_row, least_};
  }

 private:
  const FactoredParameter& one_;
  const float *rows_, *columns_;
  float least_;
  std::vector<double> factors_;  // of each matrix
};

std::unique_ptr<Kernel> make_norms_of(const OpView& view) {
  const Operands o(view);
  std::vector<const float*> means;
  std::vector<float*> averages, norms;
  std::vector<int64_t> counts;
  for (int64_t v = 0; v < o.vectors.means; ++v) {
    means.push_back(view.in<float>(2 + v));
    averages.push_back(view.out<float>(v));
    PRUN_CHECK(view.in<float>(2 + o.vectors.means + v) == averages.back(), "factor_norms updates in place");
  }
  for (size_t w = 0; w < view.writes(); ++w) counts.push_back(view.write(w).count());
  for (size_t w = o.vectors.means; w < view.writes(); ++w) norms.push_back(view.out<float>(w));
  return with_float(view.read(1).dtype, [&]<class T>() {
    return kernel_of([=, param = view.in<T>(1)] {
      for (size_t w = 0; w < norms.size(); ++w) std::fill_n(norms[w], counts[means.size() + w], 0.0f);
      if (o.skips()) return;
      const auto share = static_cast<float>(o.step(0).share);
      for (size_t v = 0; v < means.size(); ++v)
        parallel_ranges(o.threads, counts[v], [&](int64_t begin, int64_t end) {
          const FlushSubnormals flush;
          follow(averages[v] + begin, means[v] + begin, end - begin, share);
        });
      const Clip clip(o.clip);
      for (const FactoredParameter& one : o.parameters) {
        const FactoredRange range = o.range_of(one);
        const Averages of(o, one, averages);
        float* norm = norms[one.norm_in] + one.norm_at;
        norm[0] = static_cast<float>(parallel_sum(o.threads, range.end - range.begin, [&](int64_t begin, int64_t end) {
          const FlushSubnormals flush;
          double sum = 0;
          each_run(one, range, begin, end, [&](int64_t row, int64_t column, int64_t at, int64_t count) {
            sum += update_squares(o.grad + at, count, of.estimate(row, column), clip);
          });
          return sum;
        }));
        norm[1] = static_cast<float>(parallel_sum(o.threads, range.end - range.begin, [&](int64_t begin, int64_t end) {
          return sum_range([](const auto& x) PRUN_INLINED { return x * x; }, end - begin, param + range.at + begin);
        }));
      }
    });
  });
}

template <class T>
std::unique_ptr<Kernel> make_adafactor_of(const OpView& view) {
  const Operands o(view);
  T* param = view.out<T>(0);
  PRUN_CHECK(view.in<T>(1) == param, "adafactor updates in place");
  std::vector<const float*> averages, norms;
  for (int64_t v = 0; v < o.vectors.means; ++v) averages.push_back(view.in<float>(2 + v));
  for (int64_t v = 0; v < o.vectors.norms; ++v) norms.push_back(view.in<float>(2 + o.vectors.means + v));
  return kernel_of(
      [=, ranges = update_ranges_of(view, o.n, 0), eps2 = view.attrs().number("eps2"), d = view.attrs().number("d")] {
        if (o.skips()) return;
        const Clip clip(o.clip);
        for (const FactoredParameter& one : o.parameters) {
          const FactoredRange range = o.range_of(one);
          if (range.begin == range.end) continue;
          const auto settings = std::ranges::find_if(ranges, [&](const auto& r) { return range.at < r.end; });
          const double lr = o.table->learning_rate * settings->lr_factor;
          const float* norm = norms[one.norm_in] + one.norm_at;
          const auto rate = static_cast<float>(sdk::factored_rate(o.step(lr), norm[0], norm[1],
                                                                  static_cast<double>(one.whole_count), eps2, d)),
                     kept = static_cast<float>(lr * settings->weight_decay);
          const Averages of(o, one, averages);
          parallel_ranges(o.threads, range.end - range.begin, [&](int64_t begin, int64_t end) {
            const FlushSubnormals flush;
            each_run(one, range, begin, end, [&](int64_t row, int64_t column, int64_t at, int64_t count) {
              apply(o.grad + at, param + at, count, of.estimate(row, column), clip, rate, kept);
            });
          });
        }
      });
}

}  // namespace

const Family adafactor_kernels = {{"factor_means", make_means},
                                  {"factor_norms", make_norms_of},
                                  {"adafactor", PRUN_FLOAT_MAKER(read(1), make_adafactor_of<T>(view))}};

}  // namespace prun::cpu
