// What a rank knows of another one.
#pragma once
#include <prun/transport.h>
#include <ucp/api/ucp.h>

#include <array>
#include <vector>

namespace prun::ucx {

class Context;

struct Peer {
  Context* context = nullptr;
  int rank = -1;
  ucp_ep_h endpoint = nullptr;
  bool same_host = false;  // then made without UCX's error handling
  ucs_status_t lost = UCS_OK;
  // What it has allocated; the first is its window.
  struct Memory {
    uint64_t address = 0, bytes = 0;
    ucp_rkey_h key = nullptr;
    const char* mapped = nullptr;  // here, where it can be
  };
  std::vector<Memory> memory;
  bool maps_us = false;                                // as we map all of its memory
  std::array<uint64_t, PRUN_MAX_SIGNAL + 1> raised{};  // how often it has raised each signal here
};

}  // namespace prun::ucx
