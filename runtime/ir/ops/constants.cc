// Ops that create tensors from attributes: initial parameters, and the sources of level 3 programs. Their output types
// are declared, not inferred.
#include "ir/ops/rules.h"

namespace prun::ops {
const OpDef fill = {.name = "fill", .role = OpRole::source};
const OpDef init_params = {
    .name = "init_params", .role = OpRole::source, .cost = per_output<20>};  // Philox and Box-Muller, estimated
const OpDef values = {.name = "values", .role = OpRole::source, .shapes = "-> y #values"};
const OpDef random_int = {.name = "random_int", .role = OpRole::source};
const OpDef iota = {.name = "iota", .role = OpRole::source};

}  // namespace prun::ops
