// Ops that the executor itself runs, on every device: the next batch, and what a program prints.
#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

const OpDef kHostOps[] = {
    {.name = "next_batch", .op_class = OpClass::host},
    {.name = "print", .op_class = OpClass::host},
};

}  // namespace

std::span<const OpDef> host() { return kHostOps; }

}  // namespace prun::ops
