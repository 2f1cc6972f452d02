// Copies between the two arenas of a rank: load from the host's memory to the device's, store back.
#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

const OpDef kTransfersOps[] = {
    {.name = "load", .op_class = OpClass::transfer},
    {.name = "store", .op_class = OpClass::transfer},
};

}  // namespace

std::span<const OpDef> transfers() { return kTransfersOps; }

}  // namespace prun::ops
