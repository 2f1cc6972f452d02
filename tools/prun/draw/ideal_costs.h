// What each op of a step costs in an ideal timeline, in forwards of a microbatch:
//
// - A rank's compute of one microbatch: forward 1, backward 2; ops divide it by their FLOPs.
// - To reduce-scatter or gather as many bytes as the rank has gradients: 1/2; to all-reduce them: 1.
//   Each such collective takes a fifth of a message in addition.
// - The optimizer: 1/4, by bytes.
// - A message, a collective of activations or of a scalar, a copy between memories: 1/10 of a unit's forward.
#pragma once
#include <vector>

#include "ir/program.h"

namespace prun::draw {

// By stream and op of the step.
using OpCosts = std::vector<std::vector<double>>;

OpCosts ideal_costs(const Program& program);

}  // namespace prun::draw
