// The graphs of operations that cuDNN recognizes as attention and its gradient, as its frontend library composes them,
// in the order that its engines expect. The softmax statistics between them are natural log-sum-exps, as in prun's ops.
#include "attention_graphs.h"

#include <cmath>
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
  Four rows{shape.batch, shape.heads, shape.queries, 1}, row_strides{shape.lse.sample, shape.lse.row, 1, 1};

  // [batch, heads, queries, head].
  Tensor queries(const CudnnStrides& at, cudnnDataType_t type = kBf16) {
    return graph.tensor({shape.batch, shape.heads, shape.queries, shape.head}, {at.sample, shape.head, at.row, 1},
                        type);
  }
  // [batch, kv_heads, keys, head]; transposed: [batch, kv_heads, head, keys].
  Tensor keys(const CudnnStrides& at, bool transposed = false) {
    const int64_t b = shape.batch, h = shape.kv_heads, t = shape.keys, d = shape.head;
    return transposed ? graph.tensor({b, h, d, t}, {at.sample, d, 1, at.row}, kBf16)
                      : graph.tensor({b, h, t, d}, {at.sample, d, at.row, 1}, kBf16);
  }
  Tensor row_values() { return graph.statistics(rows, row_strides); }

  Tensor apply(cudnnPointwiseMode_t mode, Tensor x, Tensor b = -1) {
    const Tensor y = graph.between(scores, kF32);
    graph.pointwise(mode, x, y, b);
    return y;
  }
  Tensor scaled(Tensor x) {
    return apply(CUDNN_POINTWISE_MUL, x, graph.number(1.0f / std::sqrt(static_cast<float>(shape.head))));
  }
  // Sets scores to -infinity where the key's index is above the query's.
  Tensor masked(Tensor x) {
    if (!shape.causal) return x;
    const Tensor query = graph.between(scores, CUDNN_DATA_INT32), key = graph.between(scores, CUDNN_DATA_INT32);
    const Tensor sees = graph.between(scores, CUDNN_DATA_BOOLEAN), y = graph.between(scores, kF32);
    graph.index(2, x, query);
    graph.index(3, x, key);
    graph.pointwise(CUDNN_POINTWISE_CMP_GE, query, sees, key);
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
  const Tensor q = c.queries(shape.q), k = c.keys(shape.kv, true), v = c.keys(shape.kv);
  const Tensor out = c.queries(shape.out, shape.f32_out ? kF32 : kBf16);
  const Tensor lse = c.row_values();

  const Tensor products = g.between(c.scores, kF32);
  g.matmul(q, k, products);
  const Tensor scores = c.masked(c.scaled(products));
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
  const Tensor q = c.queries(shape.q), k = c.keys(shape.kv, true), v = c.keys(shape.kv, true);
  const Tensor out = c.queries(shape.out), dout = c.queries(shape.out);
  const Tensor lse = c.row_values(), dots = c.row_values();
  const Tensor dq = c.queries(shape.dq), dk = c.keys(shape.dkv), dv = c.keys(shape.dkv);
  const int64_t b = shape.batch, h = shape.heads, t = shape.queries, u = shape.keys, d = shape.head;

  // dots = Σ out·dout of each row.
  const Tensor along = g.between({b, h, t, d}, {h * t * d, d, h * d, 1}, kF32), along_row = c.row_between();
  g.pointwise(CUDNN_POINTWISE_MUL, dout, along, out);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, along, along_row);
  g.pointwise(CUDNN_POINTWISE_MUL, along_row, dots, g.number(1.0f));

  // Computes a gradient of keys or values: xᵀ·y, summed over the heads that share one.
  const auto product_of_transposed = [&](Tensor x, Tensor y, Tensor to) {
    const Tensor transposed = g.between({b, h, u, t}, {h * t * u, t * u, 1, u}, kBf16);
    g.reshape(x, transposed);
    if (shape.heads == shape.kv_heads) return g.matmul(transposed, y, to);
    const Tensor all = g.between({b, h, u, d}, kBf16);
    g.matmul(transposed, y, all);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, all, to);
  };

  const Tensor products = g.between(c.scores, kF32);
  g.matmul(q, k, products);
  const Tensor p = c.apply(CUDNN_POINTWISE_EXP, c.masked(c.apply(CUDNN_POINTWISE_SUB, c.scaled(products), lse)));
  product_of_transposed(p, dout, dv);
  const Tensor dp = g.between(c.scores, kF32);
  g.matmul(dout, v, dp);
  const Tensor ds = c.scaled(c.apply(CUDNN_POINTWISE_MUL, c.apply(CUDNN_POINTWISE_SUB, dp, dots), p));
  product_of_transposed(ds, q, dk);
  const Tensor keys = g.between({b, shape.kv_heads, u, d}, {shape.kv.sample, d, shape.kv.row, 1}, kBf16);
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
