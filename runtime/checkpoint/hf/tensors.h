// The tensors of a description: each of theirs as boxes of ours, one above the other.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/hf/description.h"
#include "ir/types.h"

namespace prun::checkpoint {

// Consecutive rows of a tensor of theirs: a box of one of ours.
struct HfPart {
  std::string ours;
  Shape whole;             // shape of our tensor
  Shape offset, shape;     // position of the box in it
  std::vector<int> order;  // dims of the rows, outermost first, as dims of ours; omitted dims have length 1
};

struct HfTensor {
  std::string theirs;
  Shape shape;
  std::vector<HfPart> parts;  // in the order of their rows
  bool copy = false;          // a second name of a tensor, which only PyTorch's state dicts have
  Site site;                  // in the description
};

// Returns the shape of a tensor; nullopt: there is none.
using ShapeOf = std::function<std::optional<Shape>(const std::string& name)>;

// Returns the tensors that a model of these arguments has. `ours`, `theirs`: shapes of existing tensors, for sizes that
// the description omits. Throws checkpoint_invalid for a size that neither gives.
std::vector<HfTensor> described_tensors(const Description& description, const Attrs& settled, const ShapeOf& ours,
                                        const ShapeOf& theirs);

}  // namespace prun::checkpoint
