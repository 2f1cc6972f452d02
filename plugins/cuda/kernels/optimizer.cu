// sgd, adamw and lion, each in one pass over gradient, parameter and state; formulas of torch.optim.SGD, AdamW and,
// with l2, Adam, and of Chen et al., Symbolic Discovery of Optimization Algorithms, 2023. adamw_cast and sgd_cast also
// write a bf16 copy of the parameters.
//
// Surprising fact: a parameter may be bf16 while its gradient and state are f32; the update runs in f32 and rounds
// once. The grid has at most as many blocks as the GPU runs at once, because each block computes the step's two powers
// in f64. Factors are rounded once: 1 - beta of a rounded beta would be off by 19 % at beta = 0.9999999.
#include <algorithm>
#include <cfloat>

#include "block.cuh"
#include "cuda/device/context.h"
#include "launch.h"
#include "prun/sdk/kernels.h"
#include "update_operands.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 512, kBlocksPerMultiprocessor = 2;
constexpr int kElements = 4;  // per thread at once: 16 bytes of f32

// Each rule defines its number of state tensors, the factors of a step, and from them the update of an element under
// the settings of its range.

using sdk::blend;
using sdk::Blend;
using sdk::UpdateRange;

struct Adamw {
  static constexpr int kStates = 2;  // mean, square
  Blend mean, square;
  double beta1, beta2;
  float eps;
  bool l2;  // weight decay is added to the gradient

  struct Step {
    Blend of_mean, of_square;
    float decay, l2, step_size, root_correction, eps;
    __device__ void operator()(float g, float& p, float (&state)[kStates]) const {
      auto& [mean, square] = state;
      g = g + l2 * p;
      mean = of_mean.of(mean, of_mean.share * g);
      square = of_square.of(square, of_square.share * g * g);
      p -= decay * p + step_size * mean / (sqrtf(square) * root_correction + eps);
    }
  };
  struct Factors {
    Blend mean, square;
    double rate, step_size;
    float root_correction, eps;
    bool l2;
    __device__ Step of(const UpdateRange& range) const {
      return {mean,
              square,
              l2 ? 0.0f : static_cast<float>(rate * range.lr_factor * range.weight_decay),
              l2 ? static_cast<float>(range.weight_decay) : 0.0f,
              static_cast<float>(step_size * range.lr_factor),
              root_correction,
              eps};
    }
  };
  // All threads of a block must call it.
  __device__ Factors at(const prun_step_values* values) const {
    __shared__ double corrected[2];
    const double rate = values->learning_rate;
    if (threadIdx.x < 2) {
      const double t = static_cast<double>(values->update + 1);
      const double left = 1 - pow(threadIdx.x == 0 ? beta1 : beta2, t);
      corrected[threadIdx.x] = threadIdx.x == 0 ? rate / left : 1 / sqrt(left);
    }
    __syncthreads();
    return {mean, square, rate, corrected[0], static_cast<float>(corrected[1]), eps, l2};
  }
};

template <int kMomenta>
struct Sgd {
  static constexpr int kStates = kMomenta;
  Blend momentum;
  bool nesterov;

  struct Step {
    Blend momentum;
    float rate, decay;
    bool nesterov;
    __device__ void operator()(float g, float& p, float (&velocity)[kMomenta > 0 ? kMomenta : 1]) const {
      g = g + decay * p;
      if constexpr (kMomenta > 0) {
        velocity[0] = momentum.of(velocity[0], g);
        g = nesterov ? momentum.of(velocity[0], g) : velocity[0];
      }
      p -= rate * g;
    }
  };
  struct Factors {
    Blend momentum;
    double rate;
    bool nesterov;
    __device__ Step of(const UpdateRange& range) const {
      return {momentum, static_cast<float>(rate * range.lr_factor), static_cast<float>(range.weight_decay), nesterov};
    }
  };
  __device__ Factors at(const prun_step_values* values) const { return {momentum, values->learning_rate, nesterov}; }
};

struct Lion {
  static constexpr int kStates = 1;
  Blend direction, mean;

  struct Step {
    Blend of_direction, of_mean;
    float rate, decay;
    __device__ void operator()(float g, float& p, float (&mean)[kStates]) const {
      const float direction = of_direction.of(mean[0], of_direction.share * g);
      const float sign = direction > 0.0f ? 1.0f : (direction < 0.0f ? -1.0f : direction);  // NaNs propagate
      mean[0] = of_mean.of(mean[0], of_mean.share * g);
      p -= rate * (sign + decay * p);
    }
  };
  struct Factors {
    Blend direction, mean;
    double rate;
    __device__ Step of(const UpdateRange& range) const {
      return {direction, mean, static_cast<float>(rate * range.lr_factor), static_cast<float>(range.weight_decay)};
    }
  };
  __device__ Factors at(const prun_step_values* values) const { return {direction, mean, values->learning_rate}; }
};

// The copy of ops that cast, otherwise NoCopy. The type is known at compile time, so it costs the other ops nothing.
struct NoCopy {
  __host__ __device__ NoCopy operator+(int64_t) const { return {}; }
};
template <int N>
__device__ __forceinline__ void store_copy(NoCopy, const float (&)[N]) {}
template <int N>
__device__ __forceinline__ void store_copy(bf16* copy, const float (&p)[N]) {
  store(copy, p);
}

template <class T, class Copy, int kStates>
struct Operands {
  const float* grad;
  T* param;
  float* state[kStates > 0 ? kStates : 1];
  Copy copy;
};

template <int N, class T, class Copy, int kStates, class Step>
__device__ __forceinline__ void update_at(const Operands<T, Copy, kStates>& o, int64_t at, float clip,
                                          const Step& step) {
  constexpr int kRows = kStates > 0 ? kStates : 1;
  float g[N], p[N], state[kRows][N];
  load(o.grad + at, g), load(o.param + at, p);
#pragma unroll
  for (int k = 0; k < kStates; ++k) load(o.state[k] + at, state[k]);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float of_one[kRows];
#pragma unroll
    for (int k = 0; k < kStates; ++k) of_one[k] = state[k][i];
    step(g[i] * clip, p[i], of_one);
#pragma unroll
    for (int k = 0; k < kStates; ++k) state[k][i] = of_one[k];
  }
  store(o.param + at, p);
#pragma unroll
  for (int k = 0; k < kStates; ++k) store(o.state[k] + at, state[k]);
  store_copy(o.copy + at, p);
}

template <class Rule, class T, class Copy>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    update(Operands<T, Copy, Rule::kStates> o, int64_t n, int64_t packs, Rule rule, UpdateRange all, const float* clip,
           const prun_step_values* values) {
  const float factor = clip != nullptr ? *clip : 1.0f;
  if (factor < 0) return;  // the step updates nothing
  const auto step = rule.at(values).of(all);
  for (int64_t i = first_item(); i < packs; i += item_stride()) update_at<kElements>(o, i * kElements, factor, step);
  for (int64_t i = packs * kElements + first_item(); i < n; i += item_stride()) update_at<1>(o, i, factor, step);
}

// Updates elements under the settings of the range that contains each. A thread's elements ascend, so it passes over
// the ranges once. kPack elements from a multiple of kPack on are in one range.
template <int kPack, class Rule, class T, class Copy>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    update_ranges(Operands<T, Copy, Rule::kStates> o, int64_t packs, Rule rule, const UpdateRange* range,
                  const float* clip, const prun_step_values* values) {
  const float factor = clip != nullptr ? *clip : 1.0f;
  if (factor < 0) return;
  const auto factors = rule.at(values);
  auto step = factors.of(*range);
  for (int64_t i = first_item(); i < packs; i += item_stride()) {
    if (i * kPack >= range->end) {
      while (i * kPack >= range->end) ++range;
      step = factors.of(*range);
    }
    update_at<kPack>(o, i * kPack, factor, step);
  }
}

// Returns the last write of ops that cast.
template <class Copy>
Copy copy_of(const OpView& view, int64_t n) {
  if constexpr (std::is_same_v<Copy, NoCopy>) {
    return {};
  } else {
    view.expect_count(view.write(view.writes() - 1), n);
    return view.out<bf16>(view.writes() - 1);
  }
}
bool packable(NoCopy) { return true; }
bool packable(const bf16* copy) { return reinterpret_cast<uintptr_t>(copy) % (kElements * sizeof(bf16)) == 0; }

// Makes the kernel. Reads: grad, param, state..., clip?. Writes: param, state..., copy?. `decay`: the default.
template <class T, class Copy, class Rule>
std::unique_ptr<Kernel> make_update(const OpView& view, const Rule& rule, double decay = 0) {
  constexpr size_t kUpdated = 1 + Rule::kStates;
  const int64_t n = view.read(1).count();
  view.expect_count(view.read(0), n);
  Operands<T, Copy, Rule::kStates> o{view.in<float>(0), view.out<T>(0), {}, copy_of<Copy>(view, n)};
  bool packed = aligned(o.grad) && aligned(o.param) && packable(o.copy);
  for (size_t i = 0; i < kUpdated; ++i) {
    view.expect_count(view.read(i + 1), n), view.expect_count(view.write(i), n);
    view.expect(view.read(i + 1).ptr == view.write(i).ptr, "it updates in place");
    if (i > 0) o.state[i - 1] = view.out<float>(i), packed = packed && aligned(o.state[i - 1]);
  }
  const unsigned grid = blocks_for((n + kElements - 1) / kElements, kThreads,
                                   view.context().multiprocessors() * kBlocksPerMultiprocessor);
  const float* clip = view.reads() > kUpdated + 1 ? view.in<float>(kUpdated + 1) : nullptr;
  const std::vector<UpdateRange> ranges = update_ranges_of(view, n, decay);
  if (ranges.size() < 2)
    return kernel_of([o, n, rule, grid, packs = packed ? n / kElements : 0, clip, values = view.values(),
                      all = ranges.empty() ? UpdateRange{} : ranges.front()](cudaStream_t stream) {
      launch(update<Rule, T, Copy>, grid, kThreads, 0, stream, o, n, packs, rule, all, clip, values);
    });
  packed = packed && n % kElements == 0 &&
           std::ranges::all_of(ranges, [](const UpdateRange& range) { return range.begin % kElements == 0; });
  const std::shared_ptr<void> table = device_table(view.context(), ranges.data(), ranges.size() * sizeof(UpdateRange));
  return kernel_of([o, n, rule, grid, packed, table, clip, values = view.values()](cudaStream_t stream) {
    const auto* list = static_cast<const UpdateRange*>(table.get());
    if (packed)
      launch(update_ranges<kElements, Rule, T, Copy>, grid, kThreads, 0, stream, o, n / kElements, rule, list, clip,
             values);
    else
      launch(update_ranges<1, Rule, T, Copy>, grid, kThreads, 0, stream, o, n, rule, list, clip, values);
  });
}

template <class T, class Copy>
std::unique_ptr<Kernel> make_adamw_of(const OpView& view) {
  const double beta1 = view.number("beta1", 0.9), beta2 = view.number("beta2", 0.999), eps = view.number("eps", 1e-8);
  return make_update<T, Copy>(
      view,
      Adamw{blend(beta1, 1 - beta1), blend(beta2, 1 - beta2), beta1, beta2,
            eps > 0 ? std::max(FLT_MIN, static_cast<float>(eps)) : 0.0f, view.number("l2", 0) != 0},
      0.01);
}

// Makes sgd. Without momentum there is no state, so the third read is the clip coefficient.
template <class T, class Copy>
std::unique_ptr<Kernel> make_sgd_of(const OpView& view) {
  const Blend momentum = blend(view.number("momentum", 0), 1);
  const bool nesterov = view.number("nesterov", 0) != 0;
  const size_t updated = view.writes() - (std::is_same_v<Copy, NoCopy> ? 0 : 1);
  return updated > 1 ? make_update<T, Copy>(view, Sgd<1>{momentum, nesterov})
                     : make_update<T, Copy>(view, Sgd<0>{momentum, nesterov});
}

std::unique_ptr<Kernel> make_lion(const OpView& view) {
  const double beta1 = view.number("beta1", 0.9), beta2 = view.number("beta2", 0.99);
  const Lion rule{blend(beta1, 1 - beta1), blend(beta2, 1 - beta2)};
  return with_float(view.read(1).dtype, [&]<class T>() { return make_update<T, NoCopy>(view, rule); });
}
std::unique_ptr<Kernel> make_adamw(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return make_adamw_of<T, NoCopy>(view); });
}
std::unique_ptr<Kernel> make_sgd(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return make_sgd_of<T, NoCopy>(view); });
}

// The running average of parameters, in place. It begins with the parameters of the first update.
template <int N, class T>
__device__ __forceinline__ void follow_at(const T* param, float* average, float share, bool first) {
  float p[N], a[N];
  load(param, p), load(average, a);
#pragma unroll
  for (int i = 0; i < N; ++i) a[i] = first ? p[i] : a[i] + share * (p[i] - a[i]);
  store(average, a);
}
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    follow(const T* param, float* average, int64_t n, int64_t packs, float share, const prun_step_values* values) {
  const bool first = values->update == 0;
  for (int64_t i = first_item(); i < packs; i += item_stride())
    follow_at<kElements>(param + i * kElements, average + i * kElements, share, first);
  for (int64_t i = packs * kElements + first_item(); i < n; i += item_stride())
    follow_at<1>(param + i, average + i, share, first);
}

template <class T>
std::unique_ptr<Kernel> make_ema_of(const OpView& view) {
  const int64_t n = view.read(0).count();
  view.expect_count(view.read(1), n), view.expect_count(view.write(0), n);
  view.expect(view.read(1).ptr == view.write(0).ptr, "it updates in place");
  const T* param = view.in<T>(0);
  float* average = view.out<float>(0);
  const unsigned grid = blocks_for((n + kElements - 1) / kElements, kThreads,
                                   view.context().multiprocessors() * kBlocksPerMultiprocessor);
  return kernel_of([param, average, n, grid, packs = aligned(param) && aligned(average) ? n / kElements : 0,
                    share = static_cast<float>(1 - view.number("decay", 0)),
                    values = view.values()](cudaStream_t stream) {
    launch(follow<T>, grid, kThreads, 0, stream, param, average, n, packs, share, values);
  });
}
std::unique_ptr<Kernel> make_ema(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return make_ema_of<T>(view); });
}

const KernelFamily kFamily = {{"adamw", make_adamw},
                              {"sgd", make_sgd},
                              {"lion", make_lion},
                              {"ema", make_ema},
                              {"adamw_cast", make_adamw_of<float, bf16*>},
                              {"sgd_cast", make_sgd_of<float, bf16*>}};

}  // namespace
}  // namespace prun::cuda
