// A request: its launches, its copies back to the user, and the agreements with other ranks that its success requires.
#pragma once
#include <prun/transport.h>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm.h"

namespace prun::nccl {

// Pinned copy of data that the device cannot reach.
struct Bounce {
  void* pinned;
  size_t bytes;
  void* user;  // destination of the final copy; null = it was sent
};

// A message to this rank itself, copied on the sender's queue at once, so that the send completes.
struct SelfMessage {
  void* pinned;
  size_t bytes;
  cudaEvent_t event = nullptr;  // recorded after the copy; null = the host has copied
  bool captured = false;        // a graph copies at every launch: the event is never queried, the graph owns `pinned`
};
struct SelfMessages {
  std::mutex mutex;
  std::map<uint64_t, std::deque<SelfMessage>> by_lane;
  std::map<uint64_t, int> awaited;  // receives by lane that have not found their message
};

struct Request {
  struct Part {  // the launches on one communicator
    Comm* comm;
    Launch launch;
  };
  struct Arrival {  // a message that must arrive with this size
    int peer, lane;
    uint64_t number, bytes;
    bool agreed = false;
  };
  struct SelfReceive {
    uint64_t lane;
    void* to;
    size_t bytes;
    cudaStream_t stream;  // stream of the copy; null = the host copies
  };
  struct Call {  // a collective, compared with the previous member's call
    uint64_t sequence, fingerprint, count;
    bool agreed = false;
  };

  std::deque<Part> parts;  // a deque, because launches are referenced by address
  std::vector<Bounce> bounces;
  std::vector<Arrival> arrivals;
  std::vector<SelfReceive> from_itself;
  std::vector<SelfMessage> copies;  // copies in progress
  std::vector<int> peers;           // ranks on which the request depends
  Comm* collective = nullptr;
  std::optional<Call> call;

  Failure failure;
  Clock::time_point since = Clock::now(), failed_at{};
  bool stalled = false;
};

}  // namespace prun::nccl
