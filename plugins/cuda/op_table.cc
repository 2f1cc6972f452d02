// The table of kernels, gathered from the families: a new family is a file and two lines here.
#include <map>

#include "op.h"

// clang-format off
#define PRUN_CUDA_FAMILIES(X) \
  X(init) X(optimizer) X(dropout) X(embedding) X(embedding_grad) X(positions) X(rotary) X(rotary_at) X(cached_attention) X(pieces) X(route) X(dispatch) \
  X(activation) X(attention) X(bias) X(cross_entropy) X(elementwise) X(expert_linear) X(linear) X(loss) X(norm) X(row_norm) X(row_norm_grad) X(split_cross_entropy) X(check_finite) X(fingerprint)
// clang-format on

namespace prun::cuda {

#define PRUN_DECLARE_FAMILY(name) std::span<const KernelEntry> name##_kernels();
PRUN_CUDA_FAMILIES(PRUN_DECLARE_FAMILY)
#undef PRUN_DECLARE_FAMILY

const KernelEntry* find_entry(std::string_view kind) {
  static const std::map<std::string_view, const KernelEntry*> table = [] {
    std::map<std::string_view, const KernelEntry*> all;
#define PRUN_ADD_FAMILY(name) \
  for (const KernelEntry& entry : name##_kernels()) all[entry.kind] = &entry;
    PRUN_CUDA_FAMILIES(PRUN_ADD_FAMILY)
#undef PRUN_ADD_FAMILY
    return all;
  }();
  const auto found = table.find(kind);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace prun::cuda
