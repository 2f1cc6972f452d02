// Tells a difference: of which tensor, what made it on that rank, at which line, and what it looks like.
#pragma once
#include <optional>
#include <string>

#include "prove/compare.h"
#include "prove/twins.h"

namespace prun {

struct Explanation {
  std::string text;  // lines, without the error's first
  std::optional<Site> site;
};

// `run` with `options`, once more, shows what made the tensor; what microbatches and ranks contribute, one rank that
// trains them apart.
Explanation explain(const Plan& plan, const RecordPlan& record, const Twins& twins, const RunPair& pair,
                    const VirtualOptions& options, const Difference& difference);

}  // namespace prun
