// The moving of point to point: records through rings, large messages by chunks. Everything here under Context::mutex.
#pragma once
#include <vector>

#include "p2p.h"
#include "prun/sdk/failure.h"
#include "wait.h"

namespace prun::shm {

using sdk::Failure;

struct P2pRequest : Request {
  std::vector<Transfer> transfers;
  size_t left = 0;
  Failure failure;
  bool abandoned = false;
  Patience patience;
};

Failure test_batch(Context& c, P2pRequest* request);

void finish(Transfer* t);
// The sizes of a send and its receive differ; `others` is the peer's.
void finish_with_mismatch(Context& c, Transfer* t, uint64_t others);
// Tells both sides of a receive and a message that their sizes differ.
void refuse(Context& c, Transfer* t, const Record& record, Transfer* from_self);
// Into the peer's ring, now or as soon as there is room; in order.
void post(Context& c, int peer, const Outgoing& outgoing);
// A message from `peer`: to its receive, or kept until there is one.
void arrived(Context& c, int peer, const Record& record, const std::byte* body, Transfer* from_self);

}  // namespace prun::shm
