// gelu, relu, tanh and silu_mul with their gradients: one pass, f32 inside, in place where the program wishes.
#include "device/cpu/elementwise.h"
#include "device/cpu/vector_math.h"

namespace prun::cpu {
namespace {

template <class T>
PRUN_CLONES void silu_mul_grad_range(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float x = load(gate[i]), u = load(up[i]), g = load(dy[i]), s = sigmoid_f32(x);
    store(dgate[i], g * u * s * (1.0f + x * (1.0f - s)));
    store(dup[i], g * x * s);
  }
}

// By its Taylor series where 1 − e^(−2|x|) would lose digits.
PRUN_INLINE float tanh_f32(float x) {
  const float magnitude = x < 0 ? -x : x, square = x * x;
  const float series =
      1.0f + square * (-1.0f / 3 + square * (2.0f / 15 + square * (-17.0f / 315 + square * (62.0f / 2835))));
  const float t = exp_f32(-2.0f * magnitude), large = (1.0f - t) / (1.0f + t);
  return magnitude < 0.25f ? x * series : (x < 0 ? -large : large);  // a NaN stays one
}

bool exact_gelu(const OpView& view) { return view.attrs().text("approximate", "tanh") == "none"; }

template <class T>
std::unique_ptr<Kernel> gelu(const OpView& view) {
  return exact_gelu(view) ? map_kernel<T, T>(view, Inlined<gelu_erf_f32>{})
                          : map_kernel<T, T>(view, Inlined<gelu_tanh_f32>{});
}

template <class T>
std::unique_ptr<Kernel> gelu_dx(const OpView& view) {
  const auto exact = [](float x, float dy) PRUN_INLINED { return dy * gelu_erf_derivative_f32(x); };
  const auto tanh = [](float x, float dy) PRUN_INLINED { return dy * gelu_tanh_derivative_f32(x); };
  return exact_gelu(view) ? map_kernel<T, T, T>(view, exact) : map_kernel<T, T, T>(view, tanh);
}

template <class T>
std::unique_ptr<Kernel> silu_mul_grad(const OpView& view) {
  const int64_t n = view.read(0).count();
  for (size_t i : {1, 2}) view.expect_count(view.read(i), n);
  for (size_t i : {0, 1}) view.expect_count(view.write(i), n);
  return kernel_of([gate = view.in<T>(0), up = view.in<T>(1), dy = view.in<T>(2), dgate = view.out<T>(0),
                    dup = view.out<T>(1), n, threads = view.threads()] {
    parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
      silu_mul_grad_range(gate + begin, up + begin, dy + begin, dgate + begin, dup + begin, end - begin);
    });
  });
}

constexpr auto kRelu = [](float x) PRUN_INLINED { return x < 0.0f ? 0.0f : x; };  // a NaN stays one
constexpr auto kReluDx = [](float y, float dy) PRUN_INLINED { return y > 0.0f ? dy : 0.0f; };
constexpr auto kTanhDx = [](float y, float dy) PRUN_INLINED { return dy * (1.0f - y * y); };
constexpr auto kSiluMul = [](float gate, float up) PRUN_INLINED { return gate * sigmoid_f32(gate) * up; };

}  // namespace

const Family activation_kernels = {{"gelu", PRUN_FLOAT_MAKER(read(0), gelu<T>(view))},
                                   {"gelu_dx", PRUN_FLOAT_MAKER(read(0), gelu_dx<T>(view))},
                                   {"relu", PRUN_FLOAT_MAKER(read(0), map_kernel<T, T>(view, kRelu))},
                                   {"relu_dx", PRUN_FLOAT_MAKER(read(0), map_kernel<T, T, T>(view, kReluDx))},
                                   {"tanh", PRUN_FLOAT_MAKER(read(0), map_kernel<T, T>(view, Inlined<tanh_f32>{}))},
                                   {"tanh_dx", PRUN_FLOAT_MAKER(read(0), map_kernel<T, T, T>(view, kTanhDx))},
                                   {"silu_mul", PRUN_FLOAT_MAKER(read(0), map_kernel<T, T, T>(view, kSiluMul))},
                                   {"silu_mul_grad", PRUN_FLOAT_MAKER(read(0), silu_mul_grad<T>(view))}};

}  // namespace prun::cpu
