// Plan in, job out: the passes of pipeline.cc in their order.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

struct CompileOptions {
  std::string device = "cpu";
  bool check_finite = false;  // ops that find NaNs and infinities
  // Scratch of one op on that device; null: none needed.
  std::function<int64_t(const Program&, const Op&)> workspace_bytes;
  // Whether the device wants ops to be made one op of that kind (fuse.cc); null: it has no such kernels.
  std::function<bool(std::string_view kind)> fuses;
};

// Throws plan_error with the site of the plan's line that is wrong.
Job compile(const Plan& plan, const CompileOptions& options);

}  // namespace prun
