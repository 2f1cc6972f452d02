// A rank's client of its launcher, over the control socket.
#pragma once
#include <atomic>

#include "launch/control.h"
#include "launch/launch.h"

namespace prun {

// Lies in memory that the launcher shares with its ranks.
struct AbortPage {
  std::atomic<uint32_t> aborted;
};

// `control` is a connected stream socket; owned. `page` outlives the client.
std::unique_ptr<LauncherClient> make_launcher_client(int rank, int ranks, Fd control, const AbortPage* page);

}  // namespace prun
