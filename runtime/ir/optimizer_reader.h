// Reads the optimizer of a plan: its kind, learning rate, numbers and groups (the schema is in plan_reader.h).
#pragma once
#include "ir/plan.h"
#include "ir/plan_field.h"

namespace prun::plan_document {

Optimizer read_optimizer(const Field& field);

}  // namespace prun::plan_document
