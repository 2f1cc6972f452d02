// Copies between the two arenas of a rank: load from the host's memory to the device's, store back.
#include "ir/ops/rules.h"

namespace prun::ops {
const OpDef load = {.name = "load",
                    .op_class = OpClass::transfer,
                    .role = OpRole::transfer,
                    .moves = true,
                    .shapes = "from -> to is from"};
const OpDef store = {.name = "store",
                     .op_class = OpClass::transfer,
                     .role = OpRole::transfer,
                     .moves = true,
                     .shapes = "from -> to is from"};

}  // namespace prun::ops
