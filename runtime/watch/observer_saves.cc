// The part of the observer that tells of checkpoints which no rank makes.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "checkpoint/writer.h"
#include "launch/control.h"
#include "watch/observer.h"

namespace prun {

void Observer::abandoned(int rank, int64_t step, std::string_view words) {
  const auto failure = unpack<checkpoint::SaveFailure>(words);
  const int64_t committed = recorders_.empty() ? 0 : recorders_.front()->saved.load();
  const int64_t last = committed > 0 ? committed : spec_.first_step;
  std::string room;
  if (failure.free_bytes >= 0)
    room = fmt::format("; a checkpoint takes {}, {} are free", human_bytes(failure.bytes),
                       human_bytes(failure.free_bytes));
  progress_.clear();
  console_.warn(
      fmt::format("prun: the checkpoint after step {} is abandoned by all ranks, and the job goes on: rank {}: "
                  "{}{}; {}\n",
                  step, rank, failure.what, room,
                  last > 0 ? fmt::format("the last one is that after step {}", last) : "there is none yet"));
  if (!events_) return;
  if (watch_) events_->look_at(watch_->ranks());  // at what was before
  events_->abandoned(rank, step, spec_.checkpoints, last, failure);
}

}  // namespace prun
