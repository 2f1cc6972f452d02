// Ops that make tensors from attributes: initial parameters, and the sources of level 3 programs. Their outputs are
// declared, not inferred.
#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

const OpDef kConstantsOps[] = {
    {.name = "fill"},   {.name = "init_params", .cost = per_output<20>},  // Philox and Box-Muller, an estimate
    {.name = "values"}, {.name = "random_int"},
    {.name = "iota"},
};

}  // namespace

std::span<const OpDef> constants() { return kConstantsOps; }

}  // namespace prun::ops
