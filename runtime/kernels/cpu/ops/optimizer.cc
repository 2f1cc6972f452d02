// sgd, adamw and lion, each in one pass over gradient, parameter and state, and the running average of parameters; the
// formulas are those of torch.optim.SGD, AdamW and, with l2, Adam, and of Chen et al., "Symbolic Discovery of
// Optimization Algorithms", 2023. adamw_cast and sgd_cast also write a bf16 copy of the parameters.
//
// A negative clip coefficient skips the update.
//
// Surprising fact: a parameter may be bf16 while its gradient and state are f32; the update runs in f32 and rounds
// once. Each factor of the step is computed in f64 and rounded once: 1 - beta of a rounded beta would be off by 19 % at
// beta = 0.9999999.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/ops/update_operands.h"
#include "prun/sdk/kernels.h"

namespace prun::cpu {
namespace {

using sdk::blend;
using sdk::Blend;
using sdk::UpdateRange;

Blend average(double beta) { return blend(beta, 1 - beta); }

struct AdamwStep {
  Clip clip;
  Blend mean, square;
  float decay, l2, step_size, root_correction, eps;
};

// Stores a parameter and, if kCasts, its bf16 copy: the same f32 number, each rounded once.
template <bool kCasts, class T>
PRUN_INLINE void store_param(float updated, T& param, bf16* copy, int64_t i) {
  store(param, updated);
  if constexpr (kCasts) store(copy[i], updated);
}

template <bool kCasts, class T>
PRUN_CLONES void adamw(const float* grad, T* param, float* m, float* v, bf16* copy, int64_t n, AdamwStep s) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = load(param[i]), g = s.clip.of(grad[i]) + s.l2 * p;
    const float mean = s.mean.of(m[i], s.mean.share * g);
    const float square = s.square.of(v[i], s.square.share * g * g);
    m[i] = mean;
    v[i] = square;
    store_param<kCasts>(p - (s.decay * p + s.step_size * mean / (std::sqrt(square) * s.root_correction + s.eps)),
                        param[i], copy, i);
  }
}

template <bool kCasts, class T>
PRUN_CLONES void sgd_plain(const float* grad, T* param, bf16* copy, int64_t n, float rate, Clip clip, float decay) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = load(param[i]);
    store_param<kCasts>(p - rate * (clip.of(grad[i]) + decay * p), param[i], copy, i);
  }
}

template <bool kCasts, class T>
PRUN_CLONES void sgd_momentum(const float* grad, T* param, float* buffer, bf16* copy, int64_t n, float rate, Clip clip,
                              float decay, Blend momentum, bool nesterov) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = load(param[i]);
    const float g = clip.of(grad[i]) + decay * p, velocity = momentum.of(buffer[i], g);
    buffer[i] = velocity;
    store_param<kCasts>(p - rate * (nesterov ? momentum.of(velocity, g) : velocity), param[i], copy, i);
  }
}

struct LionStep {
  Clip clip;
  Blend direction, mean;
  float rate, decay;
};

template <class T>
PRUN_CLONES void lion(const float* grad, T* param, float* m, int64_t n, LionStep s) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = s.clip.of(grad[i]), p = load(param[i]);
    const float direction = s.direction.of(m[i], s.direction.share * g);
    const float sign = direction > 0.0f ? 1.0f : (direction < 0.0f ? -1.0f : direction);  // NaNs propagate
    m[i] = s.mean.of(m[i], s.mean.share * g);
    store(param[i], p - s.rate * (sign + s.decay * p));
  }
}

// `first`: the average begins with the parameters.
template <class T>
PRUN_CLONES void ema(const T* param, float* average, int64_t n, float share, bool first) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = load(param[i]);
    average[i] = first ? p : average[i] + share * (p - average[i]);
  }
}

// The operands common to all optimizers. Reads: grad, param, `states` arrays of state, clip?. Writes: param and state,
// in place, and with kCasts the copy.
template <bool kCasts, class T>
struct Update {
  const float* grad;
  T* param;
  float* state[2] = {};
  bf16* copy = nullptr;
  const float* clip = nullptr;
  int64_t n;
  std::vector<UpdateRange> ranges;
  const StepTable* table;
  int threads;

  Update(const OpView& view, size_t states, double decay = 0)
      : grad(view.in<float>(0)),
        param(view.out<T>(0)),
        n(view.read(1).count()),
        ranges(update_ranges_of(view, n, decay)),
        table(view.table()),
        threads(view.threads()) {
    view.expect_count(view.read(0), n);
    view.expect_count(view.write(0), n);
    bool in_place = view.in<T>(1) == param;
    for (size_t i = 0; i < states; ++i) {
      view.expect_count(view.read(2 + i), n);
      view.expect_count(view.write(1 + i), n);
      state[i] = view.out<float>(1 + i);
      in_place = in_place && view.in<float>(2 + i) == state[i];
    }
    PRUN_CHECK(in_place, std::string(view.kind()) + " updates in place");
    if (view.reads() > 2 + states) clip = view.in<float>(2 + states);
    if constexpr (kCasts) {
      view.expect_count(view.write(1 + states), n);
      copy = view.out<bf16>(1 + states);
    }
  }
  bool skipped() const { return clip != nullptr && *clip < 0; }
  // Calls f(first, count, copy of these elements, learning rate, weight decay) for ranges of the elements, on all
  // threads.
  template <class F>
  void each_range(const F& f) const {
    parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
      const FlushSubnormals flush;
      for (const UpdateRange& range : ranges) {
        const int64_t from = std::max(begin, range.begin), to = std::min(end, range.end);
        if (from < to)
          f(from, to - from, kCasts ? copy + from : nullptr, table->learning_rate * range.lr_factor,
            range.weight_decay);
      }
    });
  }
};

template <bool kCasts, class T>
std::unique_ptr<Kernel> make_adamw(const OpView& view) {
  const Attrs& a = view.attrs();
  return kernel_of([u = Update<kCasts, T>(view, 2, 0.01), beta1 = a.number("beta1", 0.9),
                    beta2 = a.number("beta2", 0.999), eps = a.number("eps", 1e-8), l2 = a.number("l2", 0) != 0] {
    if (u.skipped()) return;
    const double t = static_cast<double>(u.table->update + 1);
    const double mean_left = 1 - std::pow(beta1, t);
    const AdamwStep step{Clip(u.clip),  // before each_range flushes subnormal numbers
                         average(beta1),
                         average(beta2),
                         0,
                         0,
                         0,
                         static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t))),
                         eps > 0 ? std::max(FLT_MIN, static_cast<float>(eps)) : 0.0f};
    u.each_range([&](int64_t at, int64_t count, bf16* copy, double rate, double weight_decay) {
      AdamwStep s = step;
      (l2 ? s.l2 : s.decay) = static_cast<float>(l2 ? weight_decay : rate * weight_decay);
      s.step_size = static_cast<float>(rate / mean_left);
      adamw<kCasts>(u.grad + at, u.param + at, u.state[0] + at, u.state[1] + at, copy, count, s);
    });
  });
}

// Without momentum there is no state.
template <bool kCasts, class T>
std::unique_ptr<Kernel> make_sgd(const OpView& view) {
  const bool has_momentum = view.writes() > (kCasts ? 2 : 1);
  return kernel_of([u = Update<kCasts, T>(view, has_momentum ? 1 : 0), has_momentum,
                    momentum = blend(view.attrs().number("momentum", 0), 1),
                    nesterov = view.attrs().number("nesterov", 0) != 0] {
    if (u.skipped()) return;
    const Clip clip(u.clip);
    u.each_range([&](int64_t at, int64_t count, bf16* copy, double of_range, double weight_decay) {
      const float rate = static_cast<float>(of_range), decay = static_cast<float>(weight_decay);
      if (has_momentum)
        sgd_momentum<kCasts>(u.grad + at, u.param + at, u.state[0] + at, copy, count, rate, clip, decay, momentum,
                             nesterov);
      else
        sgd_plain<kCasts>(u.grad + at, u.param + at, copy, count, rate, clip, decay);
    });
  });
}

template <class T>
std::unique_ptr<Kernel> make_lion(const OpView& view) {
  const Attrs& a = view.attrs();
  return kernel_of([u = Update<false, T>(view, 1), direction = average(a.number("beta1", 0.9)),
                    mean = average(a.number("beta2", 0.99))] {
    if (u.skipped()) return;
    const Clip clip(u.clip);
    u.each_range([&](int64_t at, int64_t count, bf16*, double rate, double weight_decay) {
      const LionStep s{clip, direction, mean, static_cast<float>(rate), static_cast<float>(weight_decay)};
      lion(u.grad + at, u.param + at, u.state[0] + at, count, s);
    });
  });
}

template <class T>
std::unique_ptr<Kernel> make_ema(const OpView& view) {
  const T* param = view.in<T>(0);
  const float* before = view.in<float>(1);
  float* average = view.out<float>(0);
  const int64_t n = view.read(0).count();
  view.expect_count(view.read(1), n), view.expect_count(view.write(0), n);
  PRUN_CHECK(before == average, "ema updates in place");
  return kernel_of([=, share = static_cast<float>(1 - view.attrs().number("decay", 0)), table = view.table(),
                    threads = view.threads()] {
    parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
      const FlushSubnormals flush;
      ema(param + begin, average + begin, end - begin, share, table->update == 0);
    });
  });
}

}  // namespace

const Family optimizer_kernels = {{"adamw", PRUN_FLOAT_MAKER(read(1), make_adamw<false, T>(view))},
                                  {"sgd", PRUN_FLOAT_MAKER(read(1), make_sgd<false, T>(view))},
                                  {"lion", PRUN_FLOAT_MAKER(read(1), make_lion<T>(view))},
                                  {"ema", PRUN_FLOAT_MAKER(read(0), make_ema<T>(view))},
                                  {"adamw_cast", make_adamw<true, float>},
                                  {"sgd_cast", make_sgd<true, float>}};

}  // namespace prun::cpu
