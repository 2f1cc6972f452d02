// The graphs of operations by which cuDNN knows attention and its gradient: what its frontend library composes, in the
// order that its engines recognize. The softmax statistics between them are natural log-sum-exps, as our ops' are.
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
  Four scores{shape.batch, shape.heads, shape.length, shape.length};
  Four rows{shape.batch, shape.heads, shape.length, 1}, row_strides{shape.all_heads * shape.length, shape.length, 1, 1};

  // [batch, heads, length, head] in a packed tensor whose rows are `row` long; transposed: [batch, heads, head,
  // length].
  Tensor heads(int64_t heads, int64_t row, bool transposed = false) {
    const int64_t b = shape.batch, t = shape.length, d = shape.head;
    return transposed ? graph.tensor({b, heads, d, t}, {t * row, d, 1, row}, kBf16)
                      : graph.tensor({b, heads, t, d}, {t * row, d, row, 1}, kBf16);
  }
  int64_t packed() const { return (shape.all_heads + 2 * shape.all_kv_heads) * shape.head; }
  int64_t width() const { return shape.all_heads * shape.head; }

  Tensor apply(cudnnPointwiseMode_t mode, Tensor x, Tensor b = -1) {
    const Tensor y = graph.between(scores, kF32);
    graph.pointwise(mode, x, y, b);
    return y;
  }
  Tensor scaled(Tensor x) {
    return apply(CUDNN_POINTWISE_MUL, x, graph.number(1.0f / std::sqrt(static_cast<float>(shape.head))));
  }
  // -infinity where the key's index is above the query's.
  Tensor masked(Tensor x) {
    if (!shape.causal) return x;
    const Tensor query = graph.between(scores, CUDNN_DATA_INT32), key = graph.between(scores, CUDNN_DATA_INT32);
    const Tensor sees = graph.between(scores, CUDNN_DATA_BOOLEAN), y = graph.between(scores, kF32);
    graph.index(2, x, query);
    graph.index(3, x, key);
    graph.pointwise(CUDNN_POINTWISE_CMP_GE, query, sees, key);
    // Before 9.10 its engines want a number there.
    using Limits = std::numeric_limits<float>;
    const float unseen = cudnnGetVersion() < 91000 ? Limits::lowest() : -Limits::infinity();
    graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, x, y, graph.number(unseen), sees);
    return y;
  }
  Tensor row_value() { return graph.between(rows, row_strides, kF32); }
};

}  // namespace

CudnnGraph attention_graph(const CudnnAttentionShape& shape) {
  Composer c{shape, {}};
  CudnnGraph& g = c.graph;
  const Tensor q = c.heads(shape.heads, c.packed()), k = c.heads(shape.kv_heads, c.packed(), true);
  const Tensor v = c.heads(shape.kv_heads, c.packed()), out = c.heads(shape.heads, c.width());
  const Tensor lse = g.tensor(c.rows, c.row_strides, kF32);

  const Tensor products = g.between(c.scores, kF32);
  g.matmul(q, k, products);
  const Tensor scores = c.masked(c.scaled(products));
  const Tensor top = c.row_value(), sum = c.row_value(), log_sum = c.row_value();
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
  const Tensor q = c.heads(shape.heads, c.packed()), k = c.heads(shape.kv_heads, c.packed(), true);
  const Tensor v = c.heads(shape.kv_heads, c.packed(), true);
  const Tensor out = c.heads(shape.heads, c.width()), dout = c.heads(shape.heads, c.width());
  const Tensor lse = g.tensor(c.rows, c.row_strides, kF32), dots = g.tensor(c.rows, c.row_strides, kF32);
  const Tensor dq = c.heads(shape.heads, c.packed()), dk = c.heads(shape.kv_heads, c.packed());
  const Tensor dv = c.heads(shape.kv_heads, c.packed());
  const int64_t b = shape.batch, h = shape.heads, t = shape.length, d = shape.head;

  // dots = Σ out·dout of each row.
  const Tensor along = g.between({b, h, t, d}, {h * t * d, d, h * d, 1}, kF32), along_row = c.row_value();
  g.pointwise(CUDNN_POINTWISE_MUL, dout, along, out);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, along, along_row);
  g.pointwise(CUDNN_POINTWISE_MUL, along_row, dots, g.number(1.0f));

  // A gradient with regard to keys or values: xᵀ·y, and with shared heads the sum over those that share one.
  const auto product_of_transposed = [&](Tensor x, Tensor y, Tensor to) {
    const Tensor turned = g.between({b, h, t, t}, {h * t * t, t * t, 1, t}, kBf16);
    g.reshape(x, turned);
    if (shape.heads == shape.kv_heads) return g.matmul(turned, y, to);
    const Tensor all = g.between({b, h, t, d}, kBf16);
    g.matmul(turned, y, all);
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
  const int64_t row = c.packed();
  const Tensor keys = g.between({b, shape.kv_heads, t, d}, {t * row, d, row, 1}, kBf16);
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
