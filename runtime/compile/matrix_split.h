// How the split of a parameter divides its matrices, which are its last two dims.
#pragma once
#include <iterator>
#include <string>

#include "ir/graph.h"
#include "ir/split_axes.h"

namespace prun {

struct MatrixSplit {
  std::string apart;   // the axes whose ranks have different matrices, such as experts: "ep" or "ep,tp"; "" = none
  std::string joined;  // the axis whose ranks have parts of each matrix; "" = none
};

inline MatrixSplit matrix_split(const Value& parameter) {
  const SplitAxes axes(parameter.split_axis);
  if (!axes.split.empty() && parameter.split_dim + 2 >= std::ssize(parameter.type.shape))
    return {axes.part, axes.split};
  return {parameter.split_axis, ""};
}

}  // namespace prun
