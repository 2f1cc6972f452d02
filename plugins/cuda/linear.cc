// linear, its two derivatives, and those that take a gelu in: one Gemm each.
#include <fmt/format.h>

#include "gemm.h"

namespace prun::cuda {
namespace {

Activation activation_of(const OpView& view) {
  const std::string act = view.text("act");
  if (act.empty()) return Activation::none;
  if (act == "relu") return Activation::relu;
  if (act != "gelu") throw Failure(PRUN_ENOTSUP, fmt::format("{}: there is no kernel for act '{}'", view.kind(), act));
  return view.text("approximate", "tanh") == "none" ? Activation::gelu_erf : Activation::gelu_tanh;
}

bool transposed(const OpView& view) { return view.integer("transpose") != 0; }

// One type for all, or with f32 for what is a parameter's gradient.
void expect_types(const OpView& view, std::initializer_list<Tensor> tensors) {
  const int first = tensors.begin()->dtype;
  for (const Tensor& t : tensors)
    if (t.dtype != first) throw Failure(PRUN_EINVAL, fmt::format("{}: its tensors are of several types", view.kind()));
}

Gemm linear(const OpView& view) {
  const Tensor x = view.read(0), w = view.read(1), y = view.write(0);
  Gemm g;
  g.shape.m = x.shape.rows(), g.shape.k = x.shape.last(), g.shape.n = y.shape.last();
  g.shape.transpose_b = transposed(view);
  g.shape.input = x.dtype, g.shape.output = y.dtype;
  g.a = x.ptr, g.b = w.ptr, g.c = y.ptr;
  expect_types(view, {x, w, y});
  view.expect_count(w, g.shape.k * g.shape.n);
  view.expect_count(y, g.shape.m * g.shape.n);
  if (view.reads() > 2) {
    const Tensor b = view.read(2);
    expect_types(view, {x, b});
    view.expect_count(b, g.shape.n);
    g.bias = b.ptr;
  }
  g.activation = activation_of(view);
  return g;
}

// dx [rows, K] = dy [rows, N]·wᵀ, w stored [K, N] unless the forward op was transposed.
Gemm linear_dx(const OpView& view) {
  const Tensor dy = view.read(0), w = view.read(1), dx = view.write(0);
  Gemm g;
  g.shape.m = dy.shape.rows(), g.shape.k = dy.shape.last(), g.shape.n = dx.shape.last();
  g.shape.transpose_b = !transposed(view);
  g.shape.input = dy.dtype, g.shape.output = dx.dtype;
  g.a = dy.ptr, g.b = w.ptr, g.c = dx.ptr;
  expect_types(view, {dy, w, dx});
  view.expect_count(w, g.shape.k * g.shape.n);
  view.expect_count(dx, g.shape.m * g.shape.n);
  return g;
}

// dw [K, N] = xᵀ·dy, or [N, K] = dyᵀ·x: the first operand is always the transposed one. db is a sum of dy.
Gemm linear_dw(const OpView& view) {
  const Tensor x = view.read(0), dy = view.read(1), dw = view.write(0);
  const bool swap = transposed(view);
  const Tensor &a = swap ? dy : x, &b = swap ? x : dy;
  Gemm g;
  g.shape.m = a.shape.last(), g.shape.n = b.shape.last(), g.shape.k = x.shape.rows();
  g.shape.transpose_a = true;
  g.shape.input = x.dtype, g.shape.output = dw.dtype;
  g.a = a.ptr, g.b = b.ptr, g.c = view.out<float>(0);
  expect_types(view, {x, dy});
  view.expect_count(dy, g.shape.k * dy.shape.last());
  view.expect_count(dw, g.shape.m * g.shape.n);
  if (view.writes() > 1) {
    view.expect_count(view.write(1), dy.shape.last());
    g.sum = swap ? Sums::of_a : Sums::of_b;
    g.sums = view.out<float>(1);
  }
  return g;
}

// Adds to sums of earlier microbatches, which are read last.
Gemm linear_dw_add(const OpView& view) {
  Gemm g = linear_dw(view);
  view.expect_count(view.read(2), g.shape.m * g.shape.n);
  g.added = view.in<float>(2);
  if (g.sum == Sums::none) return g;
  view.expect_count(view.read(3), view.write(1).count());
  g.added_sums = view.in<float>(3);
  return g;
}

Gemm linear_gelu(const OpView& view) {
  Gemm g = linear(view);
  const Tensor pre = view.write(1);
  expect_types(view, {view.read(0), pre});
  view.expect_count(pre, g.shape.m * g.shape.n);
  g.activation = Activation::gelu_tanh;
  g.pre = pre.ptr;
  return g;
}

Gemm linear_dx_gelu(const OpView& view) {
  Gemm g = linear_dx(view);
  const Tensor pre = view.read(2);
  expect_types(view, {view.read(0), pre});
  view.expect_count(pre, g.shape.m * g.shape.n);
  g.gelu_input = pre.ptr;
  return g;
}

template <Gemm (*gemm)(const OpView&)>
std::unique_ptr<Kernel> make(const OpView& view) {
  return make_gemm(view, gemm(view));
}
template <Gemm (*gemm)(const OpView&)>
size_t workspace(const OpView& view) {
  return gemm_workspace(gemm(view));
}

constexpr KernelEntry kEntries[] = {
    {"linear", make<linear>, workspace<linear>},
    {"linear_dx", make<linear_dx>, workspace<linear_dx>},
    {"linear_dw", make<linear_dw>, workspace<linear_dw>},
    {"linear_dw_add", make<linear_dw_add>, workspace<linear_dw_add>},
    {"linear_gelu", make<linear_gelu>, workspace<linear_gelu>},
    {"linear_dx_gelu", make<linear_dx_gelu>, workspace<linear_dx_gelu>},
};

}  // namespace

std::span<const KernelEntry> linear_kernels() { return kEntries; }

}  // namespace prun::cuda
