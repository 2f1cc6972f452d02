// linear, its two derivatives, and their fusions with gelu, and the same for experts: one Gemm each.
//
// Surprising fact: slots of experts without a token contain zeros, which cuBLASLt multiplies like the others, because
// the host does not know them. If most slots are empty, kernels that skip them are faster.
#include <fmt/format.h>

#include "cuda/device/context.h"
#include "expert_gemm.h"
#include "gemm.h"
#include "prun/sdk/operand_view.h"

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

// Throws Failure unless all these tensors have one dtype. A parameter's f32 gradient is not among them.
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

// dw [K, N] = xᵀ·dy, or [N, K] = dyᵀ·x: the first operand is always the transposed one. db is the column sums of dy.
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

// Accumulates into the sums of earlier microbatches, which are the last reads.
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

// expert_linear and its two derivatives are a batch of GEMMs, one per expert, in one call: C = op(A)·op(B), with A and
// B the reads and C the write; all are [experts, rows, columns].
template <bool transpose_a, bool transpose_b>
Gemm of_experts(const OpView& view) {
  const Tensor a = view.read(0), b = view.read(1), c = view.write(0);
  for (const Tensor& t : {a, b, c})
    if (t.shape.rank() != 3 || t.shape[0] != c.shape[0])
      throw Failure(PRUN_EINVAL,
                    fmt::format("{}: a tensor is not of three dims, as many experts as the others first", view.kind()));
  Gemm g;
  g.shape.batch = c.shape[0], g.shape.m = c.shape[1], g.shape.n = c.shape[2];
  g.shape.k = a.shape[transpose_a ? 1 : 2];
  g.shape.transpose_a = transpose_a, g.shape.transpose_b = transpose_b;
  g.shape.input = a.dtype, g.shape.output = c.dtype;
  g.a = a.ptr, g.b = b.ptr, g.c = c.ptr;
  view.expect_count(a, g.shape.batch * g.shape.m * g.shape.k);
  view.expect_count(b, g.shape.batch * g.shape.k * g.shape.n);
  const int64_t sources = view.read(2).shape.last(), slots = a.shape[1];
  view.expect_count(view.read(2), g.shape.batch * sources);
  view.expect(sources > 0 && slots % sources == 0, "slots do not divide into those of the sources");
  if (b.dtype != a.dtype || c.dtype != (transpose_a ? int{PRUN_F32} : a.dtype))
    throw Failure(PRUN_EINVAL, fmt::format("{}: its tensors are of several types", view.kind()));
  return g;
}

// matmul: a GEMM for each index of the leading dims. cuBLASLt has one stride for a batch: leading dims whose strides do
// not merge into one are a call each.
std::vector<Gemm> of_batch(const OpView& view) {
  const Tensor a = view.read(0), b = view.read(1), c = view.write(0);
  auto at = sdk::strided_matmul(view.text("views"), a.shape.dims, b.shape.dims, c.shape.dims);
  view.expect(at.has_value(), "matmul: the views do not fit");
  view.expect(a.dtype == b.dtype && a.dtype == c.dtype, "matmul: its tensors are of several types");
  const bool transpose_a = view.integer("transpose_a") != 0, transpose_b = view.integer("transpose_b") != 0;
  Gemm g;
  g.shape.transpose_a = transpose_a != at->a.transposed, g.shape.transpose_b = transpose_b != at->b.transposed;
  g.shape.m = at->y.rows, g.shape.n = at->y.columns, g.shape.k = transpose_a ? at->a.rows : at->a.columns;
  g.shape.input = a.dtype, g.shape.output = c.dtype;
  view.expect((transpose_a ? at->a.columns : at->a.rows) == g.shape.m &&
                  (transpose_b ? at->b.rows : at->b.columns) == g.shape.n &&
                  (transpose_b ? at->b.columns : at->b.rows) == g.shape.k,
              "matmul: its matrices do not multiply");
  if (!at->a.is_dense()) g.shape.in_a.row = at->a.row;
  if (!at->b.is_dense()) g.shape.in_b.row = at->b.row;
  if (!at->y.is_dense()) g.shape.in_c.row = at->y.row;
  // Merges leading dims from the last one on; `outer` are those before.
  size_t outer = at->leading.size();
  int64_t step_a = -1, step_b = -1, step_c = -1;
  const auto merges = [&](const sdk::StridedMatrices& one, int64_t step) {
    return one.strides[outer - 1] == step * g.shape.batch;
  };
  for (; outer > 0; --outer) {
    const int64_t size = at->leading[outer - 1];
    if (size == 1) continue;
    if (g.shape.batch == 1)
      step_a = at->a.strides[outer - 1], step_b = at->b.strides[outer - 1], step_c = at->y.strides[outer - 1];
    else if (!merges(at->a, step_a) || !merges(at->b, step_b) || !merges(at->y, step_c))
      break;
    g.shape.batch *= size;
  }
  const auto entry = [&](MatrixStrides& in, int64_t step, int64_t dense) {
    if (g.shape.batch > 1 && step != dense) in.entry = step;
  };
  entry(g.shape.in_a, step_a, g.shape.m * g.shape.k);
  entry(g.shape.in_b, step_b, g.shape.k * g.shape.n);
  entry(g.shape.in_c, step_c, g.shape.m * g.shape.n);
  std::vector<Gemm> gemms;
  int64_t all = g.shape.m * g.shape.n == 0 ? 0 : 1;
  for (const int64_t size : at->leading) all *= size;
  const int64_t bytes = dtype_bytes(a.dtype);
  const auto from = [&](const void* data, const sdk::StridedMatrices& one, int64_t i) {
    return static_cast<char*>(const_cast<void*>(data)) + one.offset_of(at->leading, i) * bytes;
  };
  for (int64_t i = 0; i < all; i += g.shape.batch) {
    g.a = from(a.ptr, at->a, i), g.b = from(b.ptr, at->b, i), g.c = from(c.ptr, at->y, i);
    gemms.push_back(g);
  }
  return gemms;
}

// Accumulates into the sum of earlier microbatches.
Gemm expert_dw_add(const OpView& view) {
  Gemm g = of_experts<true, false>(view);
  view.expect_count(view.read(3), view.write(0).count());
  g.added = view.in<float>(3);
  return g;
}

// Estimated: tensor cores reach 0.3 to 0.45 of cuBLASLt's speed in expert_gemm.cu, f32 about half; the bench
// cuda_kernel_bench --family experts measures it. cuBLASLt would multiply the slots of a later round even if it has no
// token, and then no op has written them.
bool skips_slots(const OpView& view, const Gemm& gemm) {
  if (view.integer("round") > 0) return true;
  return view.number("routed", 1) < (gemm.shape.input == PRUN_F32 ? 0.5 : 0.3) && takes_expert_gemm(gemm);
}

template <Gemm (*gemm)(const OpView&)>
KernelEntry entry_of_experts(const char* kind) {
  return {kind,
          [](const OpView& view) {
            const Gemm g = gemm(view);
            if (!skips_slots(view, g)) return make_gemm(view, g);
            return make_expert_gemm(view, g);
          },
          [](const OpView& view) { return gemm_workspace(gemm(view)); }};
}

template <Gemm (*gemm)(const OpView&)>
KernelEntry entry(const char* kind) {
  return {kind, [](const OpView& view) { return make_gemm(view, gemm(view)); },
          [](const OpView& view) { return gemm_workspace(gemm(view)); }};
}

const KernelFamily kFamily = {
    entry<linear>("linear"),
    entry<linear_dx>("linear_dx"),
    entry<linear_dw>("linear_dw"),
    entry<linear_dw_add>("linear_dw_add"),
    entry<linear_gelu>("linear_gelu"),
    entry<linear_dx_gelu>("linear_dx_gelu"),
    entry_of_experts<of_experts<false, false>>("expert_linear"),
    entry_of_experts<of_experts<false, true>>("expert_linear_dx"),
    entry_of_experts<of_experts<true, false>>("expert_linear_dw"),
    entry_of_experts<expert_dw_add>("expert_linear_dw_add"),
    {"matmul", [](const OpView& view) { return make_gemms(view, of_batch(view)); },
     [](const OpView& view) {
       const std::vector<Gemm> gemms = of_batch(view);
       return gemms.empty() ? size_t{0} : gemm_workspace(gemms.front());
     }},
};

}  // namespace
}  // namespace prun::cuda
