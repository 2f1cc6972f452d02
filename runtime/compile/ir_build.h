// Constructors that several passes share: buffers, tensors, views, ops.
#pragma once
#include <string>

#include "ir/program.h"

namespace prun {

// Adds a buffer and a tensor over all of it; returns the tensor. Throws plan_error if its bytes overflow.
TensorId add_tensor(Program& program, const std::string& name, Role role, TensorType type, bool persistent,
                    const Site& site);
// Adds a view of `of` with `shape`, beginning at element `first`.
TensorId add_view(Program& program, const std::string& name, TensorId of, int64_t first, const Shape& shape);
BufferId add_buffer(Program& program, const std::string& name, Role role, int64_t bytes, bool persistent,
                    const Site& site);

Op make_op(const OpDef& def, std::vector<TensorId> reads, std::vector<TensorId> writes, Phase phase, const Site& site);
// Casts to the dtype of `to`.
Op make_cast(const Program& program, TensorId from, TensorId to, Phase phase, const Site& site);
// All-reduces in place.
Op make_all_reduce(TensorId tensor, const std::string& how, const std::string& axis, Phase phase, const Site& site);
Op make_zero(TensorId tensor, Phase phase, const Site& site);

}  // namespace prun
