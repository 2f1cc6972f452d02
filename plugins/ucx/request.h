// A request and its operations. UCX holds on to an operation from posting it to its callback, so a request whose
// operations have not all ended outlives the failure that ended it.
#pragma once
#include <prun/transport.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace prun_ucx {

class Context;

struct Operation {
  Context* context = nullptr;
  prun_req* request = nullptr;
  int peer = -1;
  bool is_recv = false;
  bool open = true;
  bool any_size = false;  // a receive of at most `bytes`
  uint16_t lane = 0;
  size_t bytes = 0;
  struct Signal {  // to raise once a put has reached the peer, as it travels; 0 none
    uint32_t sender = 0, number = 0;
  } signal;
};

}  // namespace prun_ucx

struct prun_req {
  std::vector<prun_ucx::Operation> operations;  // sized once
  size_t open = 0;                              // of them
  bool failed = false;                          // one of them has
  const uint64_t* counter = nullptr;            // wait_signal: of this signal
  uint64_t count = 0;                           // that it waits for

  bool ended() const { return open == 0 && (counter == nullptr || *counter >= count); }
};
