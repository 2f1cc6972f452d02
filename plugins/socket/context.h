// A context: one rank's end of the transport. Owns everything; its lock guards everything below it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "connection.h"
#include "join.h"

namespace prun_socket {

class Context {
 public:
  Context(const prun_open_params& params, const prun_host* host);  // throws Failure
  ~Context();
  Context(const Context&) = delete;

  size_t address(void* blob, size_t room);                      // throws Failure
  bool connect(const void* const* blobs, const size_t* bytes);  // false: Join::missing says who; throws
  Failure missing() const { return join_->missing(); }
  prun_req* batch(const prun_p2p* ops, size_t n);  // throws Failure
  prun_status test(prun_req* request, prun_result* result);
  void progress(int milliseconds);  // progress.cc
  bool ended(const prun_req* request);
  void abort();
  int wait_fd() const { return poller_.fd(); }

 private:
  struct Waker : EventSource {  // ends an epoll_wait from another thread
    Descriptor event;
    void on_event(uint32_t) override {}
  };

  bool aborted() const {
    return aborted_.load(std::memory_order_relaxed) || (host_ && host_->aborted && host_->aborted());
  }
  void check(const prun_p2p& op) const;
  void flush();  // under the lock
  void make_progress(std::unique_lock<std::mutex>& lock, prun_req& request, Clock::time_point deadline);
  prun_status finish(prun_req* request, prun_result* result);
  void log(int level, const std::string& text) const;

  const prun_host* const host_;
  const int rank_;
  const bool may_spin_;
  const Options options_;
  Identity identity_;
  Poller poller_;
  Waker waker_;
  Matcher matcher_;
  std::optional<Join> join_;  // until connected
  std::atomic<bool> aborted_{false};
  bool connected_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool someone_polls_ = false;  // one thread makes progress for all
  int waiting_ = 0;             // threads that wait for it
};

const void* extension(const char* id);  // progress.cc

}  // namespace prun_socket

struct prun_ctx {
  prun_socket::Context context;
};
