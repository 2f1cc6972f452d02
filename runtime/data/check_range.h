// Reads all of a plan's data once before launch: every id must have a row in the tables and logits that take it, every
// number of an array must be finite. What is wrong is found here and not in hour three.
#pragma once
#include "ir/plan.h"

namespace prun {

// Throws plan_error with the file, the place of the first id that is too large, the size that is too small, and what to
// change. Where a source cannot hold such an id (bytes and 256 rows), nothing is read. Several threads read.
void check_data(const Plan& plan);

}  // namespace prun
