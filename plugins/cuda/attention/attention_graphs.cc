// The graphs of operations that cuDNN recognizes as attention and its gradient, as its frontend library composes them,
// in the order that its engines expect. The softmax statistics between them are natural log-sum-exps, as in prun's ops.
#include "attention_graphs.h"

#include <limits>

namespace prun::cuda {
namespace {

using Four = CudnnGraph::Four;
using Tensor = CudnnGraph::Tensor;

constexpr cudnnDataType_t kBf16 = CUDNN_DATA_BFLOAT16, kF32 = CUDNN_DATA_FLOAT;

struct Composer {
  const CudnnAttentionShape& shape;
  CudnnGraph graph;
  Four scores{shape.batch, shape.heads, shape.queries, shape.keys};
  Four rows{shape.batch, shape.heads, shape.queries, 1};
  Four row_strides{shape.heads * shape.queries, shape.queries, 1, 1};
  Tensor inner = -1;  // the argument of tanh in capped

  // [batch, heads, queries, size].
  Tensor queries(const CudnnStrides& at, int64_t size, cudnnDataType_t type = kBf16) {
    return graph.tensor({shape.batch, shape.heads, shape.queries, size}, {at.sample, size, at.row, 1}, type);
  }
  // [batch, kv_heads, keys, size]; transposed: [batch, kv_heads, size, keys].
  Tensor keys(const CudnnStrides& at, int64_t size, bool transposed = false) {
    const int64_t b = shape.batch, h = shape.kv_heads, t = shape.keys;
    return transposed ? graph.tensor({b, h, size, t}, {at.sample, size, 1, at.row}, kBf16)
                      : graph.tensor({b, h, t, size}, {at.sample, size, at.row, 1}, kBf16);
  }
  Tensor row_values() { return graph.statistics(rows, row_strides); }

  Tensor apply(cudnnPointwiseMode_t mode, Tensor x, Tensor b = -1) {
    const Tensor y = graph.between(scores, kF32);
    graph.pointwise(mode, x, y, b);
    return y;
  }
  Tensor scaled(Tensor x) { return apply(CUDNN_POINTWISE_MUL, x, graph.number(shape.scale)); }
  // Bounds scores by the cap.
  Tensor capped(Tensor x) {
    if (shape.cap == 0) return x;
    inner = apply(CUDNN_POINTWISE_DIV, x, graph.number(shape.cap));
    return apply(CUDNN_POINTWISE_MUL, apply(CUDNN_POINTWISE_TANH_FWD, inner), graph.number(shape.cap));
  }
  // Returns the gradient of scores, given that of capped ones.
  Tensor uncapped(Tensor dy) {
    if (shape.cap == 0) return dy;
    const Tensor dx = graph.between(scores, kF32);
    graph.pointwise_gradient(CUDNN_POINTWISE_TANH_BWD, apply(CUDNN_POINTWISE_MUL, dy, graph.number(shape.cap)), inner,
                             dx);
    return apply(CUDNN_POINTWISE_DIV, dx, graph.number(shape.cap));
  }
  // Sets scores to -infinity where the key's index is above the query's, or the window does not reach it.
  Tensor masked(Tensor x) {
    if (!shape.causal) return x;
    const Tensor y = banded(x, false);
    return shape.window == 0 ? y : banded(y, true);
  }
  // One bound of the keys. Engines find a window in the sum key + window, an f32.
  Tensor banded(Tensor x, bool from_left) {
    const Tensor query = graph.between(scores, CUDNN_DATA_INT32), key = graph.between(scores, CUDNN_DATA_INT32);
    const Tensor sees = graph.between(scores, CUDNN_DATA_BOOLEAN), y = graph.between(scores, kF32);
    graph.index(2, x, query);
    graph.index(3, x, key);
    if (from_left) {
      const Tensor end = apply(CUDNN_POINTWISE_ADD, key, graph.number(static_cast<float>(shape.window)));
      graph.pointwise(CUDNN_POINTWISE_CMP_GT, end, sees, query);
    } else {
      graph.pointwise(CUDNN_POINTWISE_CMP_GE, query, sees, key);
    }
    // Before 9.10 its engines require a finite number.
    using Limits = std::numeric_limits<float>;
    const float unseen = cudnnGetVersion() < 91000 ? Limits::lowest() : -Limits::infinity();
    graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, x, y, graph.number(unseen), sees);
    return y;
  }
  Tensor row_between() { return graph.between(rows, row_strides, kF32); }
};

}  // namespace

CudnnGraph attention_graph(const CudnnAttentionShape& shape) {
  Composer c{shape, {}};
  CudnnGraph& g = c.graph;
  const Tensor q = c.queries(shape.q, shape.head), k = c.keys(shape.k, shape.head, true);
  const Tensor v = c.keys(shape.v, shape.value), out = c.queries(shape.out, shape.value, shape.f32_out ? kF32 : kBf16);
  const Tensor lse = c.row_values();

  const Tensor products = g.between(c.scores, kF32);
  g.matmul(q, k, products);
  const Tensor scores = c.masked(c.capped(c.scaled(products)));
  const Tensor top = c.row_between(), sum = c.row_between(), log_sum = c.row_between();
  g.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, top);
  const Tensor powers = c.apply(CUDNN_POINTWISE_EXP, c.apply(CUDNN_POINTWISE_SUB, scores, top));
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, powers, sum);
  g.pointwise(CUDNN_POINTWISE_LOG, sum, log_sum);
  g.pointwise(CUDNN_POINTWISE_ADD, top, lse, log_sum);
  const Tensor probabilities = g.between(c.scores, kBf16);
  g.pointwise(CUDNN_POINTWISE_DIV, powers, probabilities, sum);
  g.matmul(probabilities, v, out);
  return std::move(c.graph);
}

CudnnGraph attention_gradient_graph(const CudnnAttentionShape& shape, bool summed) {
  Composer c{shape, {}};
  CudnnGraph& g = c.graph;
  const int64_t b = shape.batch, h = shape.heads, t = shape.queries, u = shape.keys, d = shape.head, e = shape.value;
  const Tensor q = c.queries(shape.q, d), k = c.keys(shape.k, d, true), v = c.keys(shape.v, e, true);
  const Tensor out = c.queries(shape.out, e), dout = c.queries(shape.out, e);
  const Tensor lse = c.row_values(), dots = c.row_values();
  const Tensor dq = c.queries(shape.dq, d), dk = c.keys(shape.dk, d), dv = c.keys(shape.dv, e);

  // dots = Σ out·dout of each row.
  const Tensor along = g.between({b, h, t, e}, {h * t * e, e, h * e, 1}, kF32), along_row = c.row_between();
  g.pointwise(CUDNN_POINTWISE_MUL, dout, along, out);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, along, along_row);
  g.pointwise(CUDNN_POINTWISE_MUL, along_row, dots, g.number(1.0f));

  // Computes a gradient of keys or values: xᵀ·y, summed over the heads that share one.
  const auto product_of_transposed = [&](Tensor x, Tensor y, int64_t size, Tensor to) {
    const Tensor transposed = g.between({b, h, u, t}, {h * t * u, t * u, 1, u}, kBf16);
    g.reshape(x, transposed);
    if (shape.heads == shape.kv_heads) return g.matmul(transposed, y, to);
    const Tensor all = g.between({b, h, u, size}, kBf16);
    g.matmul(transposed, y, all);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, all, to);
  };

  const Tensor products = g.between(c.scores, kF32);
  g.matmul(q, k, products);
  const Tensor p =
      c.apply(CUDNN_POINTWISE_EXP, c.masked(c.apply(CUDNN_POINTWISE_SUB, c.capped(c.scaled(products)), lse)));
  product_of_transposed(p, dout, e, dv);
  const Tensor dp = g.between(c.scores, kF32);
  g.matmul(dout, v, dp);
  const Tensor ds = c.scaled(c.uncapped(c.apply(CUDNN_POINTWISE_MUL, c.apply(CUDNN_POINTWISE_SUB, dp, dots), p)));
  product_of_transposed(ds, q, d, dk);
  const Tensor keys = g.between({b, shape.kv_heads, u, d}, {shape.k.sample, d, shape.k.row, 1}, kBf16);
  g.reshape(k, keys);
  if (summed) {
    const Tensor sums = g.tensor({b, h, t, d}, {h * t * d, t * d, d, 1}, kF32);
    g.matmul(ds, keys, sums);
    g.pointwise(CUDNN_POINTWISE_IDENTITY, sums, dq);
  } else {
    g.matmul(ds, keys, dq);
  }
  return std::move(c.graph);
}

}  // namespace prun::cuda
