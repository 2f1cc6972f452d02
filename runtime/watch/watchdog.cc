#include "watch/watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace prun {

void Watchdog::begin(const RunningJob& job, std::vector<WatchedRank> ranks) {
  job_ = &job;
  watch_.emplace(std::move(ranks), limit_s_);
  if (job.shown) slow_.begin(job.job);
}

// Only node 0 reports ranks that hold up the job.
void Watchdog::tick() {
  if (!watch_) return;
  watch_->tick(job_->job, [this](const std::string& sentence) {
    if (job_->topology.node == 0) warn_(sentence);
  });
  if (job_->topology.node == 0) slow_.tick(watch_->ranks(), warn_);
}

std::optional<Failure> Watchdog::hung(const JobCommand& command) {
  if (!watch_ || !watch_->hang() || job_->topology.node != 0 || std::exchange(told_hang_, true)) return std::nullopt;
  const Hang& hang = *watch_->hang();
  Failure failure = job_failed(static_cast<int>(Exit::hang), hang.holdup.sentence,
                               fmt::format("nothing has moved for {}", human_seconds(hang.seconds)), command);
  failure.op = hang.holdup.op;
  for (size_t i = 0; i < std::min<size_t>(hang.holdup.chain.size(), 3); ++i)
    failure.evidence += (i == 0 ? ": " : "; ") + hang.holdup.chain[i];
  for (const WatchedRank& rank : watch_->ranks()) {
    if (rank.rank != hang.holdup.rank) continue;
    set_who(failure, {rank.rank, rank.node, job_->topology.node_count(), rank.pid, rank.host});
    if (!rank.kernel.empty()) failure.evidence += "; in the kernel " + rank.kernel;
  }
  return failure;
}

}  // namespace prun
