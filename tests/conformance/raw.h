// Ranks that call the plugin's own functions directly, as prun/transport.h specifies.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/transport_session.h"
#include "tests/conformance/suite.h"

namespace prun::testing {

struct Raw {
  LocalBootstrap& bootstrap;
  TransportSession& session;
  int rank, ranks;

  static prun_p2p send(int to, uint64_t lane, const void* data, size_t bytes) {
    return {0, to, lane, const_cast<void*>(data), bytes, PRUN_MEM_HOST, nullptr};
  }
  static prun_p2p recv(int from, uint64_t lane, void* data, size_t bytes) {
    return {1, from, lane, data, bytes, PRUN_MEM_HOST, nullptr};
  }
  prun_req* post(std::vector<prun_p2p> ops);  // throws Error(transport)
  void wait(prun_req* req);                   // throws as TransportSession::fail does
  void run(const std::vector<prun_p2p>& ops) { wait(post(ops)); }
};

// Returns an open session that is not connected.
std::unique_ptr<TransportSession> open_raw(LocalBootstrap& bootstrap, const WorldOptions& options);

// Runs the body in each of `ranks` connected ranks. Returns "" or the text of failures().
std::string run_raw(int ranks, const std::function<std::string(Raw&)>& body, double timeout_s = 60);

// Returns whether the transport is queue-ordered: it keeps a queue's order on both sides, so an unreceived send may
// block later ones.
bool queue_ordered();

}  // namespace prun::testing
