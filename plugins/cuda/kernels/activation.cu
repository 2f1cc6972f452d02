// gelu, relu, tanh and silu_mul with their gradients: one pass in f32, in place if the program requests it.
//
// In bf16, memory delivers about five elements per clock to each multiprocessor, which leaves 24 instructions per
// element. Therefore exp2 has its constant folded in, and the division is the fast one.
#include "expert_slots.cuh"
#include "pointwise.cuh"

namespace prun::cuda {
namespace {

constexpr float kLog2e = 1.44269504f;
// gelu by tanh (Hendrycks and Gimpel, Gaussian Error Linear Units, 2016) is x·sigmoid(2·√(2/π)·(x + 0.044715·x³)).
constexpr float kGeluA = 1.59576912f;    // 2·√(2/π)
constexpr float kGeluB = 0.0713548163f;  // kGeluA · 0.044715

// Clamps, because beyond 2^126 exp2 would leave the range in which the fast division is exact to two ULP. Sigmoid is 0
// there.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + exp2f(fminf(-kLog2e * x, 126.0f))); }

__device__ __forceinline__ float normal_cdf(float x) { return 0.5f + 0.5f * erff(x * 0.707106781f); }

struct GeluTanh {
  __device__ void operator()(const float* x, float* y) const {
    y[0] = x[0] * sigmoid(x[0] * (kGeluA + kGeluB * x[0] * x[0]));
  }
};
struct GeluErf {
  __device__ void operator()(const float* x, float* y) const { y[0] = x[0] * normal_cdf(x[0]); }
};
struct GeluTanhDx {
  __device__ void operator()(const float* x, float* y) const {
    const float square = x[0] * x[0], s = sigmoid(x[0] * (kGeluA + kGeluB * square));
    y[0] = x[1] * (s + x[0] * s * (1.0f - s) * (kGeluA + 3.0f * kGeluB * square));
  }
};
struct GeluErfDx {
  __device__ void operator()(const float* x, float* y) const {
    y[0] = x[1] * (normal_cdf(x[0]) + x[0] * 0.398942280f * exp2f(-0.5f * kLog2e * x[0] * x[0]));
  }
};
struct Relu {
  __device__ void operator()(const float* x, float* y) const { y[0] = x[0] < 0.0f ? 0.0f : x[0]; }  // NaNs propagate
};
struct ReluDx {
  __device__ void operator()(const float* x, float* y) const { y[0] = x[0] > 0.0f ? x[1] : 0.0f; }
};
struct Tanh {
  __device__ void operator()(const float* x, float* y) const { y[0] = tanhf(x[0]); }
};
struct TanhDx {
  __device__ void operator()(const float* x, float* y) const { y[0] = x[1] * (1.0f - x[0] * x[0]); }
};
struct SiluMul {
  __device__ void operator()(const float* x, float* y) const { y[0] = x[0] * sigmoid(x[0]) * x[1]; }
};
struct Sum {
  __device__ void operator()(const float* x, float* y) const { y[0] = x[0] + x[1]; }
};
struct SiluMulGrad {
  __device__ void operator()(const float* x, float* y) const {
    const float s = sigmoid(x[0]);
    y[0] = x[2] * x[1] * s * (1.0f + x[0] * (1.0f - s));
    y[1] = x[2] * x[0] * s;
  }
};

template <int kIn, int kOut, class F>
std::unique_ptr<Kernel> make(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return pointwise_op<T, kIn, kOut>(view, F{}); });
}

bool exact_gelu(const OpView& view) { return view.text("approximate", "tanh") == "none"; }

std::unique_ptr<Kernel> make_gelu(const OpView& view) {
  return exact_gelu(view) ? make<1, 1, GeluErf>(view) : make<1, 1, GeluTanh>(view);
}
std::unique_ptr<Kernel> make_gelu_dx(const OpView& view) {
  return exact_gelu(view) ? make<2, 1, GeluErfDx>(view) : make<2, 1, GeluTanhDx>(view);
}

// Computes the activation of a later round. An expert has `of_expert` elements. Slots without a token are zeros, and so
// are their results; those of an expert without any token remain as they are. A block computes a run of packs at a
// time.
template <class T, int N, int kIn, int kOut, class F>
__global__ void __launch_bounds__(kPointwiseThreads, kStreamingBlocks)
    expert_pointwise(ExpertSlots slots, int64_t of_expert, Streams<T, kIn, kOut> streams, F f) {
  if (slots.is_idle()) return;
  constexpr int kSteps = 2;
  constexpr int64_t kStep = int64_t{kPointwiseThreads} * N;
  const int64_t runs = (of_expert + kSteps * kStep - 1) / (kSteps * kStep);
  for (int64_t item = blockIdx.x; item < slots.experts * runs; item += gridDim.x) {
    const int64_t expert = item / runs, begin = (item - expert * runs) * kSteps * kStep + int64_t{threadIdx.x} * N;
    if (slots.leaves(expert)) continue;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t place = begin + step * kStep, at = expert * of_expert + place;
      if (place >= of_expert) break;
      Wide<T> loaded[kIn][N], results[kOut][N];
#pragma unroll
      for (int k = 0; k < kIn; ++k) load(streams.in[k] + at, loaded[k]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        Wide<T> x[kIn], y[kOut];
#pragma unroll
        for (int k = 0; k < kIn; ++k) x[k] = loaded[k][i];
        f(x, y);
#pragma unroll
        for (int k = 0; k < kOut; ++k) results[k][i] = y[k];
      }
#pragma unroll
      for (int k = 0; k < kOut; ++k) store(streams.out[k] + at, results[k]);
    }
  }
}

template <int kIn, int kOut, class F>
std::unique_ptr<Kernel> make_of_experts(const OpView& view) {
  if (view.integer("round") == 0) return make<kIn, kOut, F>(view);
  return with_float(view.read(0).dtype, [&]<class T>() {
    const Shape x = view.read(0).shape;
    const int64_t count = x.count(), of_expert = count / std::max<int64_t>(1, x[0]);
    const ExpertSlots slots = expert_slots_of(view, view.reads() - 1, x[0], x[1]);
    Streams<T, kIn, kOut> streams{};
    bool packed = of_expert % kPack<T> == 0;
    for (int k = 0; k < kIn; ++k) {
      view.expect_count(view.read(k), count);
      streams.in[k] = view.in<T>(k), packed = packed && aligned(streams.in[k]);
    }
    for (int k = 0; k < kOut; ++k) {
      view.expect_count(view.write(k), count);
      streams.out[k] = view.out<T>(k), packed = packed && aligned(streams.out[k]);
    }
    const unsigned blocks = blocks_for(count, kPointwiseThreads * kPack<T>, blocks_of_round(view, 0));
    return kernel_of([=](cudaStream_t stream) {
      launch(packed ? expert_pointwise<T, kPack<T>, kIn, kOut, F> : expert_pointwise<T, 1, kIn, kOut, F>, blocks,
             kPointwiseThreads, 0, stream, slots, of_expert, streams, F{});
    });
  });
}

std::unique_ptr<Kernel> make_expert_activation(const OpView& view) {
  if (view.integer("sum") != 0) return make_of_experts<2, 1, Sum>(view);
  return view.reads() == 2 ? make_of_experts<1, 1, GeluTanh>(view) : make_of_experts<2, 1, SiluMul>(view);
}
std::unique_ptr<Kernel> make_expert_activation_grad(const OpView& view) {
  return view.reads() == 3 ? make_of_experts<2, 1, GeluTanhDx>(view) : make_of_experts<3, 2, SiluMulGrad>(view);
}

const KernelFamily kFamily = {{"expert_activation", make_expert_activation},
                              {"expert_activation_grad", make_expert_activation_grad},
                              {"gelu", make_gelu},
                              {"gelu_dx", make_gelu_dx},
                              {"relu", make<1, 1, Relu>},
                              {"relu_dx", make<2, 1, ReluDx>},
                              {"tanh", make<1, 1, Tanh>},
                              {"tanh_dx", make<2, 1, TanhDx>},
                              {"silu_mul", make<2, 1, SiluMul>},
                              {"silu_mul_grad", make<3, 2, SiluMulGrad>}};

}  // namespace
}  // namespace prun::cuda
