// Progress without a request in mind.
#include <prun/progress.h>

#include <cstring>

#include "context.h"

namespace prun_socket {

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
  if (!events && milliseconds > 0) matcher_.announce_waiting(Clock::now());
  flush();
  someone_polls_ = false;
  changed_.notify_all();
}

bool Context::ended(const prun_req* request) {
  const std::lock_guard lock(mutex_);
  return request->ended() || aborted();
}

const void* extension(const char* id) {
  static const prun_progress table = {
      .size = sizeof(prun_progress),
      .progress = [](prun_ctx* ctx, int milliseconds) { ctx->context.progress(milliseconds); },
      .ended = [](prun_ctx* ctx, prun_req* req) { return ctx->context.ended(req) ? 1 : 0; }};
  return std::strcmp(id, PRUN_PROGRESS) == 0 ? &table : nullptr;
}

}  // namespace prun_socket
