// gelu, relu, tanh and silu_mul with their gradients: one pass in f32, in place if the program requests it.
#include <algorithm>

#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/ops/tanh.h"
#include "kernels/cpu/vector_math.h"

namespace prun::cpu {
namespace {

template <class T>
void silu_mul_grad_range(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t n) {
  with_lanes([=]<int lanes>() PRUN_INLINED {
    for_lanes<lanes>(n, [=](auto at) PRUN_INLINED {
      const Floats<lanes> x = at.load(gate), u = at.load(up), g = at.load(dy);
      const auto [s, rest] = sigmoid_and_rest<T>(x);
      at.store(dgate, Floats<lanes>(g * u * s * (1.0f + x * rest)));
      at.store(dup, Floats<lanes>(g * x * s));
    });
  });
}

bool exact_gelu(const OpView& view) { return view.attrs().text("approximate", "tanh") == "none"; }

template <class T>
struct GeluTanh {
  static constexpr bool kOfGroups = true;
  template <class V>
  PRUN_INLINE V operator()(const V& x) const {
    return gelu_tanh<T>(x);
  }
};
template <class T>
struct GeluTanhDx {
  static constexpr bool kOfGroups = true;
  template <class V>
  PRUN_INLINE V operator()(const V& x, const V& dy) const {
    return dy * gelu_tanh_derivative<T>(x);
  }
};

template <class T>
std::unique_ptr<Kernel> gelu(const OpView& view) {
  const auto exact = [](auto x) PRUN_INLINED { return gelu_erf_f32(x); };
  return exact_gelu(view) ? map_kernel<T, T>(view, exact) : map_kernel<T, T>(view, GeluTanh<T>());
}

template <class T>
std::unique_ptr<Kernel> gelu_dx(const OpView& view) {
  const auto exact = [](auto x, auto dy) PRUN_INLINED { return dy * gelu_erf_derivative_f32(x); };
  return exact_gelu(view) ? map_kernel<T, T, T>(view, exact) : map_kernel<T, T, T>(view, GeluTanhDx<T>());
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

// Returns a kernel that does nothing if no slot of a round of experts has a token; the last read has their numbers.
std::unique_ptr<Kernel> unless_idle(const OpView& view, std::unique_ptr<Kernel> kernel) {
  const Tensor& filled = view.read(view.reads() - 1);
  const int64_t slots = view.read(0).shape.at(1) / last_dim(filled.shape);
  return kernel_of([kernel = std::move(kernel), numbers = view.in<int32_t>(view.reads() - 1), count = filled.count(),
                    before = view.attrs().integer("round") * slots, in_rounds = view.attrs().has("round")] {
    if (in_rounds && std::all_of(numbers, numbers + count, [&](int32_t n) { return n <= before; })) return;
    kernel->run();
  });
}

constexpr auto kRelu = [](auto x) PRUN_INLINED { return x < 0.0f ? 0.0f : x; };  // NaNs propagate
constexpr auto kReluDx = [](auto y, auto dy) PRUN_INLINED { return y > 0.0f ? dy : 0.0f; };
constexpr auto kTanh = [](auto x) PRUN_INLINED { return tanh_f32(x); };
constexpr auto kTanhDx = [](auto y, auto dy) PRUN_INLINED { return dy * (1.0f - y * y); };
template <class T>
constexpr auto kSiluMul = [](auto gate, auto up) PRUN_INLINED { return gate * sigmoid_of<T>(gate) * up; };

constexpr auto kSum = [](auto x, auto up) PRUN_INLINED { return x + up; };

template <class T>
std::unique_ptr<Kernel> expert_activation(const OpView& view) {
  if (view.attrs().integer("sum") != 0) return unless_idle(view, map_kernel<T, T, T>(view, kSum));
  return unless_idle(view, view.reads() == 2 ? gelu<T>(view) : map_kernel<T, T, T>(view, kSiluMul<T>));
}
template <class T>
std::unique_ptr<Kernel> expert_activation_grad(const OpView& view) {
  return unless_idle(view, view.reads() == 3 ? gelu_dx<T>(view) : silu_mul_grad<T>(view));
}

}  // namespace

const Family activation_kernels = {
    {"gelu", PRUN_FLOAT_MAKER(read(0), gelu<T>(view))},
    {"gelu_dx", PRUN_FLOAT_MAKER(read(0), gelu_dx<T>(view))},
    {"relu", PRUN_FLOAT_MAKER(read(0), map_kernel<T, T>(view, kRelu))},
    {"relu_dx", PRUN_FLOAT_MAKER(read(0), map_kernel<T, T, T>(view, kReluDx))},
    {"tanh", PRUN_FLOAT_MAKER(read(0), map_kernel<T, T>(view, kTanh))},
    {"tanh_dx", PRUN_FLOAT_MAKER(read(0), map_kernel<T, T, T>(view, kTanhDx))},
    {"silu_mul", PRUN_FLOAT_MAKER(read(0), map_kernel<T, T, T>(view, kSiluMul<T>))},
    {"silu_mul_grad", PRUN_FLOAT_MAKER(read(0), silu_mul_grad<T>(view))},
    {"expert_activation", PRUN_FLOAT_MAKER(read(0), expert_activation<T>(view))},
    {"expert_activation_grad", PRUN_FLOAT_MAKER(read(0), expert_activation_grad<T>(view))}};

}  // namespace prun::cpu
