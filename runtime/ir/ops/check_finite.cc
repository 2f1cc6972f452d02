// What --check-finite puts into a program: check_finite notes on the device whether an op has written a NaN or an
// infinity, and require_finite looks at all notes at the end of the body. So nobody waits for the device op by op.
#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

const OpDef kCheckFiniteOps[] = {
    {.name = "check_finite", .cost = per_input<1>},
    {.name = "require_finite", .op_class = OpClass::host},
};

}  // namespace

std::span<const OpDef> check_finite() { return kCheckFiniteOps; }

}  // namespace prun::ops
