// A rank's client of its launcher, over the control socket and a shared page.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/rank_place.h"
#include "launch/control.h"
#include "launch/launch.h"

namespace prun {

// The ranks that the threads of one rank wait for: rank + 1, 0 = none. Remains unchanged when the job ends.
struct WaitSlots {
  static constexpr int kThreads = 8, kRanks = 4;  // further threads share slots; further ranks are omitted
  std::atomic<int32_t> rank[kThreads][kRanks];
};

// Memory that the launcher shares with its ranks, zeroed:
//
//     | JobPage | begun: 1 per local rank | kept: 1 per local rank | WaitSlots: 1 per local rank |
//
// An early end, all ranks after the same step:
//
//     launcher                               rank
//     stopping = 1                           begun = k
//     read each rank's begun                 read stopping: 0: runs step k
//     agree with the other launchers                        1: blocks before step k until steps != 0
//     steps = number of steps in the job                       runs step k if k < steps
//
// `begun` and `stopping` are sequentially consistent, so a rank that the launcher has seen in step k blocks at the end
// of step k at the latest. The number comes from the launchers alone, so no rank needs a blocked one in the meantime.
struct JobPage {
  static constexpr size_t kAbandoned = 8;  // ranks are at most one save apart
  std::atomic<uint32_t> aborted;
  std::atomic<uint32_t> stopping;
  std::atomic<int64_t> steps;                  // 0: unknown
  std::atomic<int64_t> committed;              // LauncherClient::committed
  std::atomic<int64_t> abandoned[kAbandoned];  // the latest steps (LauncherClient::abandoned)
  std::atomic<int64_t>* begun() { return reinterpret_cast<std::atomic<int64_t>*>(this + 1); }
  std::atomic<int64_t>* kept(int local_ranks) { return begun() + local_ranks; }
  WaitSlots* waits(int local_ranks) { return reinterpret_cast<WaitSlots*>(kept(local_ranks) + local_ranks); }
  static size_t bytes(int local_ranks) {
    return sizeof(JobPage) + local_ranks * (2 * sizeof(std::atomic<int64_t>) + sizeof(WaitSlots));
  }
};

// Creates the client. `control` is a connected stream socket; the client owns it. `page` outlives the client.
std::unique_ptr<LauncherClient> make_launcher_client(const RankPlace& place, Fd control, JobPage* page);

}  // namespace prun
