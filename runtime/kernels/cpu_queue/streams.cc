#include "kernels/cpu_queue/streams.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "prun/sdk/failure.h"

namespace prun::cpu_queue {
namespace {

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

}  // namespace

bool EventState::reached() {
  std::lock_guard lock(mutex);
  return completed >= recorded;
}

double EventState::ms() {
  std::lock_guard lock(mutex);
  return static_cast<double>(ns) / 1e6;
}

Stream::Stream() : thread_([this] { run(); }) {}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::push(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    rethrow();
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
}

bool Stream::idle() {
  std::lock_guard lock(mutex_);
  rethrow();
  return queue_.empty() && !busy_;
}

void Stream::wait() {
  std::unique_lock lock(mutex_);
  emptied_.wait(lock, [&] { return queue_.empty() && !busy_; });
  rethrow();
}

void Stream::rethrow() {
  if (!error_.empty()) throw std::runtime_error(error_);
}

void Stream::run() {
  prctl(PR_SET_NAME, "cpu-queue");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !queue_.empty() || closed_; });
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    std::string error;
    try {
      work();
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    work = nullptr;
    lock.lock();
    if (error_.empty()) error_ = error;
    busy_ = false;
    if (queue_.empty()) emptied_.notify_all();
  }
}

void Issuer::issue(Call call) {
  if (capture_ != nullptr && call.wait != nullptr && call.wait->captured) captured_.insert(call.stream);
  const bool captured = capture_ != nullptr && captured_.count(call.stream) != 0;
  if (call.record != nullptr) call.record->captured = captured;
  if (captured)
    capture_->calls.push_back(std::move(call));
  else
    pass(call);
}

void Issuer::pass(const Call& call) {
  if (call.record != nullptr) {
    uint64_t ticket = 0;
    {
      std::lock_guard lock(call.record->mutex);
      ticket = ++call.record->recorded;
    }
    call.stream->push([event = call.record, ticket] {
      std::lock_guard lock(event->mutex);
      event->completed = std::max(event->completed, ticket);
      event->ns = now_ns();
      event->changed.notify_all();
    });
  } else if (call.wait != nullptr) {
    uint64_t ticket = 0;
    {
      std::lock_guard lock(call.wait->mutex);
      ticket = call.wait->recorded;
    }
    call.stream->push([event = call.wait, ticket] {
      std::unique_lock lock(event->mutex);
      event->changed.wait(lock, [&] { return event->completed >= ticket; });
    });
  } else {
    call.stream->push(call.work);
  }
}

void Issuer::begin_capture(Stream* origin) {
  if (capture_ != nullptr) throw sdk::Failure(PRUN_EINVAL, "a capture is under way already");
  capture_ = std::make_unique<Graph>();
  captured_ = {origin};
}

std::unique_ptr<Graph> Issuer::end_capture(Stream* origin) {
  if (capture_ == nullptr) throw sdk::Failure(PRUN_EINVAL, "no capture is under way");
  std::unique_ptr<Graph> graph = std::exchange(capture_, nullptr);
  graph->streams.assign(captured_.begin(), captured_.end());
  for (Stream* stream : captured_) {
    const auto last = std::find_if(graph->calls.rbegin(), graph->calls.rend(),
                                   [&](const Call& call) { return call.stream == stream; });
    if (stream != origin && last != graph->calls.rend() && last->record == nullptr)
      throw sdk::Failure(PRUN_EINVAL, "a stream that is part of the capture was not joined before its end");
  }
  return graph;
}

void Issuer::launch(const Graph& graph, Stream* stream) {
  if (capture_ != nullptr) throw sdk::Failure(PRUN_EINVAL, "a graph is launched during a capture");
  const Event start = std::make_shared<EventState>();
  pass({stream, {}, start, {}});
  for (Stream* part : graph.streams)
    if (part != stream) pass({part, {}, {}, start});
  for (const Call& call : graph.calls) pass(call);
  for (Stream* part : graph.streams) {
    if (part == stream) continue;
    const Event end = std::make_shared<EventState>();
    pass({part, {}, end, {}});
    pass({stream, {}, {}, end});
  }
}

}  // namespace prun::cpu_queue
