// Ops that the executor itself runs, on every device: the next batch, what a program prints, norms for --metrics.
#include "ir/ops/rules.h"

namespace prun::ops {
const OpDef next_batch = {.name = "next_batch", .op_class = OpClass::host, .role = OpRole::source, .side_first = 0};
const OpDef print = {.name = "print", .op_class = OpClass::host, .role = OpRole::output};
const OpDef report_norms = {.name = "report_norms", .op_class = OpClass::host, .role = OpRole::output};

}  // namespace prun::ops
