// What a rank knows of another one.
#pragma once
#include <prun/transport.h>
#include <ucp/api/ucp.h>

#include <array>

namespace prun_ucx {

class Context;

// The memory that a rank lets others reach; `address` 0: none.
struct Window {
  uint64_t address = 0, bytes = 0;
};

struct Peer {
  Context* context = nullptr;
  int rank = -1;
  ucp_ep_h endpoint = nullptr;
  bool reports_loss = false;  // made with UCX's error handling
  ucs_status_t lost = UCS_OK;
  Window window;
  ucp_rkey_h key = nullptr;                            // of the window
  std::array<uint64_t, PRUN_MAX_SIGNAL + 1> raised{};  // how often it has raised each signal here
};

}  // namespace prun_ucx
