// Progress without a request in mind.
#include <prun/chaos.h>
#include <prun/progress.h>

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

const void* Context::ext(std::string_view id) {
  static const prun_progress table = {
      .size = sizeof(prun_progress),
      .progress = [](prun_ctx* ctx, int milliseconds) { sdk::context_of<Context>(ctx).progress(milliseconds); },
      .ended =
          [](prun_ctx* ctx, prun_req* req) {
            const auto* request = reinterpret_cast<const Request*>(req);
            return sdk::context_of<Context>(ctx).ended(request) ? 1 : 0;
          }};
  return id == PRUN_PROGRESS ? &table : id == PRUN_CHAOS ? chaos_table() : nullptr;
}

}  // namespace prun::socket
