// A context: one rank's end of the transport. It owns everything; its lock guards all objects that it owns.
#pragma once
#include <prun/sdk/yields.h>

#include <condition_variable>
#include <mutex>
#include <optional>

#include "connection.h"
#include "connector.h"

namespace prun::socket {

class Context : public sdk::Transport {
 public:
  using Request = socket::Request;

  explicit Context(const prun_open_params& params);
  ~Context();

  std::string address() { return sdk::bytes_of(connector_->address()); }
  Failure connect(const sdk::Blobs& blobs);
  Request* batch(std::span<const prun_p2p> ops, prun_queue);
  Failure test(Request* request);
  void abort();
  int wait_fd() const { return poller_.fd(); }
  // Any rank can be reached; shared memory scores higher where it is available.
  static int score(const prun_open_params&, std::span<const int>) { return 20; }
  static const void* ext(std::string_view id);  // defined in extensions.cc
  static void check_options(const char* text) { parse_options(text); }

  // The extensions (extensions.cc).
  void progress(int milliseconds);
  bool ended(const Request* request);
  bool disturb(int fault, int peer, uint64_t seed);

 private:
  struct Waker : EventSource {  // an eventfd that ends an epoll_wait from another thread
    Descriptor event;
    void on_event(uint32_t) override {}
  };

  void flush();      // called under the lock
  void when_idle();  // called under the lock after a wait without events
  void make_progress(std::unique_lock<std::mutex>& lock, Request& request, Clock::time_point deadline);
  bool poll(std::unique_lock<std::mutex>& lock, int milliseconds);
  bool read_awaited(Request& request);
  Failure finish(Request* request);

  const bool may_spin_;
  const Options options_;
  const sdk::Identity identity_;
  Poller poller_;
  Waker waker_;
  Matcher matcher_;
  std::optional<Connector> connector_;  // reset once connected

  std::mutex mutex_;
  std::condition_variable changed_;
  bool someone_polls_ = false;  // a thread makes progress for all requests
  sdk::CountedYields yields_;
  uint64_t quiet_since_ = 0;  // time in ns since which no event arrived; 0 = unset
  int waiting_ = 0;           // threads waiting on changed_
};

}  // namespace prun::socket
