// Kinds are compared by the types of operands, because ops of two microbatches have different tensors.
#include "ir/per_kind.h"

#include <cstdint>

namespace prun {

bool CostKind::in_place(const Op& op) const {
  if (op.reads.empty() || op.writes.empty()) return false;
  const Tensor &from = program_->tensors[op.reads[0]], &to = program_->tensors[op.writes[0]];
  return from.buffer == to.buffer && from.byte_offset == to.byte_offset;
}

size_t CostKind::hash(const Op& op) const {
  size_t hash = 0;
  const auto mix = [&hash](size_t one) { hash = (hash ^ one) * 0x9E3779B97F4A7C15U; };
  mix(reinterpret_cast<uintptr_t>(op.def));
  mix(reinterpret_cast<uintptr_t>(&op.attrs.values()));
  mix(static_cast<size_t>(op.phase));
  if (!op.reads.empty())
    for (const int64_t dim : program_->tensors[op.reads[0]].shape) mix(static_cast<size_t>(dim));
  return hash ^ hash >> 32U;
}

bool CostKind::equal(const Op& a, const Op& b) const {
  const auto same_type = [&](TensorId x, TensorId y) {
    const Tensor &of_a = program_->tensors[x], &of_b = program_->tensors[y];
    return of_a.dtype == of_b.dtype && of_a.shape == of_b.shape;
  };
  const auto role = [&](const Op& op) { return program_->buffers[program_->tensors[op.writes[0]].buffer].role; };
  return a.def == b.def && &a.attrs.values() == &b.attrs.values() && a.phase == b.phase &&
         std::ranges::equal(a.reads, b.reads, same_type) && std::ranges::equal(a.writes, b.writes, same_type) &&
         (a.writes.empty() || role(a) == role(b)) && in_place(a) == in_place(b);
}

}  // namespace prun
