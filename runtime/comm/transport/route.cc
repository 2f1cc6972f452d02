// Dividing batches between two transports, and waiting for both.
#include "comm/transport/route.h"

#include <chrono>

#include "comm/transport/job_state.h"

namespace prun {

prun_status Route::start(size_t leg, std::vector<prun_p2p>& ops, Request& request, prun_result& result) {
  for (prun_p2p& op : ops) op.tag = static_cast<uint64_t>(legs_[leg].lane);
  prun_status status = legs_[leg].link->batch(ops, &request.parts[leg], result);
  if (status == PRUN_OK) return status;
  request.parts[leg] = nullptr;
  failed_ = legs_[leg].link;
  return status;
}

prun_status Route::batch(std::vector<prun_p2p>& ops, Request& request, prun_result& result) {
  request = {};
  if (legs_[1].link == nullptr) return start(0, ops, request, result);
  for (Leg& leg : legs_) leg.ops.clear();
  for (const prun_p2p& op : ops) legs_[legs_[0].link->own_rank(op.peer) < 0 ? 1 : 0].ops.push_back(op);
  // What travels further starts first.
  for (size_t leg : {1, 0}) {
    if (legs_[leg].ops.empty()) continue;
    prun_status status = start(leg, legs_[leg].ops, request, result);
    if (status != PRUN_OK) return status;
  }
  return PRUN_OK;
}

prun_status Route::wait(Request& request, int64_t bytes, prun_result& result) {
  if (request.parts[0] != nullptr && request.parts[1] != nullptr) return wait_in_turns(request, bytes, result);
  for (size_t leg : {0, 1}) {
    if (request.parts[leg] == nullptr) continue;
    prun_status status = legs_[leg].link->wait(request.parts[leg], bytes, result);
    if (status != PRUN_AGAIN) request.parts[leg] = nullptr;
    if (status != PRUN_OK) failed_ = legs_[leg].link;
    return status;
  }
  return PRUN_OK;
}

prun_status Route::wait_in_turns(Request& request, int64_t bytes, prun_result& result) {
  auto start = std::chrono::steady_clock::now();
  auto limit = std::chrono::duration<double>(limit_s(deadline_s(), bytes));
  bool told = false;
  while (request.parts[0] != nullptr && request.parts[1] != nullptr) {
    for (size_t leg : {0, 1}) {
      result = empty_result();
      failed_ = legs_[leg].link;
      prun_status status = legs_[leg].link->test(request.parts[leg], result);
      if (status == PRUN_AGAIN) continue;
      request.parts[leg] = nullptr;
      if (status != PRUN_OK) return status;
      break;
    }
    if (std::chrono::steady_clock::now() - start > limit) {
      failed_ = legs_[0].link;
      return PRUN_AGAIN;
    }
    if (!told && host_aborted()) {
      for (const Leg& leg : legs_) leg.link->abort();
      told = true;
    }
  }
  return wait(request, bytes, result);
}

void Route::drain(const std::vector<Request>& requests) {
  for (size_t leg : {0, 1}) {
    std::vector<prun_req*> parts;
    for (const Request& request : requests)
      if (request.parts[leg] != nullptr) parts.push_back(request.parts[leg]);
    if (!parts.empty()) legs_[leg].link->drain(parts);
  }
}

}  // namespace prun
