// The sequence: make the twins, run one rank, run the ranks under each interleaving. A plan whose weights drift is then
// proven again with plain SGD, because its averages then equal the single rank's weights.
#include "prove/prove.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "base/text.h"
#include "compile/compile.h"
#include "ir/op_cost.h"
#include "ir/ops.h"
#include "kernels/devices.h"
#include "prove/explain.h"
#include "prove/small_plan.h"

namespace prun {
namespace {

constexpr std::string_view kDrifts = "weights drift between averages";
constexpr double kNudge = 1e-12;  // relative change of the learning rate: above rounding error, far below the effect of
                                  // a fault
constexpr double kMostConfirming = 1e6;  // upper bound of the work to confirm a difference, in microseconds

// The plan's declarations about drift.
struct Claims {
  std::vector<std::string> drift_axes;  // axes over which weights are averaged between steps
  const Strategy* drifts = nullptr;     // the first strategy that averages weights
  const Strategy* differs = nullptr;    // the first strategy that declares a difference
  bool drift_is_claimed() const { return differs != nullptr && differs->differs == kDrifts; }
};

Claims claims_of(const Plan& plan) {
  Claims claims;
  std::set<std::string> axes;
  const auto alone = [&](const std::string& axis) { return plan.mesh.size(axis) == 1; };
  for (const Strategy& strategy : plan.strategies) {
    const bool drifts_alone = strategy.differs == kDrifts && !strategy.axes.empty() &&
                              std::all_of(strategy.axes.begin(), strategy.axes.end(), alone);
    if (!strategy.differs.empty() && !drifts_alone && claims.differs == nullptr) claims.differs = &strategy;
    for (const StrategyUnit& unit : strategy.units)
      for (const HookAction& action : unit.sync) {
        if (alone(action.axis)) continue;
        axes.insert(action.axis);
        if (claims.drifts == nullptr) claims.drifts = &strategy;
      }
  }
  claims.drift_axes = {axes.begin(), axes.end()};
  return claims;
}

double job_work(const Job& job) {
  double work = 0;
  for (int rank = 0; rank < std::ssize(job.class_of_rank); rank++)
    for (const Body& body : job.program(rank).bodies)
      for (const Stream& stream : body.streams)
        for (const Op& op : stream.ops) {
          const Cost cost = op_cost(job.program(rank), op);
          work += 2 + cost.flops / 500 + cost.bytes / 4000;
        }
  return work;
}

// Returns for example "dp=2 x tp=2, 3 microbatches of 2 samples, 4 units, 1,664 parameters".
std::string sizes_text(const Twins& twins) {
  int64_t parameters = 0;
  for (const Value& value : twins.small.graph.values)
    if (value.kind == ValueKind::parameter) parameters += value.count();
  return fmt::format(
      "{}, {}, {}, {}", twins.small.mesh.text(),
      fmt::format("{} microbatch{}", twins.small.microbatches, twins.small.microbatches == 1 ? "" : "es"),
      counted(std::ssize(twins.small.graph.units), "unit"), counted(parameters, "parameter"));
}

Proof not_run(std::string why) { return {Proof::Verdict::not_run, std::move(why), std::nullopt}; }

// Returns whether the difference comes from an update that took signs of rounding errors; `before`: in an earlier step.
bool depends_on_signs(const Comparison& comparison, bool before) {
  if (!comparison.first) return false;
  return before || (comparison.rounded_signs && comparison.first->what == kEvalLoss);
}

VirtualOptions interleaving(uint64_t seed) {
  VirtualOptions options;
  options.order = VirtualOrder::random;
  options.seed = seed;
  return options;
}

class Prover {
 public:
  Prover(const Plan& plan, const ProofOptions& options) : plan_(plan), options_(options), claims_(claims_of(plan)) {}

  Proof run() {
    if (claims_.differs != nullptr && !claims_.drift_is_claimed())
      return not_run(fmt::format("the strategy {} says that it differs from one rank: {}", claims_.differs->name,
                                 claims_.differs->differs));
    if (claims_.differs != nullptr && claims_.drifts == nullptr)
      return {Proof::Verdict::differs,
              fmt::format("the strategy {} says that {}, and nothing averages them: see unit:every",
                          claims_.differs->name, kDrifts),
              claims_.differs->site};
    const bool drifts = claims_.differs != nullptr;
    Proof proof = beside_one_rank(false, drifts);
    if (!drifts || proof.verdict != Proof::Verdict::equal) return proof;
    proof = beside_one_rank(true, false);
    if (proof.verdict != Proof::Verdict::equal) return proof;
    proof.verdict = Proof::Verdict::as_it_says;
    proof.text = fmt::format("{}, as {} says; with plain SGD their averages equal one rank's to {:.0e} ({})", kDrifts,
                             claims_.differs->name, largest_, made_small_);
    return proof;
  }

 private:
  Proof beside_one_rank(bool sgd, bool own_updates) {
    std::string why_not;
    std::optional<Twins> twins = make_twins(plan_, wanted(sgd, Shrink::dims), why_not);
    if (!twins) return not_run(why_not);
    if (options_.spoil) options_.spoil(twins->small_job);
    made_small_ = sizes_text(*twins);
    if (const double work = work_of(*twins); options_.most_work > 0 && work > options_.most_work)
      return not_run(fmt::format("it would take about {} ({})", human_seconds(work * 1e-6), made_small_));
    const bool kept = options_.known && !sgd && !own_updates;
    const size_t programs = kept ? digest_of(*twins) : 0;
    if (kept)
      if (std::optional<std::string> text = options_.known(programs))
        return {Proof::Verdict::equal, *std::move(text), std::nullopt};
    Proof proof = run_beside(*twins, own_updates);
    if (proof.verdict == Proof::Verdict::equal && kept && options_.proven) options_.proven(programs, proof.text);
    if (proof.verdict == Proof::Verdict::differs && twins->shrink == Shrink::dims)
      return confirmed(std::move(proof), *twins, sgd, own_updates);
    return proof;
  }

  TwinOptions wanted(bool sgd, Shrink most) const {
    return {options_.record, options_.fuses, options_.vocabulary_multiple, sgd, most};
  }

  static double work_of(const Twins& twins) { return 1.5 * (job_work(twins.small_job) + job_work(twins.one_job)); }

  Proof run_beside(Twins& twins, bool own_updates) {
    const CompareOptions how{claims_.drift_axes, own_updates, twins.small.optimizer.op == &ops::lion};
    const std::unique_ptr<Device> device = open_device("reference");
    bool rounded_signs = false;
    // The second step depends on the state that the first one leaves. With drift and a nonlinear update only one step
    // is comparable.
    for (int steps = 1; steps <= (own_updates ? 1 : 2); steps++) {
      for (Job* job : {&twins.small_job, &twins.one_job})
        for (Program& program : job->classes) program.schedule.steps = steps;
      VirtualRun one, run;
      try {
        one = run_virtual_ranks(twins.one_job, *device);
      } catch (const Error& error) {
        return not_run(fmt::format("one rank ends with: {}", error.what()));
      }
      const VirtualOptions options = interleaving(static_cast<uint64_t>(steps));
      try {
        run = run_virtual_ranks(twins.small_job, *device, options);
      } catch (const Error& error) {  // deadlocked ranks, or an error of a kernel
        return {Proof::Verdict::differs, error.message(), error.site()};
      }
      const RunPair pair{twins.small_job, run, twins.one_job, one};
      const Comparison comparison = compare(pair, how);
      if (comparison.overflow) return not_run(fmt::format("numbers overflow in the small run ({})", made_small_));
      largest_ = std::max(largest_, comparison.largest);
      if (depends_on_signs(comparison, rounded_signs))
        return not_run(
            fmt::format("{} takes signs of gradients that are 0 but for rounding, and later losses depend "
                        "on these signs ({})",
                        twins.small.optimizer.name, made_small_));
      rounded_signs = comparison.rounded_signs;
      if (comparison.first && steps > 1 && magnifies_rounding(twins, one, *device, comparison.largest))
        return not_run(
            fmt::format("the small run magnifies rounding from its first step to its second ({})", made_small_));
      if (comparison.first) return refused(twins, pair, options, *comparison.first, steps);
    }
    return {Proof::Verdict::equal, fmt::format("equals one rank to {:.0e} ({})", largest_, made_small_), {}};
  }

  // Returns whether a learning rate larger by kNudge changes the single rank's result by more than `difference`.
  static bool magnifies_rounding(const Twins& twins, const VirtualRun& one, const Device& device, double difference) {
    Job nudged = twins.one_job;
    for (Program& program : nudged.classes) program.schedule.learning_rate.scale(1 + kNudge);
    const VirtualRun run = run_virtual_ranks(nudged, device);
    return compare({nudged, run, twins.one_job, one}, {}).largest > difference;
  }

  // Confirms a difference unless the small dims alone cause it. They do if the verifier, which has accepted the plan,
  // rejects the small plan, or if the plan with its own dims equals one rank.
  Proof confirmed(Proof proof, const Twins& twins, bool sgd, bool own_updates) {
    if (options_.problem)
      if (const std::string problem = options_.problem(twins.small_job); !problem.empty())
        return not_run(fmt::format("the plan could not be made small: {}", problem));
    std::string why_not;
    const std::string small = made_small_;
    std::optional<Twins> larger = make_twins(plan_, wanted(sgd, Shrink::layers), why_not);
    if (!larger || work_of(*larger) > kMostConfirming) return proof;
    if (options_.spoil) options_.spoil(larger->small_job);
    made_small_ = sizes_text(*larger);
    if (run_beside(*larger, own_updates).verdict != Proof::Verdict::equal) return proof;
    return not_run(fmt::format("the plan equals one rank with its own dims ({}) and differs with small ones ({})",
                               made_small_, small));
  }

  // Returns a hash of everything that the comparison depends on.
  size_t digest_of(const Twins& twins) const {
    std::string all = join(claims_.drift_axes, ",") + "\n" + made_small_ + "\n";
    for (const Job* job : {&twins.small_job, &twins.one_job}) all += dump_job(*job);
    return std::hash<std::string>()(all);
  }

  Proof refused(const Twins& twins, const RunPair& pair, const VirtualOptions& options, const Difference& first,
                int steps) const {
    Explanation told = explain(plan_, options_.record, twins, pair, options, first);
    told.text = fmt::format("the plan computes something else than one rank does{} ({}){}",
                            steps > 1 ? ", from its second step on" : "", made_small_, told.text);
    const bool undeclared = claims_.drifts != nullptr && claims_.differs == nullptr;
    return {undeclared ? Proof::Verdict::undeclared : Proof::Verdict::differs, std::move(told.text),
            std::move(told.site)};
  }

  const Plan& plan_;
  const ProofOptions& options_;
  Claims claims_;
  double largest_ = 0;
  std::string made_small_;
};

// Proves the plan as if the strategy that averages weights had declared its drift.
Proof prove_declared(Plan plan, const ProofOptions& given) {
  const auto declare = [](Plan& each) {
    for (Strategy& strategy : each.strategies)
      for (const StrategyUnit& unit : strategy.units)
        if (!unit.sync.empty()) strategy.differs = kDrifts;
  };
  declare(plan);
  ProofOptions options = given;
  options.record = [&](const PlanSizes& sizes) {
    Plan recorded = given.record(sizes);
    declare(recorded);
    return recorded;
  };
  return Prover(plan, options).run();
}

Proof prove_training(const Plan& plan, const ProofOptions& options) {
  Proof proof = Prover(plan, options).run();
  if (proof.verdict != Proof::Verdict::undeclared) return proof;
  Proof declared = prove_declared(plan, options);
  if (declared.verdict != Proof::Verdict::as_it_says) return declared;
  const Strategy& drifts = *claims_of(plan).drifts;
  proof.site = drifts.site;
  proof.text = fmt::format(
      "{} averages weights between steps, which one rank has no need of; when that is meant, it "
      "says so: prun.strategy(\"{}\", ..., {{ differs = \"{}\" }})",
      drifts.name, drifts.name, kDrifts);
  return proof;
}

// Returns the lines that each rank prints under one interleaving.
std::vector<std::vector<std::string>> printed_by(const Job& job, const VirtualOptions& options) {
  std::vector<std::vector<std::string>> lines(job.class_of_rank.size());
  for (auto& [rank, line] : run_virtual_ranks(job, *open_device("reference"), options).printed)
    lines[rank].push_back(line);
  return lines;
}

// A plan that lists its ops has no model that one rank could train, so the proof is that its output does not depend on
// the order of execution.
Proof prove_program(const Plan& plan) {
  constexpr int kInterleavings = 8;
  if (plan.mesh.ranks() > kMostProvenRanks)
    return not_run(fmt::format("a program is run as it is, on at most {} ranks", kMostProvenRanks));
  CompileOptions options;
  options.device = "reference";
  Job job = compile(plan, options);
  for (Program& program : job.classes) program.schedule.steps = 1;
  const auto expected = printed_by(job, {});
  for (uint64_t seed = 1; seed <= kInterleavings; seed++) {
    const auto found = printed_by(job, interleaving(seed));
    for (size_t rank = 0; rank < found.size(); rank++)
      if (found[rank] != expected[rank])
        return {Proof::Verdict::differs,
                fmt::format("rank {} prints something else when its ops run in another order", rank), std::nullopt};
  }
  return {Proof::Verdict::equal,
          fmt::format("prints the same under {} interleavings of its {}", kInterleavings,
                      counted(plan.mesh.ranks(), "rank")),
          std::nullopt};
}

}  // namespace

std::string sentence(const Proof& proof) {
  if (proof.verdict != Proof::Verdict::equal && proof.verdict != Proof::Verdict::as_it_says)
    return "not proven: " + proof.text;
  if (proof.apart_from.empty()) return "proven: " + proof.text;
  std::string list = join({proof.apart_from.begin(), proof.apart_from.end() - 1}, ", ");
  list += (list.empty() ? "" : " and ") + proof.apart_from.back();
  return fmt::format("proven, apart from {}: {}", list, proof.text);
}

Proof prove(const Plan& plan, const ProofOptions& options) {
  try {
    if (!plan.programs.empty()) return prove_program(plan);
    Proof proof = prove_training(plan, options);
    if (proof.verdict == Proof::Verdict::equal || proof.verdict == Proof::Verdict::as_it_says)
      proof.apart_from = known_differences(plan);
    return proof;
  } catch (const Error& error) {  // deadlocked ranks of a program
    return {Proof::Verdict::differs, error.message(), error.site()};
  }
}

}  // namespace prun
