// Surprising fact: a reshape keeps the memory and reads it by other strides, so it can transpose.
#include "cudnn_run.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "substitute.h"

namespace substitute {
namespace {

using Index = std::array<int64_t, 4>;

size_t bytes_of(cudnnDataType_t type) { return type == CUDNN_DATA_BFLOAT16 ? 2 : type == CUDNN_DATA_BOOLEAN ? 1 : 4; }

float load(cudnnDataType_t type, const void* data, int64_t i) {
  switch (type) {
    case CUDNN_DATA_BFLOAT16:
      return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(data)[i]} << 16);
    case CUDNN_DATA_INT32:
      return static_cast<float>(static_cast<const int32_t*>(data)[i]);
    case CUDNN_DATA_BOOLEAN:
      return static_cast<const uint8_t*>(data)[i];
    default:
      return static_cast<const float*>(data)[i];
  }
}
void store(cudnnDataType_t type, void* data, int64_t i, float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  switch (type) {
    case CUDNN_DATA_BFLOAT16:
      static_cast<uint16_t*>(data)[i] =
          static_cast<uint16_t>(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
      return;
    case CUDNN_DATA_INT32:
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(x);
      return;
    case CUDNN_DATA_BOOLEAN:
      static_cast<uint8_t*>(data)[i] = x != 0 ? 1 : 0;
      return;
    default:
      static_cast<float*>(data)[i] = x;
  }
}

int64_t extent(const GraphTensor& t) {
  int64_t last = 0;
  for (int i = 0; i < 4; ++i) last += (t.dims[i] - 1) * t.strides[i];
  return last + 1;
}

// A tensor and its memory. Indexes are those of a tensor with at least as many elements along each dim: shared heads,
// and rows of a single value, are found by proportion.
struct Operand {
  GraphTensor t;
  void* data;
  int64_t place(const Index& of, const Index& dims) const {
    int64_t at = 0;
    for (int i = 0; i < 4; ++i) at += of[i] * t.dims[i] / dims[i] * t.strides[i];
    return at;
  }
  float at(const Index& of, const Index& dims) const { return load(t.type, data, place(of, dims)); }
  void put(const Index& of, const Index& dims, float x) const { store(t.type, data, place(of, dims), x); }
};

template <class F>
void for_each(const Index& dims, const F& f) {
  Index i{};
  for (i[0] = 0; i[0] < dims[0]; ++i[0])
    for (i[1] = 0; i[1] < dims[1]; ++i[1])
      for (i[2] = 0; i[2] < dims[2]; ++i[2])
        for (i[3] = 0; i[3] < dims[3]; ++i[3]) f(i);
}

class Run {
 public:
  Run(const std::map<int64_t, void*>& memory, const std::map<int64_t, float>& numbers)
      : memory_(memory), numbers_(numbers) {}

  void step(const GraphOperation& op) {
    const Operand x = operand(op.x), y = operand(op.y);
    std::vector<Operand> more;
    for (const GraphTensor& t : op.more) more.push_back(operand(t));
    switch (op.kind) {
      case GraphOperation::Kind::matmul:
        return matmul(x, more[0], y);
      case GraphOperation::Kind::pointwise:
        return for_each(y.t.dims, [&](const Index& i) { y.put(i, y.t.dims, value(op, x, more, i, y.t.dims)); });
      case GraphOperation::Kind::reduce:
        return reduce(op, x, y);
      case GraphOperation::Kind::reshape:
        for (int64_t i = 0; i < extent(x.t); ++i) store(y.t.type, y.data, i, load(x.t.type, x.data, i));
    }
  }

 private:
  Operand operand(const GraphTensor& t) {
    if (t.is_number) {
      auto& bytes = own_[t.id];
      bytes.resize(sizeof(float));
      std::memcpy(bytes.data(), &numbers_.at(t.id), sizeof(float));
      return {t, bytes.data()};
    }
    if (!t.is_virtual) return {t, memory_.at(t.id)};
    auto& bytes = own_[t.id];
    if (bytes.empty()) bytes.resize(static_cast<size_t>(extent(t)) * bytes_of(t.type), '\xff');
    return {t, bytes.data()};
  }

  // cuDNN's engines add the partial sums of their blocks to gradients in memory. The left operand of such a GEMM (the
  // gradients of scores) is f32; that of a forward graph (the probabilities) is bf16.
  static void matmul(const Operand& a, const Operand& b, const Operand& c) {
    const Index dims = c.t.dims;
    const bool adds = !c.t.is_virtual && c.t.type == CUDNN_DATA_FLOAT && a.t.type == CUDNN_DATA_FLOAT;
    for_each(dims, [&](const Index& i) {
      float sum = adds ? c.at(i, dims) : 0;
      for (int64_t k = 0; k < a.t.dims[3]; ++k)
        sum += a.at({i[0], i[1], i[2], k}, {dims[0], dims[1], dims[2], a.t.dims[3]}) *
               b.at({i[0], i[1], k, i[3]}, {dims[0], dims[1], b.t.dims[2], dims[3]});
      c.put(i, dims, sum);
    });
  }

  static void reduce(const GraphOperation& op, const Operand& x, const Operand& y) {
    const bool sum = op.mode == CUDNN_REDUCE_TENSOR_ADD;
    std::vector<float> all(static_cast<size_t>(y.t.dims[0] * y.t.dims[1] * y.t.dims[2] * y.t.dims[3]),
                           sum ? 0.0f : -std::numeric_limits<float>::infinity());
    const auto flat = [&](const Index& i, const Index& dims) {
      int64_t at = 0;
      for (int d = 0; d < 4; ++d) at = at * y.t.dims[d] + i[d] * y.t.dims[d] / dims[d];
      return static_cast<size_t>(at);
    };
    for_each(x.t.dims, [&](const Index& i) {
      float& to = all[flat(i, x.t.dims)];
      const float value = x.at(i, x.t.dims);
      to = sum ? to + value : std::max(to, value);
    });
    for_each(y.t.dims, [&](const Index& i) { y.put(i, y.t.dims, all[flat(i, y.t.dims)]); });
  }

  static float value(const GraphOperation& op, const Operand& x, const std::vector<Operand>& more, const Index& i,
                     const Index& dims) {
    if (op.mode == CUDNN_POINTWISE_GEN_INDEX) return static_cast<float>(i[static_cast<size_t>(op.axis)]);
    const float a = x.at(i, dims), b = more.empty() ? 0 : more[0].at(i, dims);
    switch (op.mode) {
      case CUDNN_POINTWISE_MUL:
        return a * b;
      case CUDNN_POINTWISE_ADD:
        return a + b;
      case CUDNN_POINTWISE_SUB:
        return a - b;
      case CUDNN_POINTWISE_DIV:
        return a / b;
      case CUDNN_POINTWISE_EXP:
        return std::exp(a);
      case CUDNN_POINTWISE_LOG:
        return std::log(a);
      case CUDNN_POINTWISE_TANH_FWD:
        return std::tanh(a);
      case CUDNN_POINTWISE_TANH_BWD:
        return b * (1 - std::tanh(a) * std::tanh(a));
      case CUDNN_POINTWISE_IDENTITY:
        return a;
      case CUDNN_POINTWISE_CMP_GE:
        return a >= b ? 1 : 0;
      case CUDNN_POINTWISE_CMP_GT:
        return a > b ? 1 : 0;
      default:  // a binary select
        return more[1].at(i, dims) != 0 ? a : b;
    }
  }

  const std::map<int64_t, void*>& memory_;
  const std::map<int64_t, float>& numbers_;
  std::map<int64_t, std::vector<char>> own_;
};

}  // namespace

bool known(const GraphOperation& op) {
  switch (op.kind) {
    case GraphOperation::Kind::matmul:
      return op.more.size() == 1 && op.x.dims[3] == op.more[0].dims[2];
    case GraphOperation::Kind::reduce:
      return op.mode == CUDNN_REDUCE_TENSOR_ADD || op.mode == CUDNN_REDUCE_TENSOR_MAX;
    case GraphOperation::Kind::reshape:
      return extent(op.x) == extent(op.y);
    case GraphOperation::Kind::pointwise:
      break;
  }
  switch (op.mode) {
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_CMP_GE:
    case CUDNN_POINTWISE_CMP_GT:
    case CUDNN_POINTWISE_TANH_BWD:
      return op.more.size() == 1;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return op.more.size() == 2;
    case CUDNN_POINTWISE_GEN_INDEX:
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_IDENTITY:
    case CUDNN_POINTWISE_TANH_FWD:
      return op.more.empty();
    default:
      return false;
  }
}

void run_graph(const std::vector<GraphOperation>& operations, const std::map<int64_t, void*>& memory,
               const std::map<int64_t, float>& numbers) {
  Run run(memory, numbers);
  for (const GraphOperation& op : operations) run.step(op);
}

}  // namespace substitute
