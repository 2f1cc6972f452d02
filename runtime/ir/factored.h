// Operands of Adafactor's ops, for passes, the shape rule and the verifier; kernels read the same lists through
// prun/sdk/factored_updates.h.
#pragma once
#include "ir/op_def.h"
#include "ir/ops.h"
#include "prun/sdk/factored_updates.h"

namespace prun {

struct OperandCounts {
  size_t reads, writes;
};

// Returns the numbers of operands of one of the three ops, without clip.
inline OperandCounts factored_counts(const OpDef& op, const std::vector<sdk::FactoredParameter>& parameters) {
  const auto vectors = sdk::factored_operands(parameters);
  const size_t means = vectors.means, norms = vectors.norms;
  if (&op == &ops::factor_means) return {2, means};
  if (&op == &ops::factor_norms) return {2 + 2 * means, means + norms};
  return {2 + means + norms, 1};
}

}  // namespace prun
