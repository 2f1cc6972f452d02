// Parts of a step repeat: microbatches, the layers of a stage, the stages between the first and the last. Programs are
// compiled and walked at sizes just large enough to repeat. Once one more repetition adds the same amount as the
// previous one, the figures at the plan's own sizes are extrapolated.
#include "predict/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "job/build.h"
#include "predict/small_plans.h"
#include "predict/whole_memory.h"
#include "script/script_server.h"
#include "simulate/cluster.h"
#include "simulate/multilinear.h"

namespace prun {
namespace {

using simulate::ClassResult;
using simulate::Cluster;
using simulate::Figures;
using simulate::kLevels;
using simulate::Repeated;
using simulate::Simulation;
using simulate::Usage;

// Increments that differ by less are equal, because overlap shifts slightly with every stage.
constexpr double kEven = 1e-3;
constexpr int kMostTries = 3;
constexpr int kRoundsAhead = 4;        // rounds; a round has as many microbatches as there are stages
constexpr double kPlacedApart = 1.02;  // factor between peaks: placement may invert the order of closer ones

// Calls `use` with each number of a usage, to read or replace it.
template <class Use>
void each_number(Usage& usage, const Use& use) {
  for (double& value : usage.computing) use(value);
  for (double& value : usage.exposed) use(value);
  use(usage.copying);
  use(usage.idle);
  for (double& value : usage.transferring) use(value);
  for (double& value : usage.sent_bytes) use(value);
  use(usage.flops);
  use(usage.model_flops);
  use(usage.replicated_flops);
}

// Does the same with the parts of the arena, and sets the peak to their sum.
template <class Use>
void each_role(ClassResult& of, const Use& use) {
  of.peak_bytes = 0;
  for (int64_t& bytes : of.role_bytes) {
    double value = static_cast<double>(bytes);
    use(value);
    bytes = std::llround(value);
    of.peak_bytes += bytes;
  }
}

class PeriodicSimulation {
 public:
  PeriodicSimulation(const JobSpec& spec, const Cluster& cluster, int ranks, const PredictOptions& how)
      : spec_(spec),
        cluster_(cluster),
        ranks_(ranks),
        how_(how),
        small_(spec, cluster, ranks, {.every_rank = how.every_rank}),
        plan_(small_.plan()),
        length_(small_.lengths()) {}

  // Returns nullopt if the plan is short, or does not repeat.
  std::optional<SimulatedPlan> run() {
    if (!worthwhile()) return std::nullopt;
    const ScriptServer scripts(spec_.lua_dir);
    set_sizes();
    while (true) {
      find_bases();
      if (std::all_of(dimensions_.begin(), dimensions_.end(), [](const Repeated& d) { return d.fixed(); }))
        return std::nullopt;
      if (std::optional<Figures> all = figures(dimensions_)) return answer(*all);
      // Parts of a rank's step may become regular with more stages than the step itself.
      Repeated& stages = dimensions_[kStages];
      if (stages.fixed()) return std::nullopt;
      stages.base += 2;
    }
  }

 private:
  enum Dimension { kStages, kMicrobatches, kLayers };

  bool worthwhile() const {
    if (!plan_.programs.empty() || length_.layers == 0) return false;
    if (how_.extrapolate) return true;
    return small_.ops() > kOpsSimulatedWhole;
  }

  // Gradient buckets that hold several layers repeat after some of them, not after each.
  bool layers_have_buckets_of_their_own() const {
    int64_t bucket = 0;
    for (const Strategy& strategy : plan_.strategies)
      for (const StrategyUnit& unit : strategy.units)
        for (const Hook& hook : unit.hooks)
          for (const HookAction& action : hook.actions) bucket = std::max({bucket, action.bucket, action.first});
    if (bucket == 0) return true;
    std::map<std::string, std::vector<int64_t>> bytes;  // bytes of units, by class
    for (const Unit& unit : plan_.graph.units) {
      int64_t& sum = bytes[unit.unit_class].emplace_back(0);
      for (const ValueId id : unit.parameters) sum += plan_.graph.values[id].count() * dtype_bytes(Dtype::f32);
    }
    int64_t split = 1;  // number of ranks that split a layer's weights
    for (const Axis& axis : plan_.mesh.axes()) {
      const auto& batch = plan_.batch_axes;
      const bool data = std::find(batch.begin(), batch.end(), axis.name) != batch.end();
      if (!data && !(plan_.pipeline && plan_.pipeline->axis == axis.name)) split *= axis.size;
    }
    for (const auto& [name, units] : bytes)
      if (units.size() > 1 && units.front() / split < bucket) return false;
    return true;
  }

  // With chunks, microbatches run in rounds; a round has as many microbatches as there are stages. The last round may
  // be smaller. Its size relative to the number of stages determines how long the pipeline drains, so the small plans
  // have the same remainder and all stages.
  bool in_rounds() const { return length_.stages > 1 && length_.chunks > 1; }
  int remainder() const { return in_rounds() ? length_.microbatches % length_.stages : 0; }
  int microbatches(int stages, int depth) const {
    if (length_.stages == 1) return depth;
    return in_rounds() ? stages * depth + remainder() : stages + depth;
  }

  void set_sizes() {
    const bool pipeline = length_.stages > 1;
    Repeated stages{3, length_.stages}, depth{pipeline && in_rounds() ? 2 : 1, length_.microbatches};
    if (pipeline)
      depth.wanted = in_rounds() ? length_.microbatches / length_.stages : length_.microbatches - length_.stages;
    Repeated layers{pipeline ? 1 : 3, length_.layers};
    if (!layers_have_buckets_of_their_own()) layers.base = layers.wanted;
    if (!cluster_.nodes.empty() || remainder() != 0) stages.base = stages.wanted;  // nodes may differ
    // Rounds that are simulated to detect the steady state; a plan with fewer rounds is simulated whole.
    if (remainder() != 0 && depth.wanted <= 3 * (depth.base + 1)) depth.base = depth.wanted;
    if (depth.wanted < depth.base) depth.base = depth.wanted, stages.base = stages.wanted;
    dimensions_ = {stages, depth, layers};
    small_.record_together([this](const SmallLengths& sizes) {
      const int further = in_rounds() ? sizes.stages : 1;
      std::vector<int> more;
      for (int times = 1; times <= 2 && !dimensions_[kMicrobatches].fixed(); ++times)
        more.push_back(sizes.microbatches + times * further);
      return more;
    });
  }

  void find_bases() {
    for (size_t d = 0; d < dimensions_.size(); ++d) {
      Repeated& each = dimensions_[d];
      each.base += (each.wanted - each.base) & 1;  // memory repeats at every second size, because buffers alternate
                                                   // between gaps
      raise_to_even(d);
      // Before further sizes are simulated with these stages, figures that their number alone makes negative are found.
      while (d == kStages && !each.fixed() && !figures(only(d))) {
        each.base += 2;
        raise_to_even(d);
      }
    }
    Repeated& microbatches = dimensions_[kMicrobatches];
    if (length_.stages > 1 && reduces_every_microbatch() && falls_behind()) microbatches.base = microbatches.wanted;
  }

  void raise_to_even(size_t d) {
    const auto at = [this](const std::vector<int>& sizes) { return times(sizes); };
    Repeated& each = dimensions_[d];
    for (int tries = 0; unevenness(dimensions_, d, at) > kEven; ++tries)
      each.base = tries == kMostTries ? each.wanted : each.base + 2;
  }

  // Returns the dimensions with all but one at their bases.
  std::vector<Repeated> only(size_t d) const {
    std::vector<Repeated> dimensions = dimensions_;
    for (size_t other = 0; other < dimensions.size(); ++other)
      if (other != d && !dimensions[other].fixed()) dimensions[other].wanted = dimensions[other].base;
    return dimensions;
  }

  // Gradients that are reduced in every microbatch share links with the pipeline.
  bool reduces_every_microbatch() const {
    for (const Strategy& strategy : plan_.strategies)
      for (const StrategyUnit& unit : strategy.units)
        if (unit.sharded && !unit.accumulate) return true;
    return false;
  }

  // Returns whether links fall behind with each microbatch, so that they bound the step only after some rounds.
  bool falls_behind() {
    const Repeated& depth = dimensions_[kMicrobatches];
    if (depth.fixed()) return false;
    std::vector<int> sizes = base_sizes();
    const int rounds = kRoundsAhead * (in_rounds() ? 1 : sizes[kStages]);
    const auto step = [&](int further) {
      sizes[kMicrobatches] = depth.base + further;
      return times(sizes).front();
    };
    const int far = std::min(depth.wanted - depth.base, rounds);
    const double here = step(0), expected = here + far * (step(1) - here), found = step(far);
    return std::abs(found - expected) > kEven * found;
  }

  SmallLengths small_sizes(const std::vector<int>& sizes) const {
    return {sizes[kStages], microbatches(sizes[kStages], sizes[kMicrobatches]), sizes[kLayers]};
  }

  // Returns the relative position of class `c` of `of` between the second and the last but one.
  static double place_between(int c, int of) { return of <= 3 ? 0 : static_cast<double>(c - 1) / (of - 3); }

  // Returns whether the first two and the last two ranks of a pipeline stand for all.
  bool shows_ends() const { return length_.stages > 3 && !dimensions_.empty() && !dimensions_[kStages].fixed(); }

  std::vector<ClassResult> shown_classes(const Simulation& of) const {
    if (!shows_ends()) return of.classes;
    const size_t last = of.classes.size() - 1;
    return {of.classes[0], of.classes[1], of.classes[last - 1], of.classes[last]};
  }

  Figures times(const std::vector<int>& sizes) {
    const Simulation& of = small_.at(small_sizes(sizes));
    Figures all = {of.step_s};
    for (ClassResult& each : shown_classes(of)) each_number(each.usage, [&](double& value) { all.push_back(value); });
    return all;
  }

  Figures peaks(const std::vector<int>& sizes, bool packed) {
    Figures all;
    const SmallLengths small = small_sizes(sizes);
    if (shows_ends() &&
        small_.at(small_sizes(base_sizes())).classes.size() == static_cast<size_t>(base_sizes()[kStages])) {
      const int last = small.stages - 1;
      for (const RoleBytes& of : small_.memory_of(small, {0, 1, last - 1, last}, packed))
        for (const int64_t bytes : of) all.push_back(static_cast<double>(bytes));
      return all;
    }
    for (ClassResult& each : shown_classes(small_.memory_at(small, packed)))
      each_role(each, [&](double& value) { all.push_back(value); });
    return all;
  }

  // The peak is reached with few microbatches, because no more are in flight. Each further one adds its data, which an
  // unpacked arena shows as well.
  Figures extended_peaks() {
    const auto packed = [this](const std::vector<int>& sizes) { return peaks(sizes, true); };
    std::vector<Repeated> dimensions = dimensions_;
    Repeated& depth = dimensions[kMicrobatches];
    if (depth.fixed()) return extrapolate(dimensions, packed, 2);
    const int wanted = depth.wanted, few = depth.base + 2;
    std::vector<int> sizes = base_sizes();
    const Figures fewer = peaks((sizes[kMicrobatches] = few, sizes), false);
    const Figures more = peaks((sizes[kMicrobatches] = few + 2, sizes), false);
    depth.base = depth.wanted = few;
    Figures all = extrapolate(dimensions, packed, 2);
    const double pairs = (wanted - few) / 2;  // NOLINT(bugprone-integer-division): whole pairs
    for (size_t i = 0; i < all.size(); ++i) all[i] += pairs * (more[i] - fewer[i]);
    return all;
  }

  std::vector<int> base_sizes() const {
    std::vector<int> sizes;
    for (const Repeated& each : dimensions_) sizes.push_back(each.fixed() ? each.wanted : each.base);
    return sizes;
  }

  // Returns nullopt if a time or a byte count would be negative: a value that shrinks from size to size is not in a
  // steady state.
  std::optional<Figures> figures(const std::vector<Repeated>& dimensions) {
    Figures all = extrapolate(dimensions, [this](const std::vector<int>& sizes) { return times(sizes); });
    for (double& value : all) {
      if (value < -kEven * std::abs(all.front())) return std::nullopt;
      value = std::max(value, 0.0);
    }
    return all;
  }

  SimulatedPlan answer(const Figures& all) {
    WholeMemory memory(spec_, ranks_, small_);
    const Figures bytes = memory.affordable() ? Figures() : extended_peaks();
    const Simulation& small = small_.at(small_sizes(base_sizes()));
    SimulatedPlan made;
    Simulation& result = made.result;
    size_t next = 0, next_role = 0;
    const auto take = [&] { return all.at(next++); };
    result.ranks = ranks_;
    result.step_s = take();
    result.peak_flops = small.peak_flops / small.ranks * ranks_;
    std::vector<ClassResult> shown;
    while (next < all.size()) {
      ClassResult& of = shown.emplace_back(small.classes[std::min(shown.size(), small.classes.size() - 1)]);
      each_role(of, [&](double& value) { value = bytes.empty() ? 0 : bytes.at(next_role++); });
      each_number(of.usage, [&](double& value) { value = take(); });
      of.usage.op_seconds.clear();  // those of the small size
    }
    result.classes = dimensions_[kStages].fixed() ? shown : all_stages(shown);
    if (memory.affordable()) take_memory(result, small, memory);
    add_up_classes(result);
    made.mesh = plan_.mesh.text();
    made.extrapolated = sizes_text();
    return made;
  }

  void take_memory(Simulation& result, const Simulation& small, WholeMemory& memory) const {
    const std::vector<RoleBytes> all = how_.wanted == Wanted::largest_peak ? largest(small, memory) : memory.all();
    for (ClassResult& of : result.classes) {
      of.role_bytes = all[static_cast<size_t>(of.program)];
      of.peak_bytes = std::accumulate(of.role_bytes.begin(), of.role_bytes.end(), int64_t{0});
    }
  }

  // Computes the memory of the first and last ranks and of those in between that may have the largest. In between,
  // memory grows or falls from rank to rank, the more so the larger the plan, so the small plan shows the direction.
  std::vector<RoleBytes> largest(const Simulation& small, WholeMemory& memory) const {
    std::vector<RoleBytes> all(static_cast<size_t>(length_.stages), RoleBytes{});
    std::vector<int64_t> peaks;  // peaks of the small plan, by rank of its pipeline
    for (const ClassResult& each : small.classes) {
      peaks.resize(std::max(peaks.size(), static_cast<size_t>(each.program) + 1));
      peaks[static_cast<size_t>(each.program)] = each.peak_bytes;
    }
    const size_t last = all.size() - 1, few = peaks.size() - 1;
    const auto take = [&](size_t rank) { all[rank] = memory.of(static_cast<int>(rank)); };
    take(0);
    if (last >= 1 && peaks[few] >= peaks[0]) take(last);
    // Ring buffers are an exception, because the small plan has none.
    if (last >= 2 &&
        (memory.repeats() || static_cast<double>(peaks[1]) * kPlacedApart >= static_cast<double>(peaks[0])))
      take(1);
    if (last >= 3 && peaks[few - 1] >= peaks[1]) take(last - 1);
    return all;
  }

  // Returns first and last as they are, and interpolates those in between from the second to the last but one.
  std::vector<ClassResult> all_stages(const std::vector<ClassResult>& ends) const {
    std::vector<ClassResult> classes;
    const int each = ranks_ / length_.stages;
    for (int stage = 0; stage < length_.stages; ++stage) {
      ClassResult of = ends[stage == 0 ? 0 : stage == length_.stages - 1 ? 3 : 1];
      if (stage > 0 && stage < length_.stages - 1) {
        const double way = place_between(stage, length_.stages);
        ClassResult further = ends[2];
        std::vector<double> values;
        each_role(further, [&](double& value) { values.push_back(value); });
        each_number(further.usage, [&](double& value) { values.push_back(value); });
        size_t i = 0;
        const auto between = [&](double& value) { value = (1 - way) * value + way * values[i++]; };
        each_role(of, between);
        each_number(of.usage, between);
      }
      of.first_rank = stage * each;
      of.ranks = each;
      of.program = stage;
      of.usage.waited_for.clear();
      classes.push_back(std::move(of));
    }
    return classes;
  }

  std::string sizes_text() const {
    std::vector<std::string> parts;
    const char* names[] = {"stages",
                           in_rounds()           ? "rounds of microbatches"
                           : length_.stages == 1 ? "microbatches"
                                                 : "microbatches beyond the stages",
                           "layers of a stage"};
    for (size_t d = 0; d < dimensions_.size(); ++d)
      if (!dimensions_[d].fixed())
        parts.push_back(fmt::format("{} to {} {} for {}", dimensions_[d].base, dimensions_[d].base + 2, names[d],
                                    dimensions_[d].wanted));
    return join(parts, ", ");
  }

  const JobSpec& spec_;
  const Cluster& cluster_;
  const int ranks_;
  const PredictOptions how_;
  SmallPlans small_;
  const Plan& plan_;  // plan with few layers
  const PlanLengths& length_;
  std::vector<Repeated> dimensions_;
};

}  // namespace

SimulatedPlan simulate_plan(const JobSpec& spec, const Cluster& cluster, const PredictOptions& how) {
  const int ranks = spec.ranks();
  simulate::place_ranks(cluster, ranks);  // reports a cluster that is too small before anything is compiled
  const bool keep_spans = how.wanted == Wanted::spans;
  if (!keep_spans && !how.whole && whole_setting(spec, "layers") > 0)
    if (std::optional<SimulatedPlan> made = PeriodicSimulation(spec, cluster, ranks, how).run())
      return *std::move(made);
  SimulatedPlan made;
  made.job = written_out(build_job(spec, ranks));
  made.mesh = made.job->classes.front().mesh.text();
  made.result = simulate::simulate(*made.job, cluster, {.every_rank = how.every_rank, .keep_spans = keep_spans});
  return made;
}

Cluster open_cluster(JobSpec& spec, const std::string& given) {
  Cluster cluster = simulate::read_cluster(cluster_path(given, spec.lua_dir));
  spec.joins_steps = simulate::joins_steps(cluster);
  return cluster;
}

std::string cluster_path(const std::string& name, const std::string& lua_dir) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path given = name, root = fs::path(lua_dir).parent_path();
  const fs::path shipped = root / "plans/clusters", beside = given.has_parent_path() ? given.parent_path() : ".";
  for (const fs::path& there : {given, root / given, shipped / given, shipped / (given.string() + ".yaml")})
    if (fs::exists(there, error)) return there.string();
  const auto names_in = [&](const fs::path& folder) {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
      if (entry.path().extension() == ".yaml") names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  };
  const std::string near = nearest_word(given.filename().string(), names_in(beside));
  throw usage_error(fmt::format("there is no cluster file {}{}", name,
                                near.empty() ? did_you_mean(given.filename().string(), names_in(shipped))
                                             : fmt::format(" (did you mean '{}'?)", near)));
}

}  // namespace prun
