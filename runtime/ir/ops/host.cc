// Ops that the executor itself runs, on every device: the next batch, and what a program prints.
#include "ir/ops/rules.h"

namespace prun::ops {
const OpDef next_batch = {.name = "next_batch", .op_class = OpClass::host, .role = OpRole::source, .side_first = 0};
const OpDef print = {.name = "print", .op_class = OpClass::host, .role = OpRole::output};

}  // namespace prun::ops
