// Small constructors that several passes share: buffers, tensors, views.
#pragma once
#include <string>

#include "ir/program.h"

namespace prun {

// A buffer of its own and a tensor over all of it; returns the tensor's id.
TensorId add_tensor(Program& program, const std::string& name, Role role, TensorType type, bool persistent,
                    const Site& site);
// A view of `elements` elements from `first` of another tensor, as `shape`.
TensorId add_view(Program& program, const std::string& name, TensorId of, int64_t first, const Shape& shape);
BufferId add_buffer(Program& program, const std::string& name, Role role, int64_t bytes, bool persistent,
                    const Site& site);

}  // namespace prun
