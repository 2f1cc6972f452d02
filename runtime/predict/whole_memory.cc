// Middle ranks of a pipeline have the same program except for the number of microbatches in flight, mostly one fewer
// from rank to rank. If two ranks of an interval are on the line through its ends, byte for byte, so are the others; in
// a short interval one rank suffices, also one next to it. This does not hold for the last few ranks, because they have
// too few microbatches in flight.
#include "predict/whole_memory.h"

#include <algorithm>
#include <numeric>

#include "compile/shorten.h"
#include "ir/ops.h"
#include "job/build.h"
#include "job/spent_time.h"

namespace prun {
namespace {

// Ops per step whose buffers are packed in half a second, for one program, and in several seconds, for all.
constexpr double kOpsOfARank = 100000, kOpsOfAll = 1000000;
constexpr int kLeastListed = 4;   // microbatches beyond the stages
constexpr int kRanksPacked = 12;  // approximate number for a long pipeline
constexpr int kShort = 6;         // in a shorter interval one rank confirms a line, in it or next to it

int listed_microbatches(const Plan& plan) {
  for (const int period : periods_of(plan))
    if (const auto shortened = shorten(plan, period)) return shortened->plan.microbatches;
  return plan.microbatches;
}

// Returns a smaller number of microbatches with the same listed period: whole periods are removed, and more than a few
// remain.
int fewer_microbatches(const PlanLengths& lengths) {
  const int least = 32 + 8 * std::max(lengths.stages, 4), periods = std::lcm(12, lengths.stages);
  return lengths.microbatches - std::max(0, lengths.microbatches - least) / periods * periods;
}

// Returns the additional bytes of a step's samples with `all` microbatches instead of `some`.
int64_t more_data(const Program& program, int some, int all) {
  int64_t more = 0;
  for (const Stream& stream : program.step().streams)
    for (const Op& op : stream.ops) {
      if (!op.is(ops::next_batch)) continue;
      for (const TensorId id : op.writes) {
        const Tensor& tensor = program.tensors[id];
        const int64_t bytes = tensor.count() * dtype_bytes(tensor.dtype);
        more += round_up(bytes / some * all, kAlignBytes) - round_up(bytes, kAlignBytes);
      }
    }
  return more;
}

}  // namespace

bool WholeMemory::affords(double microbatches) const {
  const double of_a_rank = ops_ * microbatches / stages_;
  return of_a_rank <= kOpsOfARank && of_a_rank * std::min(stages_, kRanksPacked) <= kOpsOfAll;
}

WholeMemory::WholeMemory(const JobSpec& spec, int ranks, const SmallPlans& small)
    : spec_(spec),
      stages_(small.lengths().stages),
      microbatches_(small.lengths().microbatches),
      ops_(small.ops() / microbatches_) {
  if (!affords(std::min(microbatches_, stages_ + kLeastListed))) return;
  const int fewer = fewer_microbatches(small.lengths());
  if (fewer < microbatches_ && !periods_of(small.plan()).empty()) {
    PlanSizes sizes;
    for (const Axis& axis : small.plan().mesh.axes()) sizes.axes[axis.name] = axis.size;
    sizes.microbatches = fewer;
    sizes.batch = small.plan().data.global_batch / microbatches_ * fewer;
    plan_ = record_plan(spec, ranks, std::move(sizes));
    if (affords(listed_microbatches(plan_))) pack({0});
    if ((affordable_ = repeats_)) return;
    known_.clear();
    packed_.clear();
  }
  if (!affords(microbatches_) && (fewer < microbatches_ || periods_of(small.plan()).empty())) return;
  plan_ = record_plan(spec, ranks);
  affordable_ = affords(listed_microbatches(plan_));
}

void WholeMemory::pack(const std::vector<int>& ranks) {
  std::vector<int> missing;
  for (const int rank : ranks)
    if (!known_.contains(rank)) missing.push_back(rank);
  if (missing.empty()) return;
  const TimeSpent time("memory");
  const Job job = compile_ranks(spec_, plan_, missing);
  repeats_ = true;
  for (const int rank : missing) {
    const Program& program = job.classes[static_cast<size_t>(rank)];
    repeats_ = repeats_ && program.step().repeat.any();
    packed_.insert(rank);
    RoleBytes& bytes = known_[rank] = std::to_array(program.role_bytes);
    bytes[static_cast<size_t>(Role::data)] += more_data(program, plan_.microbatches, microbatches_);
  }
}

const RoleBytes& WholeMemory::of(int rank) {
  pack({rank});
  return known_.at(rank);
}

bool WholeMemory::on_line(int low, int high, int rank) const {
  const RoleBytes &first = known_.at(low), &last = known_.at(high), &here = known_.at(rank);
  for (size_t role = 0; role < here.size(); ++role)
    if ((here[role] - first[role]) * (high - low) != (last[role] - first[role]) * (rank - low)) return false;
  return true;
}

// Returns whether enough packed ranks are on the line through the ends of the interval, and none in it is not.
bool WholeMemory::is_line(int low, int high) const {
  const bool is_short = high - low < kShort;
  const int next_to = is_short ? 1 : -1;
  int confirmed = 0;
  for (int rank = low - next_to; rank <= high + next_to; ++rank) {
    if (rank == low || rank == high || !packed_.contains(rank)) continue;
    const bool here = on_line(low, high, rank);
    if (!here && rank > low && rank < high) return false;
    confirmed += here ? 1 : 0;
  }
  return confirmed >= (is_short ? 1 : 2);
}

// Fills in the ranks between two known ones.
void WholeMemory::fill(int low, int high) {
  const int length = high - low, middle = low + length / 2;
  if (length < 2) return;
  if (!is_line(low, high)) pack({middle});
  if (length >= kShort && !is_line(low, high) && on_line(low, high, middle)) pack({low + length / 4});
  if (!is_line(low, high)) {
    fill(middle, high);  // first, because a rank that it packs next to `middle` may confirm the other half
    return fill(low, middle);
  }
  const RoleBytes first = known_.at(low), last = known_.at(high);
  for (int rank = low + 1; rank < high; ++rank)
    for (size_t role = 0; role < first.size(); ++role)
      known_[rank][role] = first[role] + (last[role] - first[role]) * (rank - low) / length;
}

std::vector<RoleBytes> WholeMemory::all() {
  if (stages_ > 8) {
    pack({0, 1, stages_ - 4, stages_ - 3, stages_ - 2, stages_ - 1});
    fill(1, stages_ - 4);
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < stages_; ++rank) ranks.push_back(rank);
  pack(ranks);
  std::vector<RoleBytes> bytes;
  for (const int rank : ranks) bytes.push_back(known_.at(rank));
  return bytes;
}

}  // namespace prun
