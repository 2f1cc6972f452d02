// A rank's client of its launcher, over the control socket and a page that both map.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/rank_place.h"
#include "launch/control.h"
#include "launch/launch.h"

namespace prun {

// Which ranks the threads of one rank wait for: rank + 1, 0 for none. Left as it stands when the job ends.
struct WaitSlots {
  static constexpr int kThreads = 8, kRanks = 4;  // more are not told
  std::atomic<int32_t> rank[kThreads][kRanks];
};

// Lies in memory that the launcher shares with its ranks, zeroed; behind it `begun` of each local rank, then `kept` and
// `waits` of each.
//
// How a job stops early, all ranks after the same step: a launcher sets `stopping`, then reads what each rank has
// begun. A rank writes what it begins, then reads `stopping`. Both in one total order, so a rank that the launcher has
// seen in step k waits at the end of step k at the latest, until `steps` tells how many steps the job does; what waits
// there nobody needs before that, since the number comes from the launchers alone.
struct JobPage {
  static constexpr size_t kAbandoned = 8;  // ranks are one save apart at most
  std::atomic<uint32_t> aborted;
  std::atomic<uint32_t> stopping;
  std::atomic<int64_t> steps;                  // 0: not known yet
  std::atomic<int64_t> committed;              // LauncherClient::committed
  std::atomic<int64_t> abandoned[kAbandoned];  // the last steps (LauncherClient::abandoned)
  std::atomic<int64_t>* begun() { return reinterpret_cast<std::atomic<int64_t>*>(this + 1); }
  std::atomic<int64_t>* kept(int local_ranks) { return begun() + local_ranks; }
  WaitSlots* waits(int local_ranks) { return reinterpret_cast<WaitSlots*>(kept(local_ranks) + local_ranks); }
  static size_t bytes(int local_ranks) {
    return sizeof(JobPage) + local_ranks * (2 * sizeof(std::atomic<int64_t>) + sizeof(WaitSlots));
  }
};

// `control` is a connected stream socket; owned. `page` outlives the client.
std::unique_ptr<LauncherClient> make_launcher_client(const RankPlace& place, Fd control, JobPage* page);

}  // namespace prun
