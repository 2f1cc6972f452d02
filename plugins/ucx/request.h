// A request and its operations. UCX refers to an operation from posting it to its callback, so a request with open
// operations outlives the failure that ended it.
#pragma once
#include <prun/transport.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace prun::ucx {

class Context;
struct Request;

// Wire format: location of a message that the receiver may copy from the sender's memory.
struct Place {
  using Mark = std::array<uint64_t, 2>;
  Mark mark{};
  uint64_t memory = 0, offset = 0, bytes = 0;
  uint64_t number = 0;  // number of this loan
};

struct Operation {
  Context* context = nullptr;
  Request* request = nullptr;
  int peer = -1;
  bool is_recv = false;
  bool open = true;
  uint8_t parts = 1;                // completions still expected
  std::string* any_size = nullptr;  // set for a receive of at most `bytes` bytes: resized to the message
  uint16_t lane = 0;
  void* data = nullptr;
  size_t bytes = 0;
  // Location of a lent message, and the bytes copied so far. A receive shorter than a Place is received into `place`,
  // because the message may be one.
  Place place;
  const char* source = nullptr;
  size_t moved = 0;
  struct Signal {  // wire format; raised once a put has reached the peer; number 0 = none
    uint32_t sender = 0, number = 0;
  } signal;
};

struct Request {
  std::vector<Operation> operations;  // never resized after creation
  size_t open = 0;                    // number of operations that have not ended
  bool failed = false;                // an operation has failed
  const uint64_t* counter = nullptr;  // wait_signal: the signal's counter
  uint64_t count = 0;                 // wait_signal: the awaited value

  bool ended() const { return open == 0 && (counter == nullptr || *counter >= count); }
};

}  // namespace prun::ucx
