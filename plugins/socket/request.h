// A request (one batch) and its messages. Messages have stable addresses, because queues and connections point at them
// until the message is complete or its request has been dropped.
#pragma once
#include <prun/sdk/failure.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace prun::socket {

using sdk::Failure;
using Clock = std::chrono::steady_clock;

struct Peer;
struct Lane;
struct Request;

struct Message {
  Request* request = nullptr;
  Peer* peer = nullptr;
  Lane* lane = nullptr;
  char* data = nullptr;  // the caller's buffer
  uint64_t bytes = 0;
  uint64_t staged = 0;  // bytes of a send that were handed to connections
  uint64_t moved = 0;   // bytes written to sockets, or received
  uint32_t sequence = 0;
  uint16_t lane_id = 0;
  bool is_recv = false;
  bool complete = false;
  bool announced = false;
  Clock::time_point since{};  // when a large send began to wait for its receiver
};

struct Request {
  std::vector<Message> messages;  // never resized after creation
  size_t pending = 0;
  Failure failure;  // the first failure; ends the request

  bool ended() const { return pending == 0 || failure; }
};

}  // namespace prun::socket
