// Which boxes are drawn as one from afar, and what op is of which kind.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "draw/timeline.h"

namespace prun::draw {

// What is known of an op when its kind is asked for; `role`: of the memory that it writes, "" where it is not known.
struct OpFacts {
  std::string_view name, phase, role;
  bool communicates = false;
};
BoxKind kind_of(const OpFacts& op);

// Marks gradients of weights where a schedule puts them apart from those of activations (zero bubble); elsewhere both
// are one backward.
void tell_weight_gradients(Timeline& timeline);

// Runs of a lane's boxes of one kind, unit and microbatch, or in a pipeline's compute of one kind and microbatch.
std::vector<Group> groups_of(const Timeline& timeline);

}  // namespace prun::draw
