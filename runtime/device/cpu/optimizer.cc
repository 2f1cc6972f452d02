// sgd, adamw and lion, each in one pass over gradient, parameter and state; formulas of torch.optim.SGD and AdamW, and
// of Chen et al., Symbolic Discovery of Optimization Algorithms, 2023.
//
// adamw_cast and sgd_cast write a bf16 copy of the parameters in the same pass.
//
// A negative clip coefficient says that the step updates nothing.
//
// Surprising fact: a parameter may be bf16 while its gradient and state are f32; the update runs in f32 and rounds
// once.
#include <cmath>

#include "device/cpu/flush_subnormals.h"
#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/simd.h"

namespace prun::cpu {
namespace {

struct AdamwStep {
  float clip, decay, beta1, beta2, step_size, root_correction, eps;
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
    const float g = grad[i] * s.clip;
    const float mean = m[i] + (1.0f - s.beta1) * (g - m[i]);
    const float square = s.beta2 * v[i] + (1.0f - s.beta2) * g * g;
    m[i] = mean;
    v[i] = square;
    keep<kCasts>(load(param[i]) * s.decay - s.step_size * mean / (std::sqrt(square) * s.root_correction + s.eps),
                 param[i], copy, i);
  }
}

template <bool kCasts, class T>
PRUN_CLONES void sgd_plain(const float* grad, T* param, bf16* copy, int64_t n, float rate, float clip, float decay) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = load(param[i]);
    keep<kCasts>(p - rate * (grad[i] * clip + decay * p), param[i], copy, i);
  }
}

template <bool kCasts, class T>
PRUN_CLONES void sgd_momentum(const float* grad, T* param, float* buffer, bf16* copy, int64_t n, float rate, float clip,
                              float decay, float momentum) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = load(param[i]);
    const float velocity = momentum * buffer[i] + (grad[i] * clip + decay * p);
    buffer[i] = velocity;
    keep<kCasts>(p - rate * velocity, param[i], copy, i);
  }
}

struct LionStep {
  float rate, clip, decay, beta1, beta2;
};

template <class T>
PRUN_CLONES void lion(const float* grad, T* param, float* m, int64_t n, LionStep s) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * s.clip, p = load(param[i]);
    const float direction = s.beta1 * m[i] + (1.0f - s.beta1) * g;
    const float sign = direction > 0.0f ? 1.0f : (direction < 0.0f ? -1.0f : direction);  // a NaN stays one
    m[i] = s.beta2 * m[i] + (1.0f - s.beta2) * g;
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
    AdamwStep s;
    s.clip = clip != nullptr ? *clip : 1.0f;
    s.decay = static_cast<float>(1 - rate * weight_decay);
    s.beta1 = static_cast<float>(beta1);
    s.beta2 = static_cast<float>(beta2);
    s.step_size = static_cast<float>(rate / (1 - std::pow(beta1, t)));
    s.root_correction = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t)));
    s.eps = static_cast<float>(eps);
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
                    threads = view.threads(), momentum = static_cast<float>(view.attrs().number("momentum", 0)),
                    decay = static_cast<float>(view.attrs().number("weight_decay", 0))] {
    if (skips(clip)) return;
    const float rate = static_cast<float>(table->learning_rate), factor = clip != nullptr ? *clip : 1.0f;
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
  const auto number = [&](const char* name, double usual) {
    return static_cast<float>(view.attrs().number(name, usual));
  };
  return kernel_of([grad = view.in<float>(0), param = view.out<T>(0), m = view.out<float>(1),
                    clip = view.reads() > 3 ? view.in<float>(3) : nullptr, n, table = view.table(),
                    threads = view.threads(), beta1 = number("beta1", 0.9), beta2 = number("beta2", 0.99),
                    decay = number("weight_decay", 0)] {
    if (skips(clip)) return;
    const LionStep s{static_cast<float>(table->learning_rate), clip != nullptr ? *clip : 1.0f, decay, beta1, beta2};
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
