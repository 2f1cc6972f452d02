// put, get and signals: plain copies to and from the window of a peer, and counters in what ranks share.
#pragma once
#include <cstddef>
#include <cstdint>

#include "p2p.h"
#include "prun/sdk/failure.h"
#include "wait.h"

namespace prun::shm {

struct Context;

using sdk::Failure;

struct SignalRequest : Request {
  int peer = -1;  // local index
  uint64_t signal = 0, count = 0;
  Patience patience;
};

Failure test_signal(Context& c, SignalRequest* request);

}  // namespace prun::shm
