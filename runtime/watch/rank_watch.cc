#include "watch/rank_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/text.h"
#include "exec/recorder.h"
#include "launch/rank_process.h"
#include "watch/kernel_stacks.h"

namespace prun {
namespace {

constexpr uint64_t kLookNs = 500'000'000, kSecondNs = 1'000'000'000;
constexpr uint64_t kPauseNs = 3 * kSecondNs;  // between two ticks: the launcher was stopped, or the machine slept
constexpr double kStoppedSeconds = 10;
// Large messages may take as long as on a slow network; comm's own deadline has the same allowance.
constexpr double kSlowestBytesPerSecond = 10e6;

double now_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Ranks give up at the limit with less information, so the watch reports shortly before.
double earlier(double limit_s) { return limit_s - std::min(1.0, limit_s / 10); }

double allowance_s(const Program& program, const Op& op) {
  int64_t bytes = 0;
  for (const std::vector<TensorId>* ids : {&op.reads, &op.writes})
    for (const TensorId id : *ids) bytes = std::max(bytes, program.tensors[id].bytes());
  return static_cast<double>(bytes) * 2 / kSlowestBytesPerSecond;
}

}  // namespace

RankWatch::RankWatch(std::vector<WatchedRank> ranks, double limit_s)
    : ranks_(std::move(ranks)), seen_(ranks_.size()), limit_s_(limit_s), resumed_ns_(now_ns()) {}

void RankWatch::tick(const Job& job, const std::function<void(const std::string&)>& warn) {
  const uint64_t now = now_ns();
  if (ticked_ns_ != 0 && now - ticked_ns_ > kPauseNs) {
    resumed_ns_ = now;
    warned_ = false;
    for (Seen& seen : seen_) seen.stopped_ns = 0;
  }
  ticked_ns_ = now;
  if (frozen_) return;
  if (now - looked_ns_ >= kLookNs) {
    looked_ns_ = now;
    look_at_processes(now);
    if (!job.classes.empty()) warn_of_stopped(job, warn);
    if (!job.classes.empty() && !hang_) look_for_endless_op(job);
  }
  if (!job.classes.empty() && !hang_) look_for_hang(job, warn);  // at every tick, to precede the ranks
}

void RankWatch::look_at_processes(uint64_t now) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    WatchedRank& rank = ranks_[i];
    if (rank.local) {
      rank.process = process_state(rank.pid);
      rank.kernel = stands_still(rank, now) ? kernel_words(kernel_threads(rank.pid)) : "";
    }
    const bool stopped = rank.process == 'T' || rank.process == 't';
    if (!stopped) seen_[i] = {};
    if (stopped && seen_[i].stopped_ns == 0) seen_[i].stopped_ns = now;
  }
}

// Returns whether a rank has made no progress for half the hang limit, so that other nodes have its kernel state when
// node 0 reports a hang.
bool RankWatch::stands_still(const WatchedRank& rank, uint64_t now) const {
  const uint64_t moved = std::max(rank.recorder->beat_ns.load(), resumed_ns_);
  return rank.process != 'X' && now > moved && static_cast<double>(now - moved) / 1e9 > limit_s_ / 2;
}

void RankWatch::freeze() {
  if (std::exchange(frozen_, true)) return;
  const uint64_t now = now_ns();
  look_at_processes(now);
  for (const WatchedRank& rank : ranks_) {
    if (!rank.local && !rank.kernel.empty())
      stacks_ += fmt::format("rank {} on {}, pid {}: {}\n", rank.rank, rank.host, rank.pid, rank.kernel);
    if (!rank.local || !stands_still(rank, now)) continue;
    const std::vector<KernelThread> threads = kernel_threads(rank.pid);
    stacks_ += fmt::format("rank {} on {}, pid {}: {}\n{}", rank.rank, rank.host, rank.pid, kernel_words(threads),
                           kernel_text(threads));
  }
}

Flight RankWatch::flight(size_t events) const {
  Flight flight{now_ns(), now_since_1970(), {}};
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const WatchedRank& rank = ranks_[i];
    FlightRank one = read_recorder(*rank.recorder, events);
    one.rank = rank.rank;
    one.node = rank.node;
    one.pid = rank.pid;
    one.host = rank.host;
    one.process = rank.process;
    one.stopped_ns = seen_[i].stopped_ns;
    flight.ranks.push_back(std::move(one));
  }
  return flight;
}

void RankWatch::warn_of_stopped(const Job& job, const std::function<void(const std::string&)>& warn) {
  const uint64_t now = now_ns();
  std::optional<Flight> flight;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const RecorderHeader& recorder = *ranks_[i].recorder;
    if (recorder.phase.load() == RunPhase::finished || seen_[i].told) continue;
    const uint64_t alive = std::max(recorder.alive_ns.load(), resumed_ns_);
    const bool stopped = seen_[i].stopped_ns != 0 && now - seen_[i].stopped_ns > kStoppedSeconds * 1e9;
    const bool silent =
        recorder.alive_ns.load() != 0 && now > alive && static_cast<double>(now - alive) > kSilentSeconds * 1e9;
    if (!stopped && !silent) continue;
    seen_[i].told = true;
    if (!flight) flight = this->flight(0);
    const WhoWaits waits(job, *flight);
    warn(fmt::format("rank {} on {}, pid {}, is {}{}", ranks_[i].rank, ranks_[i].host, ranks_[i].pid,
                     waits.words(waits.of(ranks_[i].rank)),
                     seen_[i].stopped_ns != 0
                         ? fmt::format("; kill -CONT {} lets it go on, and the job ends {} after nothing moves",
                                       ranks_[i].pid, human_seconds(limit_s_))
                         : ""));
  }
}

// Reads the flight only if some rank has made no progress for the limit.
void RankWatch::look_for_endless_op(const Job& job) {
  const uint64_t now = now_ns(), limit_ns = static_cast<uint64_t>(limit_s_ * 1e9);
  const bool due = std::any_of(ranks_.begin(), ranks_.end(), [&](const WatchedRank& rank) {
    return now > std::max(rank.recorder->beat_ns.load(), resumed_ns_) + limit_ns;
  });
  if (due) hang_ = endless_op(job, flight(0), limit_s_, resumed_ns_);
}

void RankWatch::look_for_hang(const Job& job, const std::function<void(const std::string&)>& warn) {
  const uint64_t now = now_ns();
  double longest = 0;
  for (const WatchedRank& rank : ranks_) {
    const RecorderHeader& recorder = *rank.recorder;
    if (recorder.phase.load() != RunPhase::running || rank.process == 'X') continue;
    const Program& program = job.program(rank.rank);
    const Body& body =
        program.bodies[static_cast<int>(std::min<size_t>(recorder.body.load(), program.bodies.size() - 1))];
    for (StreamId s : body.streams.ids()) {
      const StreamState& state = recorder.stream[s.index()];
      const uint32_t op = state.op.load();
      if (state.running.load() != 1 || op >= body.streams[s].ops.size() || !body.streams[s].ops[op].communicates())
        continue;
      const uint64_t since = std::max(state.since_ns.load(), resumed_ns_);
      if (since >= now || static_cast<double>(now - since) / 1e9 < limit_s_ / 2) continue;
      const double seconds = static_cast<double>(now - since) / 1e9 - allowance_s(program, body.streams[s].ops[op]);
      longest = std::max(longest, seconds);
    }
  }
  if (longest < limit_s_ / 2) {
    warned_ = false;
    return;
  }
  if (warned_ && longest < earlier(limit_s_)) return;
  const Flight flight = this->flight(0);
  const std::optional<Holdup> holdup = WhoWaits(job, flight).holdup(false);
  if (!holdup) return;
  if (longest >= earlier(limit_s_)) {
    hang_ = Hang{*holdup, longest};
  } else {
    warned_ = true;
    warn(fmt::format("nothing moves for {}: {}; the job ends after {}", human_seconds(longest), holdup->sentence,
                     human_seconds(limit_s_)));
  }
}

}  // namespace prun
