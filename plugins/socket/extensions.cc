// The extensions of the plugin: progress without a request (PRUN_PROGRESS) and fault injection (PRUN_CHAOS).
#include <prun/chaos.h>
#include <prun/progress.h>

#include "connection.h"
#include "context.h"

namespace prun::socket {

void Context::progress(int milliseconds) {
  std::unique_lock lock(mutex_);
  if (someone_polls_) {
    changed_.wait_for(lock, std::chrono::milliseconds(milliseconds));
    return;
  }
  someone_polls_ = true;
  lock.unlock();
  const bool events = poller_.wait(milliseconds);
  lock.lock();
  if (events) poller_.dispatch();
  if (!events && milliseconds > 0) when_idle();
  flush();
  someone_polls_ = false;
  changed_.notify_all();
}

bool Context::ended(const Request* request) {
  const std::lock_guard lock(mutex_);
  return request->ended() || stopped();
}

// Injects a fault into the first open connection to the peer. Returns false if there is none.
bool Context::disturb(int fault, int peer, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  if (peer < 0 || peer >= ranks || peer == rank) return false;
  for (auto& connection : matcher_.peer(peer).connections) {
    if (connection == nullptr || !connection->open()) continue;
    connection->disturb(static_cast<prun_fault>(fault), seed);
    return true;
  }
  return false;
}

const void* Context::ext(std::string_view id) {
  static const prun_progress progress = {
      .size = sizeof(prun_progress),
      .progress = [](prun_ctx* ctx, int milliseconds) { sdk::context_of<Context>(ctx).progress(milliseconds); },
      .ended =
          [](prun_ctx* ctx, prun_req* req) {
            const auto* request = reinterpret_cast<const Request*>(req);
            return sdk::context_of<Context>(ctx).ended(request) ? 1 : 0;
          }};
  static const prun_chaos chaos = {.size = sizeof(prun_chaos),
                                   .disturb = [](prun_ctx* ctx, int fault, int peer, uint64_t seed) {
                                     return sdk::context_of<Context>(ctx).disturb(fault, peer, seed) ? 1 : 0;
                                   }};
  if (id == PRUN_PROGRESS) return &progress;
  return id == PRUN_CHAOS ? &chaos : nullptr;
}

}  // namespace prun::socket
