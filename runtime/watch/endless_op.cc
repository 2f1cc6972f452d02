// An op is predicted at 1 GFLOP/s and 200 MB/s, a hundredth of a core, so that f64 loops and shared machines are not
// blamed. The limit is minutes for the largest ops and about --timeout for all others.
#include "watch/endless_op.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "ir/op_cost.h"

namespace prun {
namespace {

constexpr double kTimesPredicted = 20;
constexpr double kSlowFlopsPerSecond = 1e9, kSlowBytesPerSecond = 200e6;

double predicted_s(const Program& program, const Op& op) {
  const Cost cost = op_cost(program, op);
  return cost.flops / kSlowFlopsPerSecond + cost.bytes / kSlowBytesPerSecond;
}

// Returns whether a stream is in a replayed graph; in that case the rank itself watches the device.
bool replays(const FlightRank& rank) {
  return std::any_of(rank.streams.begin(), rank.streams.end(), [](const FlightStream& s) { return s.running == 3; });
}

// Returns the time of the last progress. The end of a save is progress, because a rank reports the error of a failed
// save only afterwards.
uint64_t last_move(const FlightRank& rank) {
  uint64_t last = std::max(rank.beat_ns, rank.saving_ns);
  for (const FlightStream& stream : rank.streams) last = std::max(last, stream.since_ns);
  return last;
}

}  // namespace

std::optional<Hang> endless_op(const Job& job, const Flight& flight, double limit_s, uint64_t since_ns) {
  const WhoWaits waits(job, flight);
  for (const FlightRank& rank : flight.ranks) {
    const uint64_t moved = std::max(last_move(rank), since_ns);
    const double seconds = flight.seconds_since(moved);
    if (rank.phase != RunPhase::running || rank.saving != 0 || seconds < limit_s || replays(rank)) continue;
    const Activity activity = waits.of(rank.rank);
    if (activity.doing != Doing::working) continue;
    if (activity.op != nullptr && activity.op->def->op_class != OpClass::compute) continue;
    if (activity.op != nullptr &&
        seconds < limit_s + kTimesPredicted * predicted_s(job.program(rank.rank), *activity.op))
      continue;
    Holdup holdup;
    holdup.rank = rank.rank;
    holdup.sentence =
        fmt::format("rank {} does not go on: it is {}", rank.rank,
                    activity.op != nullptr ? waits.words(activity) : "between ops for " + human_seconds(seconds));
    if (activity.op != nullptr) holdup.op = waits.op_text(rank.rank, activity.at);
    return Hang{std::move(holdup), seconds};
  }
  return std::nullopt;
}

}  // namespace prun
