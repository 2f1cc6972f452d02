// A request and its operations. UCX holds on to an operation from posting it to its callback, so a request whose
// operations have not all ended outlives the failure that ended it.
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

// Where a message lies that the receiver may copy from its sender's memory, as it travels.
struct Place {
  using Mark = std::array<uint64_t, 2>;
  Mark mark{};
  uint64_t memory = 0, offset = 0, bytes = 0;
  uint64_t number = 0;  // of this loan
};

struct Operation {
  Context* context = nullptr;
  Request* request = nullptr;
  int peer = -1;
  bool is_recv = false;
  bool open = true;
  uint8_t parts = 1;                // that have to end
  std::string* any_size = nullptr;  // a receive of at most `bytes`: to be cut to what came
  uint16_t lane = 0;
  void* data = nullptr;
  size_t bytes = 0;
  // A lent message: where it lies, and how much of it has been copied. Also where a receive of less than a
  // Place arrives, which may be one.
  Place place;
  const char* source = nullptr;
  size_t moved = 0;
  struct Signal {  // to raise once a put has reached the peer, as it travels; 0 none
    uint32_t sender = 0, number = 0;
  } signal;
};

struct Request {
  std::vector<Operation> operations;  // sized once
  size_t open = 0;                    // of them
  bool failed = false;                // one of them has
  const uint64_t* counter = nullptr;  // wait_signal: of this signal
  uint64_t count = 0;                 // that it waits for

  bool ended() const { return open == 0 && (counter == nullptr || *counter >= count); }
};

}  // namespace prun::ucx
