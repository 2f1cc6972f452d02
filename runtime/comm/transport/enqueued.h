// Requests of collectives in a device's queue: a thread tests them, because the enqueuing thread must not wait.
//
// In a queue, the start and the end of a call are far apart: a long computation may precede it, or a message whose
// other side this rank has yet to enqueue. Communicator::run therefore returns once a call is in the queue, and this
// class detects its end or failure: a rank that calls something else, is lost, or never arrives.
#pragma once
#include <chrono>
#include <deque>
#include <exception>
#include <string>
#include <thread>

#include "base/thread_annotations.h"
#include "prun/transport.h"

namespace prun {

class TransportSession;

class Enqueued {
 public:
  explicit Enqueued(TransportSession& session) : session_(session) {}
  ~Enqueued() { finish(); }
  // `doing` opens the sentence of a failure: "all_reduce f32[1024] sum". Called by the enqueuing thread.
  void add(prun_req* req, std::string doing);
  // Throws the first failure; an abort only if no other failure follows within a second. Any thread.
  void check();
  // Called after a call was refused because its communicator has failed. Waits up to a second for the request that
  // failed, and throws its error. Any thread.
  void explain();
  // Waits for all requests; after a second, aborts those that remain. Call before their communicators are freed.
  void finish();

 private:
  struct Entry {
    prun_req* req;
    std::string doing;
  };
  void run();
  void failed(prun_status status, const prun_result& result, const std::string& doing);

  TransportSession& session_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_ PRUN_GUARDED_BY(mutex_);
  bool closed_ PRUN_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ PRUN_GUARDED_BY(mutex_);
  bool aborted_ PRUN_GUARDED_BY(mutex_) = false;  // some request ended because of another one's failure
  std::chrono::steady_clock::time_point aborted_at_ PRUN_GUARDED_BY(mutex_){};
  std::thread thread_;  // used by add and finish
};

}  // namespace prun
