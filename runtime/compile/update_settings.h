// The attributes of an update that depend on the parameter: weight decay and the factor of the learning rate.
#pragma once
#include "compile/compile_state.h"

namespace prun {

// Sets them for an op that updates `count` elements of the unit's flat vector, or of each rank's shard of it, from
// element `first` on. Equal settings become `weight_decay` and `lr_factor`; otherwise the vector is listed in pieces.
void set_update_settings(const CompileState& state, UnitId unit, int64_t first, int64_t count, Attrs& attrs);

}  // namespace prun
