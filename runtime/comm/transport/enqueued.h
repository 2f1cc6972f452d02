// Requests of collectives that are in a device's queue: a thread asks how they end, since whoever enqueues may not
// wait.
//
// On a queue, "started" and "ended" lie far apart: in front may be a long computation, or a message whose other side
// this rank has yet to enqueue. So Communicator::run returns when a call is in the queue, and its end, good or bad, is
// learnt here: a rank that calls something else, one that is gone, one that never comes.
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
  // `doing` opens the sentence of a failure: "all_reduce f32[1024] sum". The thread that enqueues.
  void add(prun_req* req, std::string doing);
  // Throws the first failure that has come to light, an abort only when no other has come within a second. Any thread.
  void check();
  // A call was refused because its communicator failed: waits for the request that says why, and throws that. Any
  // thread.
  void explain();
  // Sees all requests out, those that do not end within a second by aborting. Before their communicators are freed.
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
  bool aborted_ PRUN_GUARDED_BY(mutex_) = false;  // some request ended because of another's failure
  std::chrono::steady_clock::time_point aborted_at_ PRUN_GUARDED_BY(mutex_){};
  std::thread thread_;  // of add and finish
};

}  // namespace prun
