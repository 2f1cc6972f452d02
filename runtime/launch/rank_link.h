// A rank's end of the line to its launcher.
#pragma once
#include <atomic>
#include <mutex>

#include "launch/control.h"
#include "launch/launch.h"

namespace prun {

// In memory that the launcher shares with its ranks.
struct AbortPage {
  std::atomic<uint32_t> aborted;
};

// `control` is a connected stream socket; owned. `page` outlives the link.
std::unique_ptr<RankLink> make_rank_link(int rank, int ranks, Fd control, const AbortPage* page);

}  // namespace prun
