// sgd, adamw and lion, each in one pass over gradient, parameter and state; formulas of torch.optim.SGD and AdamW, and
// of Chen et al., Symbolic Discovery of Optimization Algorithms, 2023.
//
// adamw_cast and sgd_cast write a bf16 copy of the parameters in the same pass.
//
// A negative clip coefficient says that the step updates nothing.
//
// Surprising fact: a parameter may be bf16 while its gradient and state are f32; the update runs in f32 and rounds
// once. Each factor of the step is computed in f64 and rounded once: 1 - beta of a rounded beta would be off by 19 % at
// beta = 0.9999999.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/ops/flush_subnormals.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "prun/sdk/kernels.h"

namespace prun::cpu {
namespace {

using sdk::blend;
using sdk::Blend;

Blend average(double beta) { return blend(beta, 1 - beta); }

// Splits the clip coefficient into two factors. The first factor of a subnormal coefficient is 2^64 times as large,
// because the loops flush subnormal numbers to zero.
struct Clip {
  float first = 1, second = 1;

  explicit Clip(const float* coefficient) {
    if (coefficient == nullptr) return;
    const bool tiny = *coefficient < FLT_MIN;
    first = tiny ? *coefficient * 0x1p64f : *coefficient;
    second = tiny ? 0x1p-64f : 1.0f;
  }
  PRUN_INLINE float of(float grad) const { return grad * first * second; }
};

struct AdamwStep {
  Clip clip;
  Blend mean, square;
  float decay, step_size, root_correction, eps;
};

// Stores a parameter and, if kCasts, its copy: the same number, each rounded once.
template <bool kCasts, class T>
PRUN_INLINE void keep(float updated, T& param, bf16* copy, int64_t i) {
  store(param, updated);
  if constexpr (kCasts) store(copy[i], updated);
}

template <bool kCasts, class T>
PRUN_CLONES void adamw(const float* grad, T* param, float* m, float* v, bf16* copy, int64_t n, AdamwStep s) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = s.clip.of(grad[i]), p = load(param[i]);
    const float mean = s.mean.of(m[i], s.mean.share * g);
    const float square = s.square.of(v[i], s.square.share * g * g);
    m[i] = mean;
    v[i] = square;
    keep<kCasts>(p - (s.decay * p + s.step_size * mean / (std::sqrt(square) * s.root_correction + s.eps)), param[i],
                 copy, i);
  }
}

template <bool kCasts, class T>
PRUN_CLONES void sgd_plain(const float* grad, T* param, bf16* copy, int64_t n, float rate, Clip clip, float decay) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = load(param[i]);
    keep<kCasts>(p - rate * (clip.of(grad[i]) + decay * p), param[i], copy, i);
  }
}

template <bool kCasts, class T>
PRUN_CLONES void sgd_momentum(const float* grad, T* param, float* buffer, bf16* copy, int64_t n, float rate, Clip clip,
                              float decay, Blend momentum) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = load(param[i]);
    const float velocity = momentum.of(buffer[i], clip.of(grad[i]) + decay * p);
    buffer[i] = velocity;
    keep<kCasts>(p - rate * velocity, param[i], copy, i);
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
    const float sign = direction > 0.0f ? 1.0f : (direction < 0.0f ? -1.0f : direction);  // a NaN stays one
    m[i] = s.mean.of(m[i], s.mean.share * g);
    store(param[i], p - s.rate * (sign + s.decay * p));
  }
}

bool skips(const float* clip) { return clip != nullptr && *clip < 0; }

// The copy that the casting ops write last; null for the others.
template <bool kCasts>
bf16* copy_of(const OpView& view, int64_t n) {
  if constexpr (!kCasts) return nullptr;
  view.expect_count(view.write(view.writes() - 1), n);
  return view.out<bf16>(view.writes() - 1);
}

template <bool kCasts, class T>
std::unique_ptr<Kernel> make_adamw_of(const OpView& view) {
  const int64_t n = view.read(1).count();
  for (size_t i : {0, 2, 3}) view.expect_count(view.read(i), n);
  for (size_t i : {0, 1, 2}) view.expect_count(view.write(i), n);
  PRUN_CHECK(view.in<T>(1) == view.out<T>(0) && view.in<float>(2) == view.out<float>(1) &&
                 view.in<float>(3) == view.out<float>(2),
             "adamw updates in place");
  const Attrs& a = view.attrs();
  return kernel_of([grad = view.in<float>(0), param = view.out<T>(0), m = view.out<float>(1), v = view.out<float>(2),
                    copy = copy_of<kCasts>(view, n), clip = view.reads() > 4 ? view.in<float>(4) : nullptr, n,
                    table = view.table(), threads = view.threads(), beta1 = a.number("beta1", 0.9),
                    beta2 = a.number("beta2", 0.999), eps = a.number("eps", 1e-8),
                    weight_decay = a.number("weight_decay", 0.01)] {
    if (skips(clip)) return;
    const double t = static_cast<double>(table->update + 1), rate = table->learning_rate;
    const AdamwStep s{Clip(clip),
                      average(beta1),
                      average(beta2),
                      static_cast<float>(rate * weight_decay),
                      static_cast<float>(rate / (1 - std::pow(beta1, t))),
                      static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t))),
                      eps > 0 ? std::max(FLT_MIN, static_cast<float>(eps)) : 0.0f};
    parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
      const FlushSubnormals flush;
      adamw<kCasts>(grad + begin, param + begin, m + begin, v + begin, kCasts ? copy + begin : nullptr, end - begin, s);
    });
  });
}

// Reads: grad, param, momentum?, clip?. A plan without momentum has no state, so the third read is then the clip.
template <bool kCasts, class T>
std::unique_ptr<Kernel> make_sgd_of(const OpView& view) {
  const int64_t n = view.read(1).count();
  view.expect_count(view.read(0), n);
  view.expect_count(view.write(0), n);
  const bool has_state = view.writes() > (kCasts ? 2 : 1);
  float* buffer = nullptr;
  if (has_state) {
    view.expect_count(view.write(1), n);
    buffer = view.out<float>(1);
    PRUN_CHECK(view.in<float>(2) == buffer, "sgd updates in place");
  }
  PRUN_CHECK(view.in<T>(1) == view.out<T>(0), "sgd updates in place");
  const size_t clip_read = has_state ? 3 : 2;
  return kernel_of([grad = view.in<float>(0), param = view.out<T>(0), buffer, copy = copy_of<kCasts>(view, n),
                    clip = view.reads() > clip_read ? view.in<float>(clip_read) : nullptr, n, table = view.table(),
                    threads = view.threads(), momentum = blend(view.attrs().number("momentum", 0), 1),
                    decay = static_cast<float>(view.attrs().number("weight_decay", 0))] {
    if (skips(clip)) return;
    const float rate = static_cast<float>(table->learning_rate);
    const Clip factor(clip);
    parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
      const FlushSubnormals flush;
      bf16* const low = kCasts ? copy + begin : nullptr;
      if (buffer == nullptr) {
        sgd_plain<kCasts>(grad + begin, param + begin, low, end - begin, rate, factor, decay);
      } else {
        sgd_momentum<kCasts>(grad + begin, param + begin, buffer + begin, low, end - begin, rate, factor, decay,
                             momentum);
      }
    });
  });
}

template <class T>
std::unique_ptr<Kernel> make_lion_of(const OpView& view) {
  const int64_t n = view.read(1).count();
  for (size_t i : {0, 2}) view.expect_count(view.read(i), n);
  for (size_t i : {0, 1}) view.expect_count(view.write(i), n);
  PRUN_CHECK(view.in<T>(1) == view.out<T>(0) && view.in<float>(2) == view.out<float>(1), "lion updates in place");
  const Attrs& a = view.attrs();
  return kernel_of([grad = view.in<float>(0), param = view.out<T>(0), m = view.out<float>(1),
                    clip = view.reads() > 3 ? view.in<float>(3) : nullptr, n, table = view.table(),
                    threads = view.threads(), direction = average(a.number("beta1", 0.9)),
                    mean = average(a.number("beta2", 0.99)), decay = static_cast<float>(a.number("weight_decay", 0))] {
    if (skips(clip)) return;
    const LionStep s{Clip(clip), direction, mean, static_cast<float>(table->learning_rate), decay};
    parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
      const FlushSubnormals flush;
      lion(grad + begin, param + begin, m + begin, end - begin, s);
    });
  });
}

}  // namespace

const Family optimizer_kernels = {{"adamw", PRUN_FLOAT_MAKER(read(1), make_adamw_of<false, T>(view))},
                                  {"sgd", PRUN_FLOAT_MAKER(read(1), make_sgd_of<false, T>(view))},
                                  {"lion", PRUN_FLOAT_MAKER(read(1), make_lion_of<T>(view))},
                                  {"adamw_cast", make_adamw_of<true, float>},
                                  {"sgd_cast", make_sgd_of<true, float>}};

}  // namespace prun::cpu
