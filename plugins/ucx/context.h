// A context: one rank's end of the transport. Its lock guards the worker and everything below it.
//
// The first failure ends everything: from then on UCX makes no progress, so that what is half received is never written
// into memory that its owner has freed, and what is still under way is left to the end of the process.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "failure.h"
#include "log.h"
#include "peer.h"
#include "request.h"
#include "worker.h"

namespace prun_ucx {

using Clock = std::chrono::steady_clock;

Place::Mark mark_of(const uint8_t (&secret)[32]);  // tells places of a job from messages

class Context {
 public:
  Context(const prun_open_params& params, const prun_host* host);  // throws Failure
  ~Context();
  Context(const Context&) = delete;
  static void close(std::unique_ptr<Context> context);

  // These throw Failure, too, where they cannot start.
  size_t address(void* blob, size_t room);
  prun_status connect(const void* const* blobs, const size_t* bytes, prun_result* result);
  prun_req* batch(const prun_p2p* ops, size_t n);
  prun_status test(prun_req* request, prun_result* result);
  void abort();  // any thread
  int wait_fd() const { return worker_.fd(); }

  void* allocate(size_t bytes, void** handle);
  void free(void* handle);
  prun_req* put(int peer, const void* src, size_t offset, size_t bytes, uint64_t signal);
  prun_req* get(int peer, void* dst, size_t offset, size_t bytes);
  prun_req* signal(int peer, uint64_t number);
  prun_req* wait_signal(int peer, uint64_t number, uint64_t count);

 private:
  bool stopped() const {
    return aborted_.load(std::memory_order_relaxed) || (host_->aborted != nullptr && host_->aborted() != 0);
  }
  std::unique_lock<std::mutex> enter();
  void fail(Failure failure);  // keeps the first one
  void check_usable();
  Peer& peer_of(int rank);

  // Operations: posted, and ended by a return value or a callback of UCX.
  std::unique_ptr<prun_req> new_request(size_t operations);
  void check_message(const prun_p2p& op) const;
  void post(Operation& operation, uint64_t tag, void* data);
  prun_req* hand_over(std::unique_ptr<prun_req> request);
  void started(Operation& operation, ucs_status_ptr_t ucx);
  void ended(Operation& operation, ucs_status_t status);
  void received(Operation& operation, ucs_status_t status, size_t bytes);
  void differs(Operation& operation, size_t bytes);  // the message had so many
  static ucp_request_param_t with_callback(ucp_send_nbx_callback_t callback, Operation& operation);
  static void on_ended(void* ucx, ucs_status_t status, void* operation);
  static void on_received(void* ucx, ucs_status_t status, const ucp_tag_recv_info_t* info, void* operation);

  // Waiting.
  bool progress() { return static_cast<int>(worker_.progress()) + static_cast<int>(copy_some()) > 0; }
  bool settled(const prun_req& request);
  prun_status finish(prun_req* request, prun_result* result);
  Failure awaited(const prun_req& request) const;
  void make_progress(std::unique_lock<std::mutex>& lock, const prun_req& request, Clock::time_point deadline);
  void give_way(std::unique_lock<std::mutex>& lock, bool yield);
  void sleep(std::unique_lock<std::mutex>& lock, Clock::time_point deadline);

  // join.cc
  void start_connecting(const void* const* blobs, const size_t* bytes);
  void create_endpoint(Peer& peer, const std::string& address);
  std::string own_hello();
  Failure awaited_to_join() const;
  void read_hello(Peer& peer, std::string_view hello);
  bool close_endpoints(Clock::time_point deadline);
  static void on_lost(void* peer, ucp_ep_h, ucs_status_t status);

  // onesided.cc
  template <class Start>
  prun_req* one_sided(int peer, uint64_t number, Start start);
  const Peer::Memory& window(int rank, size_t offset, size_t bytes);
  void listen(unsigned message, ucp_am_recv_callback_t callback);
  void listen_to_signals();
  void was_put(Operation& operation, ucs_status_t status);
  void was_flushed(Operation& operation, ucs_status_t status);
  static void on_put(void* ucx, ucs_status_t status, void* operation);
  static void on_flushed(void* ucx, ucs_status_t status, void* operation);
  static ucs_status_t on_signal(void* context, const void* header, size_t bytes, void*, size_t,
                                const ucp_am_recv_param_t*);

  // lend.cc
  bool lend(Operation& operation, Peer& peer, uint64_t tag);  // false: the message is to be sent
  void borrow(Operation& operation, const Place& place);
  bool copy_some();
  void was_got(Operation& operation, ucs_status_t status);
  void listen_to_takers();
  static void on_got(void* ucx, ucs_status_t status, void* operation);
  static ucs_status_t on_taken(void* context, const void* header, size_t bytes, void*, size_t,
                               const ucp_am_recv_param_t*);

  struct Memory {
    ucp_mem_h handle = nullptr;
    const char* start = nullptr;
    size_t bytes = 0;
  };

  LogOpen log_open_;
  const prun_host* const host_;
  const int rank_, ranks_;
  const Clock::duration spin_, yield_;  // before sleeping
  const Place::Mark mark_;              // of this job
  Worker worker_;
  std::vector<Peer> peers_;
  std::vector<Memory> memory_;       // the first is the window
  size_t shared_ = 0;                // of it, that others know
  std::vector<std::string> hellos_;  // everybody's, and ours as it is sent
  std::unique_ptr<prun_req> joining_;
  bool connected_ = false;
  std::atomic<bool> aborted_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> wanted_{0};     // threads that want the lock
  bool someone_sleeps_ = false;    // one thread sleeps for all
  int waiting_ = 0;                // threads that wait for it
  Clock::time_point quiet_since_;  // the epoch: something has just happened
  int refused_ = 0;                // how often in a row UCX could not be slept on
  size_t open_ = 0;                // operations that UCX holds
  bool some_lost_ = false;
  std::unordered_map<uint64_t, Operation*> lent_;  // by number
  uint64_t lent_so_far_ = 0;
  std::deque<Operation*> copies_;  // receives that have a place to copy from
  Failure failure_;
  std::vector<std::unique_ptr<prun_req>> unfinished_;  // failed, and not let go by UCX
};

}  // namespace prun_ucx
