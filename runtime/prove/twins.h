// The same model twice: with the plan's strategies on a small mesh, and on one rank without strategies.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/plan.h"
#include "prove/small_plan.h"

namespace prun {

using RecordPlan = std::function<Plan(const PlanSizes&)>;  // records the plan again with other sizes
using FusesOp = std::function<bool(std::string_view kind)>;

struct Twins {
  PlanSizes sizes;
  Shrink shrink = Shrink::dims;  // degree of shrinking of the model
  Plan small, one;
  Job small_job, one_job;
};

struct TwinOptions {
  const RecordPlan& record;
  const FusesOp& fuses;
  int64_t vocabulary_multiple = 1;  // multiple for the small plan; the single rank pads nothing
  bool sgd = false;                 // plain SGD replaces the plan's optimizer
  Shrink most = Shrink::dims;       // upper bound for shrinking the model
};

// Makes twins with the smallest sizes that the plan's schedule and model accept; nullopt: `why_not` has the reason.
std::optional<Twins> make_twins(const Plan& plan, const TwinOptions& options, std::string& why_not);

// A single rank that processes the samples of each rank and microbatch as a step of its own, with constant weights, to
// find the contribution of each to the gradients.
struct Contributions {
  Plan plan;
  Job job;
  int64_t batch_ranks = 1;  // step = microbatch * batch_ranks + rank
};
Contributions make_contributions(const Plan& plan, const RecordPlan& record, const Twins& twins);

}  // namespace prun
