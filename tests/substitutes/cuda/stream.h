// Streams and events as the other files of the substitute use them.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "capture.h"
#include "substitute.h"

namespace substitute {

struct Stream {
  std::mutex mutex;
  std::condition_variable changed, finished;
  std::deque<Work> queue;
  uint64_t added = 0, done = 0;  // pieces of work
  bool running = false;          // its thread has started
  bool busy = false;             // its thread is executing work
  bool closed = false;
  bool blocking = false;  // ordered with the legacy stream
  int priority = 0;
  // Under the lock of captures.
  std::shared_ptr<Capture> capture;
  std::vector<size_t> last;  // nodes that the next one depends on
};

// `recorded` counts records, `completed` those that their stream has reached.
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, completed = 0;
  std::chrono::steady_clock::time_point when;  // time of the last change of `completed`
  bool timed = true;
  // Last recorded in a capture: under the lock of captures.
  std::shared_ptr<Capture> capture;
  std::vector<size_t> last;
};

using StreamHandle = std::shared_ptr<Stream>;
using EventHandle = std::shared_ptr<Event>;

// Both end the process for an invalid handle, and for a call from a host function.
StreamHandle of(cudaStream_t stream);
EventHandle of(cudaEvent_t event);

// A record is in flight from the call, or from the launch of its graph, until its stream reaches it.
uint64_t begin_record(Event& event);
void end_record(Event& event, uint64_t ticket);

void put(const StreamHandle& stream, Work work);  // bypasses any capture
bool is_legacy(cudaStream_t stream);
void wait(cudaStream_t stream);
void wait_for_all_streams();

}  // namespace substitute
