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

struct Adamw {
  double beta1, beta2, eps, weight_decay;
};
struct AdamwStep {
  float clip, decay, beta1, beta2, step_size, root_correction, eps;
};

// All threads of a block call it.
__device__ AdamwStep step_of(const Adamw& a, const float* clip, const prun_step_values* values) {
  __shared__ float corrected[2];
  const double rate = values->learning_rate;
  if (threadIdx.x < 2) {
    const double t = static_cast<double>(values->step + 1);
    const double left = 1 - pow(threadIdx.x == 0 ? a.beta1 : a.beta2, t);
    corrected[threadIdx.x] = static_cast<float>(threadIdx.x == 0 ? rate / left : 1 / sqrt(left));
  }
  __syncthreads();
  AdamwStep s;
  s.clip = clip != nullptr ? *clip : 1.0f;
  s.decay = static_cast<float>(1 - rate * a.weight_decay);
  s.beta1 = static_cast<float>(a.beta1);
  s.beta2 = static_cast<float>(a.beta2);
  s.step_size = corrected[0];
  s.root_correction = corrected[1];
  s.eps = static_cast<float>(a.eps);
  return s;
}

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

template <int N, class T, class Copy>
__device__ __forceinline__ void adamw_update(const float* grad, T* param, float* m, float* v, Copy copy,
                                             const AdamwStep& s) {
  float g[N], p[N], mean[N], square[N];
  load(grad, g), load(param, p), load(m, mean), load(v, square);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    g[i] *= s.clip;
    mean[i] = mean[i] + (1.0f - s.beta1) * (g[i] - mean[i]);
    square[i] = s.beta2 * square[i] + (1.0f - s.beta2) * g[i] * g[i];
    p[i] = p[i] * s.decay - s.step_size * mean[i] / (sqrtf(square[i]) * s.root_correction + s.eps);
  }
  store(param, p), store(m, mean), store(v, square);
  store_copy(copy, p);
}

template <class T, class Copy>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    adamw(const float* grad, T* param, float* m, float* v, Copy copy, int64_t n, int64_t packs, Adamw attrs,
          const float* clip, const prun_step_values* values) {
  const AdamwStep s = step_of(attrs, clip, values);
  for (int64_t i = first_item(); i < packs; i += item_stride()) {
    const int64_t at = i * kElements;
    adamw_update<kElements>(grad + at, param + at, m + at, v + at, copy + at, s);
  }
  for (int64_t i = packs * kElements + first_item(); i < n; i += item_stride())
    adamw_update<1>(grad + i, param + i, m + i, v + i, copy + i, s);
}

struct SgdStep {
  float rate, clip, decay, momentum;
};

template <int N, class T, class Copy>
__device__ __forceinline__ void sgd_update(const float* grad, T* param, float* buffer, Copy copy, const SgdStep& s) {
  float g[N], p[N], velocity[N];
  load(grad, g), load(param, p);
  if (buffer != nullptr) load(buffer, velocity);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    g[i] = g[i] * s.clip + s.decay * p[i];
    velocity[i] = buffer != nullptr ? s.momentum * velocity[i] + g[i] : g[i];
    p[i] -= s.rate * velocity[i];
  }
  store(param, p);
  store_copy(copy, p);
  if (buffer != nullptr) store(buffer, velocity);
}

template <class T, class Copy>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    sgd(const float* grad, T* param, float* buffer, Copy copy, int64_t n, int64_t packs, float momentum, float decay,
        const float* clip, const prun_step_values* values) {
  const SgdStep s{static_cast<float>(values->learning_rate), clip != nullptr ? *clip : 1.0f, decay, momentum};
  for (int64_t i = first_item(); i < packs; i += item_stride()) {
    const int64_t at = i * kElements;
    sgd_update<kElements>(grad + at, param + at, buffer != nullptr ? buffer + at : nullptr, copy + at, s);
  }
  for (int64_t i = packs * kElements + first_item(); i < n; i += item_stride())
    sgd_update<1>(grad + i, param + i, buffer != nullptr ? buffer + i : nullptr, copy + i, s);
}

struct LionStep {
  float rate, clip, decay, beta1, beta2;
};

template <int N, class T>
__device__ __forceinline__ void lion_update(const float* grad, T* param, float* m, const LionStep& s) {
  float g[N], p[N], mean[N];
  load(grad, g), load(param, p), load(m, mean);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    g[i] *= s.clip;
    const float direction = s.beta1 * mean[i] + (1.0f - s.beta1) * g[i];
    const float sign = direction > 0.0f ? 1.0f : (direction < 0.0f ? -1.0f : direction);  // a NaN stays one
    mean[i] = s.beta2 * mean[i] + (1.0f - s.beta2) * g[i];
    p[i] -= s.rate * (sign + s.decay * p[i]);
  }
  store(param, p), store(m, mean);
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    lion(const float* grad, T* param, float* m, int64_t n, int64_t packs, float beta1, float beta2, float decay,
         const float* clip, const prun_step_values* values) {
  const LionStep s{static_cast<float>(values->learning_rate), clip != nullptr ? *clip : 1.0f, decay, beta1, beta2};
  for (int64_t i = first_item(); i < packs; i += item_stride()) {
    const int64_t at = i * kElements;
    lion_update<kElements>(grad + at, param + at, m + at, s);
  }
  for (int64_t i = packs * kElements + first_item(); i < n; i += item_stride())
    lion_update<1>(grad + i, param + i, m + i, s);
}

unsigned grid_of(const OpView& view, int64_t n) {
  return blocks_for((n + kElements - 1) / kElements, kThreads,
                    view.context().multiprocessors() * kBlocksPerMultiprocessor);
}

void expect_in_place(const OpView& view, size_t read, size_t write) {
  view.expect(view.read(read).ptr == view.write(write).ptr, "it updates in place");
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

template <class T, class Copy>
std::unique_ptr<Kernel> make_adamw_of(const OpView& view) {
  const int64_t n = view.read(1).count();
  for (size_t i : {0, 2, 3}) view.expect_count(view.read(i), n);
  for (size_t i : {0, 1, 2}) view.expect_count(view.write(i), n), expect_in_place(view, i + 1, i);
  const float* grad = view.in<float>(0);
  T* param = view.out<T>(0);
  float *m = view.out<float>(1), *v = view.out<float>(2);
  const auto copy = copy_of<Copy>(view, n);
  const bool packed = aligned(grad, m, v) && aligned(param) && packable(copy);
  const Adamw attrs{view.number("beta1", 0.9), view.number("beta2", 0.999), view.number("eps", 1e-8),
                    view.number("weight_decay", 0.01)};
  return kernel_of([grad, param, m, v, copy, n, attrs, packs = packed ? n / kElements : 0,
                    clip = view.reads() > 4 ? view.in<float>(4) : nullptr, values = view.values(),
                    grid = grid_of(view, n)](cudaStream_t stream) {
    launch(adamw<T, Copy>, grid, kThreads, 0, stream, grad, param, m, v, copy, n, packs, attrs, clip, values);
  });
}

// Reads: grad, param, momentum?, clip?. A plan without momentum has no state, so the third read is then the clip.
template <class T, class Copy>
std::unique_ptr<Kernel> make_sgd_of(const OpView& view) {
  const int64_t n = view.read(1).count();
  const size_t updated = view.writes() - (std::is_same_v<Copy, NoCopy> ? 0 : 1);
  const bool has_state = updated > 1;
  view.expect_count(view.read(0), n);
  for (size_t i = 0; i < updated; ++i) view.expect_count(view.write(i), n), expect_in_place(view, i + 1, i);
  const size_t clip_read = has_state ? 3 : 2;
  const float* grad = view.in<float>(0);
  T* param = view.out<T>(0);
  float* buffer = has_state ? view.out<float>(1) : nullptr;
  const auto copy = copy_of<Copy>(view, n);
  const bool packed = aligned(grad, buffer) && aligned(param) && packable(copy);
  return kernel_of([grad, param, buffer, copy, n, packs = packed ? n / kElements : 0,
                    momentum = static_cast<float>(view.number("momentum", 0)),
                    decay = static_cast<float>(view.number("weight_decay", 0)),
                    clip = view.reads() > clip_read ? view.in<float>(clip_read) : nullptr, values = view.values(),
                    grid = grid_of(view, n)](cudaStream_t stream) {
    launch(sgd<T, Copy>, grid, kThreads, 0, stream, grad, param, buffer, copy, n, packs, momentum, decay, clip, values);
  });
}

template <class T>
std::unique_ptr<Kernel> make_lion_of(const OpView& view) {
  const int64_t n = view.read(1).count();
  view.expect_count(view.read(0), n);
  for (size_t i : {0, 1}) view.expect_count(view.write(i), n), expect_in_place(view, i + 1, i);
  const float* grad = view.in<float>(0);
  T* param = view.out<T>(0);
  float* m = view.out<float>(1);
  const auto number = [&](const char* name, double usual) { return static_cast<float>(view.number(name, usual)); };
  return kernel_of([grad, param, m, n, packs = aligned(grad, m) && aligned(param) ? n / kElements : 0,
                    beta1 = number("beta1", 0.9), beta2 = number("beta2", 0.99), decay = number("weight_decay", 0),
                    clip = view.reads() > 3 ? view.in<float>(3) : nullptr, values = view.values(),
                    grid = grid_of(view, n)](cudaStream_t stream) {
    launch(lion<T>, grid, kThreads, 0, stream, grad, param, m, n, packs, beta1, beta2, decay, clip, values);
  });
}

std::unique_ptr<Kernel> make_lion(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return make_lion_of<T>(view); });
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
