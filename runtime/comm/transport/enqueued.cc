// One thread tests all requests, round-robin.
#include "comm/transport/enqueued.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/text.h"
#include "comm/transport/job_state.h"
#include "comm/transport/transport_session.h"

namespace prun {
namespace {

using Clock = std::chrono::steady_clock;
// Plugins keep a failed request until the device has released its memory.
constexpr auto kSettle = std::chrono::seconds(1);

}  // namespace

void Enqueued::add(prun_req* req, std::string doing) {
  MutexLock lock(mutex_);
  entries_.push_back({req, std::move(doing)});
  if (!thread_.joinable()) {
    closed_ = false;
    thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

void Enqueued::check() {
  MutexLock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  if (aborted_ && Clock::now() - aborted_at_ > kSettle) throw Aborted(job_abort_reason());
}

void Enqueued::explain() {
  MutexLock lock(mutex_);
  for (const Clock::time_point end = Clock::now() + kSettle; !failure_ && Clock::now() < end;)
    lock.wait_for(changed_, std::chrono::milliseconds(10));
  if (failure_) std::rethrow_exception(failure_);
}

void Enqueued::finish() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Enqueued::failed(prun_status status, const prun_result& result, const std::string& doing) {
  try {
    if (status == PRUN_AGAIN) {
      const std::string whom = result.culprit >= 0 ? fmt::format("rank {}", result.culprit) : "its members";
      throw Error(Exit::hang, fmt::format("{}: no progress on the device for {}, waiting for {}", doing,
                                          human_seconds(session_.deadline_s()), whom));
    }
    session_.fail(status, result, doing);
  } catch (const Aborted&) {
    MutexLock lock(mutex_);
    if (!std::exchange(aborted_, true)) aborted_at_ = Clock::now();
  } catch (...) {
    MutexLock lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
    changed_.notify_all();
  }
}

// Tests requests round-robin, up to 10 ms each; a request that ends out of order loses nothing by waiting.
void Enqueued::run() {
  Clock::time_point moved = Clock::now(), closing{};
  MutexLock lock(mutex_);
  for (;;) {
    if (entries_.empty()) {
      while (entries_.empty() && !closed_) lock.wait(changed_);
      if (entries_.empty()) return;
      moved = Clock::now();
    }
    if (closed_ && closing == Clock::time_point{}) closing = Clock::now();
    Entry entry = std::move(entries_.front());
    entries_.pop_front();
    lock.unlock();
    prun_result result = empty_result();
    const prun_status status = session_.test(entry.req, result);
    const bool late = std::chrono::duration<double>(Clock::now() - moved).count() > session_.deadline_s();
    const bool leaving = closing != Clock::time_point{} && Clock::now() - closing > kSettle;
    if (status == PRUN_AGAIN && (late || leaving)) {
      if (late) failed(status, result, entry.doing);
      session_.drain({entry.req});
    } else if (status != PRUN_OK && status != PRUN_AGAIN) {
      failed(status, result, entry.doing);
    }
    lock.lock();
    if (status == PRUN_AGAIN && !late && !leaving)
      entries_.push_back(std::move(entry));
    else
      moved = Clock::now();
  }
}

}  // namespace prun
