// The same model twice: with the plan's strategies on a small mesh, and on one rank without them.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/plan.h"
#include "prove/small_plan.h"

namespace prun {

using RecordPlan = std::function<Plan(const PlanSizes&)>;  // the plan once more, with other sizes
using FusesOp = std::function<bool(std::string_view kind)>;

struct Twins {
  PlanSizes sizes;
  Shrink shrink = Shrink::dims;  // of the model
  Plan small, one;
  Job small_job, one_job;
};

struct TwinOptions {
  const RecordPlan& record;
  const FusesOp& fuses;
  int64_t vocabulary_multiple = 1;  // of the small plan; the one rank pads nothing
  bool sgd = false;                 // plain SGD in place of the plan's optimizer
  Shrink most = Shrink::dims;       // of the model
};

// With the smallest sizes that the plan's schedule and model take; none: `why_not` says why.
std::optional<Twins> make_twins(const Plan& plan, const TwinOptions& options, std::string& why_not);

// One rank that takes the samples of each rank and microbatch as a step of its own, with weights that stay: what each
// of them contributes to the gradients.
struct Contributions {
  Plan plan;
  Job job;
  int64_t batch_ranks = 1;  // step = microbatch * batch_ranks + rank
};
Contributions make_contributions(const Plan& plan, const RecordPlan& record, const Twins& twins);

}  // namespace prun
