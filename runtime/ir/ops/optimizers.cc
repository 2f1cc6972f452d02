// The optimizers and the two ops of global-norm clipping. The optimizer pass makes them; they are no part of a model.
// Those that end in _cast write a copy of the parameters in the dtype of compute beside them.
#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

const OpDef kOptimizersOps[] = {
    {.name = "sgd", .cost = per_output<4>},    {.name = "sgd_cast", .cost = per_output<4>},
    {.name = "adamw", .cost = per_output<14>}, {.name = "adamw_cast", .cost = per_output<14>},
    {.name = "norm2", .cost = per_input<2>},   {.name = "clip_coefficient", .cost = per_output<4>},
};

}  // namespace

std::span<const OpDef> optimizers() { return kOptimizersOps; }

}  // namespace prun::ops
