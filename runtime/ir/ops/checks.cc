// Ops of checks that the program itself carries.
//
// What --check-finite puts into a program: check_finite notes on the device whether an op has written a NaN or an
// infinity, and require_finite looks at all notes at the end of the body. So nobody waits for the device op by op.
#include "ir/ops/rules.h"

namespace prun::ops {

const OpDef check_finite = {
    .name = "check_finite", .role = OpRole::check, .shapes = "value, ... -> flag #1", .cost = per_input<1>};
const OpDef require_finite = {.name = "require_finite", .op_class = OpClass::host, .role = OpRole::check};

// What --check-replicas puts into a program: fingerprints of tensors that ranks have alike, which are gathered, and
// require_same, which looks at them.
const OpDef fingerprint = {
    .name = "fingerprint", .role = OpRole::check, .shapes = "value, ... -> prints", .cost = per_input<1>};
const OpDef require_same = {.name = "require_same", .op_class = OpClass::host, .role = OpRole::check};

}  // namespace prun::ops
