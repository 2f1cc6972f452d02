// sgd, adamw and lion, each in one pass over gradient, parameter and state; formulas of torch.optim.SGD and AdamW, and
// of Chen et al., Symbolic Discovery of Optimization Algorithms, 2023.
// adamw_cast and sgd_cast write a bf16 copy of the parameters in the same pass.
//
// Surprising fact: a parameter may be bf16 while its gradient and state are f32; the update runs in f32 and rounds
// once. The grid is as large as the GPU and no larger, since each block computes the step's two powers in f64.
#include "block.cuh"
#include "context.h"
#include "launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 512, kBlocksPerMultiprocessor = 2;
constexpr int kElements = 4;  // of a thread at once: 16 bytes of f32

// Each rule says how many tensors of state it keeps, and what of an element's numbers it makes, from those of the step.

struct Adamw {
  static constexpr int kStates = 2;  // mean, square
  double beta1, beta2, eps, weight_decay;

  struct Step {
    float decay, beta1, beta2, step_size, root_correction, eps;
    __device__ void operator()(float g, float& p, float (&state)[kStates]) const {
      auto& [mean, square] = state;
      mean = mean + (1.0f - beta1) * (g - mean);
      square = beta2 * square + (1.0f - beta2) * g * g;
      p = p * decay - step_size * mean / (sqrtf(square) * root_correction + eps);
    }
  };
  // All threads of a block call it.
  __device__ Step at(const prun_step_values* values) const {
    __shared__ float corrected[2];
    const double rate = values->learning_rate;
    if (threadIdx.x < 2) {
      const double t = static_cast<double>(values->update + 1);
      const double left = 1 - pow(threadIdx.x == 0 ? beta1 : beta2, t);
      corrected[threadIdx.x] = static_cast<float>(threadIdx.x == 0 ? rate / left : 1 / sqrt(left));
    }
    __syncthreads();
    return {static_cast<float>(1 - rate * weight_decay),
            static_cast<float>(beta1),
            static_cast<float>(beta2),
            corrected[0],
            corrected[1],
            static_cast<float>(eps)};
  }
};

template <int kMomenta>
struct Sgd {
  static constexpr int kStates = kMomenta;
  float momentum, decay;

  struct Step {
    float rate, momentum, decay;
    __device__ void operator()(float g, float& p, float (&velocity)[kMomenta > 0 ? kMomenta : 1]) const {
      g = g + decay * p;
      if constexpr (kMomenta > 0) g = velocity[0] = momentum * velocity[0] + g;
      p -= rate * g;
    }
  };
  __device__ Step at(const prun_step_values* values) const {
    return {static_cast<float>(values->learning_rate), momentum, decay};
  }
};

struct Lion {
  static constexpr int kStates = 1;
  float beta1, beta2, decay;

  struct Step {
    float rate, beta1, beta2, decay;
    __device__ void operator()(float g, float& p, float (&mean)[kStates]) const {
      const float direction = beta1 * mean[0] + (1.0f - beta1) * g;
      const float sign = direction > 0.0f ? 1.0f : (direction < 0.0f ? -1.0f : direction);  // a NaN stays one
      mean[0] = beta2 * mean[0] + (1.0f - beta2) * g;
      p -= rate * (sign + decay * p);
    }
  };
  __device__ Step at(const prun_step_values* values) const {
    return {static_cast<float>(values->learning_rate), beta1, beta2, decay};
  }
};

// The copy of ops that cast; null otherwise: known when a kernel is compiled, so it costs the others nothing.
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
    update(Operands<T, Copy, Rule::kStates> o, int64_t n, int64_t packs, Rule rule, const float* clip,
           const prun_step_values* values) {
  const float factor = clip != nullptr ? *clip : 1.0f;
  if (factor < 0) return;  // the step updates nothing
  const auto step = rule.at(values);
  for (int64_t i = first_item(); i < packs; i += item_stride()) update_at<kElements>(o, i * kElements, factor, step);
  for (int64_t i = packs * kElements + first_item(); i < n; i += item_stride()) update_at<1>(o, i, factor, step);
}

// The last write of ops that cast.
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

// Reads: grad, param, state..., clip?. Writes: param, state..., copy?.
template <class T, class Copy, class Rule>
std::unique_ptr<Kernel> make_update(const OpView& view, const Rule& rule) {
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
  return kernel_of([o, n, rule, grid, packs = packed ? n / kElements : 0,
                    clip = view.reads() > kUpdated + 1 ? view.in<float>(kUpdated + 1) : nullptr,
                    values = view.values()](cudaStream_t stream) {
    launch(update<Rule, T, Copy>, grid, kThreads, 0, stream, o, n, packs, rule, clip, values);
  });
}

template <class T, class Copy>
std::unique_ptr<Kernel> make_adamw_of(const OpView& view) {
  return make_update<T, Copy>(view, Adamw{view.number("beta1", 0.9), view.number("beta2", 0.999),
                                          view.number("eps", 1e-8), view.number("weight_decay", 0.01)});
}

// A plan without momentum has no state, so the third read is then the clip.
template <class T, class Copy>
std::unique_ptr<Kernel> make_sgd_of(const OpView& view) {
  const float momentum = static_cast<float>(view.number("momentum", 0)),
              decay = static_cast<float>(view.number("weight_decay", 0));
  const size_t updated = view.writes() - (std::is_same_v<Copy, NoCopy> ? 0 : 1);
  return updated > 1 ? make_update<T, Copy>(view, Sgd<1>{momentum, decay})
                     : make_update<T, Copy>(view, Sgd<0>{momentum, decay});
}

std::unique_ptr<Kernel> make_lion(const OpView& view) {
  const auto number = [&](const char* name, double usual) { return static_cast<float>(view.number(name, usual)); };
  const Lion rule{number("beta1", 0.9), number("beta2", 0.99), number("weight_decay", 0)};
  return with_float(view.read(1).dtype, [&]<class T>() { return make_update<T, NoCopy>(view, rule); });
}
std::unique_ptr<Kernel> make_adamw(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return make_adamw_of<T, NoCopy>(view); });
}
std::unique_ptr<Kernel> make_sgd(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return make_sgd_of<T, NoCopy>(view); });
}

constexpr KernelEntry kEntries[] = {{"adamw", make_adamw},
                                    {"sgd", make_sgd},
                                    {"lion", make_lion},
                                    {"adamw_cast", make_adamw_of<float, bf16*>},
                                    {"sgd_cast", make_sgd_of<float, bf16*>}};

}  // namespace

std::span<const KernelEntry> optimizer_kernels() { return kEntries; }

}  // namespace prun::cuda
