// The operations of the cuDNN graphs that plugins/cuda composes, sequentially in plain loops.
#pragma once
#include <cudnn_graph.h>

#include <array>
#include <cstdint>
#include <map>
#include <vector>

namespace substitute {

struct GraphTensor {
  int64_t id = 0;
  std::array<int64_t, 4> dims{}, strides{};
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  bool is_virtual = false, is_number = false;
};

struct GraphOperation {
  enum class Kind { matmul, pointwise, reduce, reshape } kind;
  int mode = 0;  // cudnnPointwiseMode_t, cudnnReduceTensorOp_t
  int axis = 0;  // of an index
  GraphTensor x, y;
  std::vector<GraphTensor> more;  // b, or b and the condition, or dy
};

bool known(const GraphOperation& operation);
// Runs a graph. `memory`: of tensors in memory; `numbers`: of those by value.
void run_graph(const std::vector<GraphOperation>& operations, const std::map<int64_t, void*>& memory,
               const std::map<int64_t, float>& numbers);

}  // namespace substitute
