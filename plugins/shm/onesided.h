// put, get and signals: plain copies to and from the window of a peer, and counters in what ranks share.
#pragma once
#include <cstddef>
#include <cstdint>

#include "p2p.h"
#include "wait.h"

namespace prun::shm {

struct Context;

struct SignalRequest : prun_req {
  int peer = -1;  // local index
  uint64_t signal = 0, count = 0;
  Patience patience;
};

prun_status put(Context& c, int peer, const void* src, size_t offset, size_t bytes, uint64_t signal, prun_req** request,
                prun_result* result);
prun_status get(Context& c, int peer, void* dst, size_t offset, size_t bytes, prun_req** request, prun_result* result);
prun_status raise_signal(Context& c, int peer, uint64_t signal, prun_req** request, prun_result* result);
prun_status wait_signal(Context& c, int peer, uint64_t signal, uint64_t count, prun_req** request, prun_result* result);
prun_status test_signal(Context& c, SignalRequest* request, prun_result* result);

}  // namespace prun::shm
