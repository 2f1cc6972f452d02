// gelu, relu, tanh and silu_mul with their gradients: one pass in f32, in place if the program requests it.
//
// In bf16, memory delivers about five elements per clock to each multiprocessor, which leaves 24 instructions per
// element. Therefore exp2 has its constant folded in, and the division is the fast one.
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

// The experts' slots without a token are zeros, and so are their results.
std::unique_ptr<Kernel> make_expert_activation(const OpView& view) {
  return view.reads() == 2 ? make_gelu(view) : make<2, 1, SiluMul>(view);
}
std::unique_ptr<Kernel> make_expert_activation_grad(const OpView& view) {
  return view.reads() == 3 ? make_gelu_dx(view) : make<3, 2, SiluMulGrad>(view);
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
