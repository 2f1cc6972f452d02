// When a loss differs: the first activation of forward that is no part of what one rank has, whole, a shard along some
// axes, or a part of a sum.
#pragma once
#include <optional>
#include <string>

#include "exec/virtual_ranks.h"
#include "prove/twins.h"

namespace prun {

struct FirstActivation {
  std::string name;
  int rank = 0;
  Op op;  // that made it
  std::string looks;
};

// Of `body`, by a run of the twins with `options`. None: all activations that have one rank's shape are parts of it.
std::optional<FirstActivation> first_activation(const Twins& twins, const VirtualOptions& options, BodyId body);

}  // namespace prun
