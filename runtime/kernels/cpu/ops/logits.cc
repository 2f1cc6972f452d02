// bce, squares and ops over rows of logits besides cross_entropy: kl, logsumexp, accuracy. They run once a step at
// most, or in evaluations, so plain loops suffice: the compiler vectorizes all but the exponentials.
#include <algorithm>
#include <cmath>
#include <limits>

#include "device/ids.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/parallel.h"
#include "prun/sdk/routing.h"

namespace prun::cpu {
namespace {

int64_t rows_of(const Tensor& x) { return x.count() / std::max<int64_t>(x.shape.back(), 1); }

template <class T>
double lse_of(const T* x, int64_t n, double temperature) {
  double most = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, static_cast<double>(widen(x[i])));
  for (int64_t i = 0; i < n; ++i) sum += std::exp((static_cast<double>(widen(x[i])) - most) / temperature);
  return most / temperature + std::log(sum);
}

// Makes a kernel whose write 0 is `scale` times the sum of f(row) over `rows` rows.
template <class F>
std::unique_ptr<Kernel> row_sum(const OpView& view, int64_t rows, double scale, F f) {
  view.expect_count(view.write(0), 1);
  return kernel_of([f, rows, scale, threads = view.threads(), sum = view.out<float>(0)] {
    const double all = parallel_sum(threads, rows, [&](int64_t begin, int64_t end) {
      double part = 0;
      for (int64_t r = begin; r < end; ++r) part += f(r);
      return part;
    });
    *sum = static_cast<float>(scale * all);
  });
}

template <class F>
std::unique_ptr<Kernel> each_row(const OpView& view, int64_t rows, F f) {
  return kernel_of([f, rows, threads = view.threads()] {
    parallel_ranges(threads, rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) f(r);
    });
  });
}

double scale_of(const OpView& view) { return view.attrs().number("scale", 1); }

template <class T>
std::unique_ptr<Kernel> bce(const OpView& view) {
  view.expect_count(view.read(1), view.read(0).count());
  return row_sum(view, view.read(0).count(), scale_of(view), [x = view.in<T>(0), target = view.in<T>(1)](int64_t i) {
    const double logit = widen(x[i]);
    return std::max(logit, 0.0) - logit * static_cast<double>(widen(target[i])) +
           std::log1p(std::exp(-std::abs(logit)));
  });
}
template <class T>
std::unique_ptr<Kernel> bce_grad(const OpView& view) {
  view.expect_count(view.read(1), view.read(0).count());
  view.expect_count(view.write(0), view.read(0).count());
  return each_row(view, view.read(0).count(),
                  [x = view.in<T>(0), target = view.in<T>(1), dx = view.out<T>(0), scale = scale_of(view)](int64_t i) {
                    const double of_one = 1 / (1 + std::exp(-static_cast<double>(widen(x[i]))));
                    narrow(dx[i], static_cast<float>(scale * (of_one - static_cast<double>(widen(target[i])))));
                  });
}

template <class T>
std::unique_ptr<Kernel> squares(const OpView& view) {
  return row_sum(view, view.read(0).count(), 1, [x = view.in<T>(0)](int64_t i) {
    const double one = widen(x[i]);
    return one * one;
  });
}
template <class T>
std::unique_ptr<Kernel> squares_grad(const OpView& view) {
  view.expect_count(view.read(1), 1);
  view.expect_count(view.write(0), view.read(0).count());
  return each_row(view, view.read(0).count(),
                  [x = view.in<T>(0), ds = view.in<float>(1), dx = view.out<float>(0),
                   factor = static_cast<float>(2 * view.attrs().number("factor", 1))](int64_t i) {
                    dx[i] = factor * *ds * widen(x[i]);
                  });
}

template <class T>
std::unique_ptr<Kernel> kl(const OpView& view) {
  view.expect_count(view.read(1), view.read(0).count());
  return row_sum(view, rows_of(view.read(0)), scale_of(view),
                 [x = view.in<T>(0), teacher = view.in<T>(1), n = view.read(0).shape.back(),
                  t = view.attrs().number("temperature", 1)](int64_t r) {
                   const double own = lse_of(x + r * n, n, t), its = lse_of(teacher + r * n, n, t);
                   double sum = 0;
                   for (int64_t e = r * n; e < (r + 1) * n; ++e) {
                     const double log_p = static_cast<double>(widen(teacher[e])) / t - its;
                     sum += std::exp(log_p) * (log_p - (static_cast<double>(widen(x[e])) / t - own));
                   }
                   return sum;
                 });
}
template <class T>
std::unique_ptr<Kernel> kl_grad(const OpView& view) {
  view.expect_count(view.read(1), view.read(0).count());
  view.expect_count(view.write(0), view.read(0).count());
  const double t = view.attrs().number("temperature", 1);
  return each_row(view, rows_of(view.read(0)),
                  [x = view.in<T>(0), teacher = view.in<T>(1), dx = view.out<T>(0), n = view.read(0).shape.back(), t,
                   factor = scale_of(view) / t](int64_t r) {
                    const double own = lse_of(x + r * n, n, t), its = lse_of(teacher + r * n, n, t);
                    for (int64_t e = r * n; e < (r + 1) * n; ++e)
                      narrow(dx[e],
                             static_cast<float>(factor * (std::exp(static_cast<double>(widen(x[e])) / t - own) -
                                                          std::exp(static_cast<double>(widen(teacher[e])) / t - its))));
                  });
}

template <class T>
std::unique_ptr<Kernel> logsumexp(const OpView& view) {
  view.expect_count(view.write(0), rows_of(view.read(0)));
  return each_row(view, rows_of(view.read(0)),
                  [x = view.in<T>(0), lse = view.out<float>(0), n = view.read(0).shape.back()](int64_t r) {
                    lse[r] = static_cast<float>(lse_of(x + r * n, n, 1));
                  });
}
template <class T>
std::unique_ptr<Kernel> logsumexp_grad(const OpView& view) {
  const int64_t rows = rows_of(view.read(0));
  view.expect_count(view.read(1), rows);
  view.expect_count(view.read(2), rows);
  view.expect_count(view.write(0), view.read(0).count());
  return each_row(view, rows,
                  [x = view.in<T>(0), lse = view.in<float>(1), dlse = view.in<float>(2), dx = view.out<T>(0),
                   n = view.read(0).shape.back()](int64_t r) {
                    for (int64_t e = r * n; e < (r + 1) * n; ++e)
                      narrow(dx[e], dlse[r] * std::exp(widen(x[e]) - lse[r]));
                  });
}

// Returns the runs of documents, by which some rows do not count, or null.
const int32_t* runs_of(const OpView& view, size_t read) {
  if (view.attrs().integer("runs") == 0) return nullptr;
  view.expect_count(view.read(read), 2 * rows_of(view.read(0)));
  return view.in<int32_t>(read);
}

// Adds the rows' probabilities in the order of rows, so that the sums do not depend on threads.
template <class T>
std::unique_ptr<Kernel> softmax_sums(const OpView& view) {
  const int64_t rows = rows_of(view.read(0)), n = view.read(0).shape.back();
  view.expect_count(view.write(0), n);
  return kernel_of([x = view.in<T>(0), runs = runs_of(view, 1), sums = view.out<float>(0), rows, n,
                    scratch = view.scratch(n * static_cast<int64_t>(sizeof(double)))] {
    double* all = reinterpret_cast<double*>(scratch.data);
    std::fill_n(all, n, 0.0);
    for (int64_t r = 0; r < rows; ++r) {
      if (runs != nullptr && !sdk::counts(runs + 2 * r)) continue;
      const double lse = lse_of(x + r * n, n, 1);
      for (int64_t i = 0; i < n; ++i) all[i] += std::exp(static_cast<double>(widen(x[r * n + i])) - lse);
    }
    for (int64_t i = 0; i < n; ++i) sums[i] = static_cast<float>(all[i]);
  });
}
template <class T>
std::unique_ptr<Kernel> softmax_sums_grad(const OpView& view) {
  const int64_t n = view.read(0).shape.back();
  view.expect_count(view.read(1), n);
  view.expect_count(view.write(0), view.read(0).count());
  return each_row(
      view, rows_of(view.read(0)),
      [x = view.in<T>(0), ds = view.in<float>(1), runs = runs_of(view, 2), dx = view.out<T>(0), n](int64_t r) {
        if (runs != nullptr && !sdk::counts(runs + 2 * r)) {
          for (int64_t i = 0; i < n; ++i) narrow(dx[r * n + i], 0.0f);
          return;
        }
        const double lse = lse_of(x + r * n, n, 1);
        const auto p = [&](int64_t i) { return std::exp(static_cast<double>(widen(x[r * n + i])) - lse); };
        double mean = 0;
        for (int64_t i = 0; i < n; ++i) mean += p(i) * static_cast<double>(ds[i]);
        for (int64_t i = 0; i < n; ++i)
          narrow(dx[r * n + i], static_cast<float>(p(i) * (static_cast<double>(ds[i]) - mean)));
      });
}
int64_t sums_bytes(const OpView& view) { return view.read(0).shape.back() * static_cast<int64_t>(sizeof(double)); }

// The first of equal logits counts as the largest.
template <class T>
std::unique_ptr<Kernel> accuracy(const OpView& view) {
  const int64_t rows = rows_of(view.read(0));
  view.expect_count(view.read(1), rows);
  view.expect_count(view.write(0), 1);
  view.expect_count(view.write(1), 1);
  return kernel_of([x = view.in<T>(0), targets = view.in<int32_t>(1), rows, n = view.read(0).shape.back(),
                    threads = view.threads(), scale = scale_of(view), right = view.out<float>(0),
                    counted = view.out<float>(1)] {
    const double hits = parallel_sum(threads, rows, [&](int64_t begin, int64_t end) {
      double sum = 0;
      for (int64_t r = begin; r < end; ++r) {
        int64_t best = 0;
        for (int64_t i = 1; i < n; ++i)
          if (widen(x[r * n + i]) > widen(x[r * n + best])) best = i;
        sum += best == targets[r] ? 1 : 0;
      }
      return sum;
    });
    int64_t some = 0;
    for (int64_t r = 0; r < rows; ++r) some += targets[r] == kIgnoredTarget ? 0 : 1;
    *right = static_cast<float>(scale * hits);
    *counted = static_cast<float>(scale * static_cast<double>(some));
  });
}

}  // namespace

const Family logits_kernels = {
    {"bce", PRUN_FLOAT_MAKER(read(0), bce<T>(view))},
    {"bce_grad", PRUN_FLOAT_MAKER(read(0), bce_grad<T>(view))},
    {"squares", PRUN_FLOAT_MAKER(read(0), squares<T>(view))},
    {"squares_grad", PRUN_FLOAT_MAKER(read(0), squares_grad<T>(view))},
    {"kl", PRUN_FLOAT_MAKER(read(0), kl<T>(view))},
    {"kl_grad", PRUN_FLOAT_MAKER(read(0), kl_grad<T>(view))},
    {"logsumexp", PRUN_FLOAT_MAKER(read(0), logsumexp<T>(view))},
    {"logsumexp_grad", PRUN_FLOAT_MAKER(read(0), logsumexp_grad<T>(view))},
    {"softmax_sums", PRUN_FLOAT_MAKER(read(0), softmax_sums<T>(view)), Accepts::floats, sums_bytes},
    {"softmax_sums_grad", PRUN_FLOAT_MAKER(read(0), softmax_sums_grad<T>(view))},
    {"accuracy", PRUN_FLOAT_MAKER(read(0), accuracy<T>(view))}};

}  // namespace prun::cpu
