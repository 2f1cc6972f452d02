// Finds for each rank of a pipeline the longest stretch of slots that repeats one period later with later microbatches,
// and removes the periods that every rank can spare.
#include "compile/shorten.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "compile/compile_state.h"

namespace prun {
namespace {

// The listed period needs an equal period on both sides, and these a distance to both ends of the stretch.
constexpr int kPeriodsKept = 5;
constexpr int kLeastLeftOut = 16;  // microbatches

struct Stretch {
  int begin = 0;    // first slot
  int periods = 0;  // number of periods
};

bool comes_again(const PipelineTurn& turn, const PipelineTurn& later, int microbatches) {
  return turn.kind == later.kind && turn.chunk == later.chunk && turn.with_next == later.with_next &&
         turn.microbatch + microbatches == later.microbatch;
}

Stretch longest(const std::vector<PipelineTurn>& turns, int period, int microbatches) {
  Stretch best;
  int run = 0;
  for (int i = 0, later = period; later < std::ssize(turns); ++i, ++later) {
    run = comes_again(turns[i], turns[later], microbatches) ? run + 1 : 0;
    const int periods = run == 0 ? 0 : (run + period) / period;
    if (periods > best.periods) best = {i - run + 1, periods};
  }
  return best;
}

bool is_forward(const PipelineTurn& turn) { return turn.kind == PipelineTurn::Kind::forward; }

// Returns whether `slots` run each chunk forward and both halves of its backward `microbatches` times.
bool is_whole(std::span<const PipelineTurn> slots, int microbatches) {
  std::map<int, std::array<int, 3>> counts;  // by chunk: forward, gradients of inputs, of weights
  for (const PipelineTurn& turn : slots) {
    std::array<int, 3>& of_chunk = counts[turn.chunk];
    of_chunk[0] += is_forward(turn) ? 1 : 0;
    of_chunk[1] += is_forward(turn) || turn.kind == PipelineTurn::Kind::weight ? 0 : 1;
    of_chunk[2] += is_forward(turn) || turn.kind == PipelineTurn::Kind::input ? 0 : 1;
  }
  return std::ranges::all_of(counts, [&](const auto& of_chunk) {
    return std::ranges::all_of(of_chunk.second, [&](int count) { return count == microbatches; });
  });
}

// Returns the number of slots of a period; 0 = none repeats. A schedule may halve some backwards only, at its ends;
// then the slots between two forwards in the middle are counted.
int period_of(const std::vector<PipelineTurn>& turns, int all_microbatches, int microbatches) {
  const int64_t slots = std::ssize(turns) * int64_t{microbatches};
  if (slots % all_microbatches == 0) return static_cast<int>(slots / all_microbatches);
  const auto forward_of = [&](int microbatch) {
    return std::ranges::find_if(turns, [&](const PipelineTurn& turn) {
      return is_forward(turn) && turn.chunk == 0 && turn.microbatch == microbatch;
    });
  };
  const auto first = forward_of(all_microbatches / 2), behind = forward_of(all_microbatches / 2 + microbatches);
  if (behind == turns.end() || behind <= first || !is_whole({first, behind}, microbatches)) return 0;
  return static_cast<int>(behind - first);
}

// Returns each rank's slots. Without a pipeline they are forward, then backward, of each microbatch.
std::vector<std::vector<PipelineTurn>> turns_of(const Plan& plan) {
  if (plan.pipeline) return plan.pipeline->turns;
  std::vector<PipelineTurn> turns;
  for (int m = 0; m < plan.microbatches; ++m)
    for (const auto kind : {PipelineTurn::Kind::forward, PipelineTurn::Kind::backward}) {
      PipelineTurn turn;
      turn.kind = kind;
      turn.microbatch = m;
      turns.push_back(turn);
    }
  return {turns};
}

}  // namespace

std::optional<Shortened> shorten(const Plan& plan, int microbatches) {
  std::vector<std::vector<PipelineTurn>> turns = turns_of(plan);
  std::vector<Stretch> stretches;
  std::vector<int> periods;  // number of slots
  int spare = plan.microbatches;
  for (const std::vector<PipelineTurn>& of_rank : turns) {
    periods.push_back(period_of(of_rank, plan.microbatches, microbatches));
    if (periods.back() == 0) return std::nullopt;
    stretches.push_back(longest(of_rank, periods.back(), microbatches));
    spare = std::min(spare, stretches.back().periods - kPeriodsKept);
  }
  if (spare * microbatches % 2 != 0) --spare;  // buffers that alternate between two slots keep theirs
  if (spare < 1 || spare * microbatches < kLeastLeftOut) return std::nullopt;
  Shortened made{plan, spare, microbatches, {}, {}};
  const int left_out = spare * microbatches;
  for (size_t rank = 0; rank < turns.size(); ++rank) {
    const int period = periods[rank], kept = stretches[rank].periods - spare;
    std::vector<PipelineTurn>& of_rank = turns[rank];
    int first = stretches[rank].begin + kept / 2 * period;
    if (of_rank[first - 1].with_next) ++first;  // a period has both slots of a pair
    const auto behind = of_rank.begin() + first + period;
    of_rank.erase(behind, behind + spare * period);
    for (auto turn = of_rank.begin() + first + period; turn != of_rank.end(); ++turn) turn->microbatch -= left_out;
    made.of_ranks.push_back({first, period});
    const auto forward = [&](int from, int to) {
      return static_cast<int>(std::count_if(of_rank.begin() + from, of_rank.begin() + to, is_forward));
    };
    made.forward.push_back({forward(0, first), forward(first, first + period)});
  }
  made.plan.microbatches -= left_out;
  if (made.plan.pipeline) made.plan.pipeline->turns = std::move(turns);
  return made;
}

std::vector<int> periods_of(const Plan& plan) {
  if (!plan.programs.empty() || (plan.pipeline && plan.pipeline->puts)) return {};  // offsets of puts are per op
  std::vector<int> periods = {1, 2, 3, 4};
  if (pipeline_ranks(plan) > 4) periods.push_back(pipeline_ranks(plan));
  return periods;
}

}  // namespace prun
