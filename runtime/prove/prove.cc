#include "prove/prove.h"

#include <fmt/format.h>

#include <algorithm>

#include "compile/compile.h"
#include "prove/compare.h"
#include "prove/small_plan.h"

namespace prun {
namespace {

Job compile_widened(const Plan& plan, const ProofOptions& options) {
  CompileOptions compile_options;
  compile_options.device = "reference";
  compile_options.widen = true;
  compile_options.fuses = options.fuses;
  return compile(plan, compile_options);
}

// The same model twice: with the plan's strategies on a small mesh, and on one rank.
struct Twins {
  Plan small, one;
  Job small_job, one_job;
};

// The smallest sizes that the plan's schedule and model take.
std::optional<Twins> make_twins(const Plan& plan, const ProofOptions& options, std::string& why_not) {
  for (const PlanSizes& sizes : small_sizes(plan)) {
    for (const bool shrinks : {true, false}) {
      try {
        Twins twins{options.record(sizes), options.record(alone(sizes)), {}, {}};
        if (shrinks) shrink_model(plan, twins.small, twins.one);
        for (Plan* each : {&twins.small, &twins.one}) set_conditions(*each);
        twins.small_job = compile_widened(twins.small, options);
        twins.one_job = compile_widened(twins.one, options);
        return twins;
      } catch (const Error& error) {
        if (why_not.empty()) why_not = error.what();
      }
    }
  }
  if (why_not.empty()) why_not = fmt::format("its smallest mesh has more than {} ranks", kMostProvenRanks);
  return std::nullopt;
}

}  // namespace

Proof prove(const Plan& plan, const ProofOptions& options) {
  Proof proof;
  if (!plan.programs.empty()) {
    proof.text = "a program of explicit ops has no model that one rank could train";
    return proof;
  }
  std::string why_not;
  const std::optional<Twins> twins = make_twins(plan, options, why_not);
  if (!twins) {
    proof.text = "the plan could not be made small: " + why_not;
    return proof;
  }
  const std::unique_ptr<Device> device = open_device("reference");
  const VirtualRun one = run_virtual_ranks(twins->one_job, *device);
  for (int seed = 1; seed <= options.interleavings; seed++) {
    const VirtualRun run = run_virtual_ranks(twins->small_job, *device,
                                             {.order = VirtualOrder::random, .seed = static_cast<uint64_t>(seed)});
    const Comparison comparison = compare({twins->small_job, run, twins->one_job, one});
    proof.largest = std::max(proof.largest, comparison.largest);
    if (!comparison.first) continue;
    const Difference& first = *comparison.first;
    proof.verdict = Proof::Verdict::differs;
    proof.text = fmt::format("{} differs on rank {}: {} is {}, {} on one rank", first.what, first.rank, first.held.unit,
                             first.found, first.expected);
    return proof;
  }
  proof.verdict = Proof::Verdict::equal;
  proof.text = fmt::format("on {} ranks ({})", twins->small.mesh.ranks(), twins->small.mesh.text());
  return proof;
}

}  // namespace prun
