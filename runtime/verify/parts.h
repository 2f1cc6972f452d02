// Tensors that several ops write in parts, by the attributes `whole` and `views` of matmul and pointwise
// (prun/sdk/operand_view.h).
#pragma once
#include <optional>

#include "verify/values.h"

namespace prun::verify {

struct WrittenPart {
  int dim;
  int64_t begin, end;  // elements of the dim
};

bool writes_part(const Op& op);
// Returns whether the op's last read is the tensor with the parts that earlier ops have written.
bool continues(const Op& op);
// Returns the number of the op's operands, without that tensor.
size_t own_reads(const Op& op);
// Returns the part that the op writes; nullopt if its view of the result is no part of one dim.
std::optional<WrittenPart> written_part(const OpContext& context);

// Reports reads of tensors without some of their parts, and parts that are written twice. Sets the parts of the writes.
void follow_parts(OpContext& context);

namespace rules {
// Returns the placement of the whole tensor, given that of the op's part of it.
AxisOutcome in_whole(const AxisView& axis, const AxisPlacements& reads, AxisOutcome part);
}  // namespace rules

}  // namespace prun::verify
