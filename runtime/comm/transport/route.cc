// Divides batches between two transports, and waits for both.
#include "comm/transport/route.h"

#include <algorithm>
#include <chrono>

#include "comm/transport/job_state.h"
#include "comm/transport/long_wait.h"

namespace prun {

bool Route::queue_ordered() const {
  return std::any_of(legs_, legs_ + 2,
                     [](const Leg& leg) { return leg.session != nullptr && leg.session->table().queue_ordered != 0; });
}

prun_status Route::start(int leg, std::vector<prun_p2p>& ops, Request& request, prun_result& result) {
  for (prun_p2p& op : ops) op.tag = static_cast<uint64_t>(legs_[leg].tag);
  prun_status status = legs_[leg].session->batch(ops, &request.parts[leg], result);
  if (status == PRUN_OK) return status;
  request.parts[leg] = nullptr;
  failed_ = legs_[leg].session;
  return status;
}

prun_status Route::batch(std::vector<prun_p2p>& ops, Request& request, prun_result& result) {
  request = {};
  if (legs_[1].session == nullptr) return start(0, ops, request, result);
  for (Leg& leg : legs_) leg.ops.clear();
  for (const prun_p2p& op : ops) legs_[legs_[0].session->plugin_rank(op.peer) < 0 ? 1 : 0].ops.push_back(op);
  // Post inter-host messages before intra-host ones.
  for (int leg : {1, 0}) {
    if (legs_[leg].ops.empty()) continue;
    prun_status status = start(leg, legs_[leg].ops, request, result);
    if (status != PRUN_OK) return status;
  }
  return PRUN_OK;
}

prun_status Route::wait(Request& request, int64_t bytes, prun_result& result) {
  if (request.parts[0] != nullptr && request.parts[1] != nullptr) return wait_in_turns(request, bytes, result);
  for (int leg : {0, 1}) {
    if (request.parts[leg] == nullptr) continue;
    prun_status status = legs_[leg].session->wait(request.parts[leg], bytes, result);
    if (status != PRUN_AGAIN) request.parts[leg] = nullptr;
    if (status != PRUN_OK) failed_ = legs_[leg].session;
    return status;
  }
  return PRUN_OK;
}

prun_status Route::test(Request& request, prun_result& result) {
  const int leg = request.parts[0] != nullptr ? 0 : 1;
  const prun_status status = legs_[leg].session->test(request.parts[leg], result);
  if (status != PRUN_AGAIN) request.parts[leg] = nullptr;
  if (status != PRUN_OK && status != PRUN_AGAIN) failed_ = legs_[leg].session;
  return status;
}

prun_status Route::wait_in_turns(Request& request, int64_t bytes, prun_result& result) {
  AwakeTime waited;
  auto limit = std::chrono::duration<double>(limit_s(legs_[0].session->deadline_s(), bytes));
  bool aborted = false;
  LongWait long_wait;
  while (request.parts[0] != nullptr && request.parts[1] != nullptr) {
    for (int leg : {0, 1}) {
      failed_ = legs_[leg].session;
      prun_status status = legs_[leg].session->test(request.parts[leg], result);
      if (status == PRUN_AGAIN) continue;
      request.parts[leg] = nullptr;
      if (status != PRUN_OK) return status;
      break;
    }
    const auto now = std::chrono::steady_clock::now();
    long_wait.go_on(now, result.culprit);
    if (waited.until(now) > limit) {
      failed_ = legs_[0].session;
      return PRUN_AGAIN;
    }
    if (!aborted && job_aborted()) {
      for (const Leg& leg : legs_) leg.session->abort();
      aborted = true;
    }
  }
  long_wait.end(PRUN_OK);
  return wait(request, bytes, result);
}

void Route::drain(const std::vector<Request>& requests) {
  for (int leg : {0, 1}) {
    std::vector<prun_req*> parts;
    for (const Request& request : requests)
      if (request.parts[leg] != nullptr) parts.push_back(request.parts[leg]);
    if (!parts.empty()) legs_[leg].session->drain(parts);
  }
}

}  // namespace prun
