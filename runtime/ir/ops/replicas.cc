// What --check-replicas puts into a program: fingerprints of tensors that ranks have alike, which are gathered, and
// require_same, which looks at them.
#include "ir/ops/rules.h"

namespace prun::ops {
const OpDef fingerprint = {
    .name = "fingerprint", .role = OpRole::check, .shapes = "value, ... -> prints", .cost = per_input<1>};
const OpDef require_same = {.name = "require_same", .op_class = OpClass::host, .role = OpRole::check};

}  // namespace prun::ops
