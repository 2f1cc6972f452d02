// Streams, events and graphs on threads: a call enqueues work, which runs later on the stream's thread.
//
// A graph is the list of captured calls. A launch issues them again, between an event that starts all of its streams
// and events that end them. An exception of work is rethrown as std::runtime_error by the next call on its stream.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace prun::cpu_queue {

// `recorded` counts records, `completed` those that their stream has reached. Lives as long as work that refers to it.
struct EventState {
  bool reached();  // whether the stream has reached all records so far
  double ms();     // time of the last completion
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, completed = 0, ns = 0;
  bool captured = false;  // last recorded in a capture: orders streams of that graph only
};
using Event = std::shared_ptr<EventState>;

class Stream {
 public:
  Stream();
  ~Stream();  // runs the work that is still queued
  void push(std::function<void()> work);
  bool idle();  // throws the first error of its work
  void wait();

 private:
  void run();
  void rethrow();  // requires the mutex

  std::mutex mutex_;
  std::condition_variable changed_, emptied_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false, closed_ = false;
  std::string error_;
  std::thread thread_;
};

// A call on a stream: work, or an event to record or to wait for.
struct Call {
  Stream* stream;
  std::function<void()> work;
  Event record, wait;
};

struct Graph {
  std::vector<Call> calls;
  std::vector<Stream*> streams;
};

// Passes each call to its stream, or into the graph that is being captured.
class Issuer {
 public:
  void issue(Call call);
  void begin_capture(Stream* origin);
  std::unique_ptr<Graph> end_capture(Stream* origin);  // throws Failure if a stream was not joined
  void launch(const Graph& graph, Stream* stream);

 private:
  void pass(const Call& call);
  std::unique_ptr<Graph> capture_;
  std::set<Stream*> captured_;
};

}  // namespace prun::cpu_queue
