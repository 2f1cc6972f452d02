// Ops of checks that are part of the program.
//
// --check-finite: check_finite records on the device whether an op has written a NaN or an infinity, and require_finite
// reads all records at the end of the body, so that no op waits for the device.
#include "ir/ops/rules.h"

namespace prun::ops {

const OpDef check_finite = {
    .name = "check_finite", .role = OpRole::check, .shapes = "value, ... -> flag #1", .cost = per_input<1>};
const OpDef require_finite = {.name = "require_finite", .op_class = OpClass::host, .role = OpRole::check};

// --check-replicas: fingerprints of tensors that are replicated over ranks are gathered, and require_same compares
// them.
const OpDef fingerprint = {
    .name = "fingerprint", .role = OpRole::check, .shapes = "value, ... -> prints", .cost = per_input<1>};
const OpDef require_same = {.name = "require_same", .op_class = OpClass::host, .role = OpRole::check};

}  // namespace prun::ops
