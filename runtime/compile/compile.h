// Plan in, job out: the passes of pipeline.cc in their order.
#pragma once
#include <cstdint>
#include <functional>

#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

struct CompileOptions {
  std::string device = "cpu";
  // Scratch of one op on that device; null: none needed.
  std::function<int64_t(const Program&, const Op&)> workspace_bytes;
};

// Throws plan_error with the site of the plan's line that is wrong.
Job compile(const Plan& plan, const CompileOptions& options);

}  // namespace prun
