// A request (one batch) and its messages. The addresses of messages are stable: queues and connections point at them
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
  char* data = nullptr;  // the caller's
  uint64_t bytes = 0;
  uint64_t staged = 0;  // of a send: handed to connections
  uint64_t moved = 0;   // written to sockets, or arrived
  uint32_t sequence = 0;
  uint16_t lane_id = 0;
  bool is_recv = false;
  bool complete = false;
  bool announced = false;
  Clock::time_point since{};  // when a large send began to wait for its receiver
};

struct Request {
  std::vector<Message> messages;  // sized once
  size_t pending = 0;
  Failure failure;  // the first one; ends the request

  bool ended() const { return pending == 0 || failure; }
};

}  // namespace prun::socket
