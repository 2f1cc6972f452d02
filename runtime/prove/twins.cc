#include "prove/twins.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "compile/compile.h"
#include "ir/ops.h"

namespace prun {
namespace {

// Small vocabularies show the same errors with few padded columns as with many.
constexpr int64_t kMostMultiple = 8;

Job compile_widened(const Plan& plan, const FusesOp& fuses, int64_t vocabulary_multiple = 1,
                    bool leaves_views = false) {
  CompileOptions options;
  options.leaves_views = leaves_views;
  options.vocabulary_multiple = std::min(vocabulary_multiple, kMostMultiple);
  options.device = "reference";
  options.widen = true;
  options.fuses = fuses;
  return compile(plan, options);
}

}  // namespace

std::optional<Twins> make_twins(const Plan& plan, const TwinOptions& options, std::string& why_not) {
  for (const PlanSizes& sizes : small_sizes(plan)) {
    for (const Shrink shrink : {Shrink::dims, Shrink::layers, Shrink::nothing}) {
      if (shrink > options.most) continue;
      try {
        Twins twins{sizes, shrink, options.record(sizes), options.record(alone(sizes)), {}, {}};
        shrink_model(plan, shrink, twins.small, {&twins.one});
        for (Plan* each : {&twins.small, &twins.one}) {
          set_conditions(*each);
          if (!options.sgd) continue;
          each->optimizer.op = &ops::sgd;
          each->optimizer.numbers = {};
          each->optimizer.others.clear();
          for (ParameterGroup& group : each->optimizer.groups) group.optimizer = 0;
          each->optimizer.clip = 0;
        }
        twins.small_job = compile_widened(twins.small, options.fuses, options.vocabulary_multiple);
        twins.one_job = compile_widened(twins.one, options.fuses, 1, true);
        return twins;
      } catch (const Error& error) {
        if (why_not.empty()) why_not = fmt::format("the plan could not be made small: {}", error.what());
      }
    }
  }
  if (why_not.empty()) why_not = fmt::format("the smallest mesh of its kind has more than {} ranks", kMostProvenRanks);
  return std::nullopt;
}

Contributions make_contributions(const Plan& plan, const RecordPlan& record, const Twins& twins) {
  PlanSizes part = alone(twins.sizes);
  Contributions made{{}, {}, batch_ranks(plan, twins.sizes.axes)};
  const int64_t steps = made.batch_ranks * twins.sizes.microbatches;
  part.batch = twins.sizes.batch / steps;
  part.microbatches = 1;
  Plan small = record(twins.sizes);
  made.plan = record(part);
  shrink_model(plan, twins.shrink, small, {&made.plan});
  set_conditions(made.plan);
  made.plan.steps = steps;
  made.plan.evaluation.reset();
  made.plan.optimizer.lr = {};
  made.plan.optimizer.clip = 0;
  made.job = compile_widened(made.plan, {});
  return made;
}

}  // namespace prun
