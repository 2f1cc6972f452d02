// Handles of all ops, by which code refers to them: op.is(ops::linear). ops/list.def is the list.
#pragma once
#include "ir/op_def.h"

namespace prun::ops {

#define OP(name) extern const OpDef name;
#include "ir/ops/list.def"
#undef OP

}  // namespace prun::ops
