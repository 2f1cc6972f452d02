// A request: what it has enqueued, what it must still copy back, and what must agree with the other ranks before it may
// end well.
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

// Data that the device cannot reach travels in pinned memory.
struct Bounce {
  void* pinned;
  size_t bytes;
  void* user;  // copied there when all is done; null: it was sent
};

// A message to itself: copied on the sender's queue at once, so that the sender may go on.
struct SelfMessage {
  void* pinned;
  size_t bytes;
  cudaEvent_t event = nullptr;  // after the copy; null where the host has copied
  bool captured = false;  // a graph makes the copy at every launch: nobody asks the event, and `pinned` is the graph's
};
struct SelfMessages {
  std::mutex mutex;
  std::map<uint64_t, std::deque<SelfMessage>> by_lane;
};

struct Request {
  struct Part {  // of a communicator
    Comm* comm;
    Launch launch;
  };
  struct Arrival {  // a message that must come with these bytes
    int peer, lane;
    uint64_t number, bytes;
    bool agreed = false;
  };
  struct SelfReceive {
    uint64_t lane;
    void* to;
    size_t bytes;
    cudaStream_t stream;  // null: the host copies
  };
  struct Call {  // a collective, compared with the previous member's
    uint64_t sequence, fingerprint, count;
    bool agreed = false;
  };

  std::deque<Part> parts;  // launches are pointed at
  std::vector<Bounce> bounces;
  std::vector<Arrival> arrivals;
  std::vector<SelfReceive> from_itself;
  std::vector<SelfMessage> copies;  // on their way
  std::vector<int> peers;           // without whom it cannot end
  Comm* collective = nullptr;
  std::optional<Call> call;

  Failure failure;
  Clock::time_point since = Clock::now(), failed_at{};
  bool stalled = false;
};

}  // namespace prun::nccl
