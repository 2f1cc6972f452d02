// A context: one rank's end of the transport. Its lock guards the worker and all objects that it owns.
//
// The first failure is final: UCX makes no progress afterwards, so that a partly received message is never written into
// memory that its owner has freed. Open operations are retained until the process ends.
#pragma once
#include <prun/sdk/transport.h>

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

#include "log.h"
#include "request.h"
#include "worker.h"

namespace prun::ucx {

using Clock = std::chrono::steady_clock;
class Context;

Place::Mark mark_of(const uint8_t (&secret)[32]);  // identifies a Place among messages

// State of a peer.
struct Peer {
  Context* context = nullptr;
  int rank = -1;
  ucp_ep_h endpoint = nullptr;
  bool same_host = false;  // the peer's endpoint then has no UCX error handling
  ucs_status_t lost = UCS_OK;
  // Memory allocated by the peer; the first piece is its window.
  struct Memory {
    uint64_t address = 0, bytes = 0;
    ucp_rkey_h key = nullptr;
    const char* mapped = nullptr;  // address in this process; null = not mappable
  };
  std::vector<Memory> memory;
  bool maps_us = false;                                // the peer maps our memory, as we map all of the peer's
  std::array<uint64_t, PRUN_MAX_SIGNAL + 1> raised{};  // count of each signal that it has raised here
};

class Context : public sdk::Transport {
 public:
  using Request = ucx::Request;

  explicit Context(const prun_open_params& params);
  ~Context();
  static void close(std::unique_ptr<Context> context);

  std::string address();
  Failure connect(const sdk::Blobs& blobs);
  Request* batch(std::span<const prun_p2p> ops, prun_queue);
  Failure test(Request* request);
  void abort();
  int wait_fd() const { return worker_.fd(); }
  void* mem_alloc(size_t bytes, int kind, void*& handle);
  void mem_free(void* ptr, void* handle);
  Request* put(int peer, const void* src, size_t offset, size_t bytes, uint64_t number);
  Request* get(int peer, void* dst, size_t offset, size_t bytes);
  Request* signal(int peer, uint64_t number);
  Request* wait_signal(int peer, uint64_t number, uint64_t count);
  static int score(const prun_open_params& params, std::span<const int> ranks);
  static void check_options(const char* text) { parse_options(text); }

 private:
  std::unique_lock<std::mutex> enter();
  void fail(Failure failure);  // records a failure; the first one wins
  void check_usable();

  // Operations. Each is posted, and completed by a return value or a UCX callback.
  std::unique_ptr<Request> new_request(size_t operations);
  void post(Operation& operation, uint64_t tag, void* data);
  Request* hand_over(std::unique_ptr<Request> request);
  void started(Operation& operation, ucs_status_ptr_t ucx);
  void ended(Operation& operation, ucs_status_t status);
  void received(Operation& operation, ucs_status_t status, size_t bytes);
  void differs(Operation& operation, size_t bytes);  // fails the operation because the message had `bytes` bytes
  static ucp_request_param_t with_callback(ucp_send_nbx_callback_t callback, Operation& operation);
  static void on_ended(void* ucx, ucs_status_t status, void* operation);
  static void on_received(void* ucx, ucs_status_t status, const ucp_tag_recv_info_t* info, void* operation);

  // Waiting.
  bool progress() { return static_cast<int>(worker_.progress()) + static_cast<int>(copy_some()) > 0; }
  bool settled(const Request& request);
  Failure finish(Request* request);
  Failure awaited(const Request& request) const;
  void make_progress(std::unique_lock<std::mutex>& lock, const Request& request, Clock::time_point deadline);
  void give_way(std::unique_lock<std::mutex>& lock, bool yield);
  void sleep(std::unique_lock<std::mutex>& lock, Clock::time_point deadline);

  // endpoints.cc
  void start_connecting(const sdk::Blobs& blobs);
  void create_endpoint(Peer& peer, const std::string& address);
  std::string own_hello();
  Failure awaited_to_connect() const;
  void read_hello(Peer& peer, std::string_view hello);
  bool close_endpoints(Clock::time_point deadline);
  static void on_lost(void* peer, ucp_ep_h, ucs_status_t status);

  // onesided.cc
  template <class Start>
  Request* one_sided(int peer, uint64_t number, Start start);
  const Peer::Memory& window(int peer, size_t offset, size_t bytes);
  void listen(unsigned message, ucp_am_recv_callback_t callback);
  void listen_to_signals();
  void was_put(Operation& operation, ucs_status_t status);
  void was_flushed(Operation& operation, ucs_status_t status);
  static void on_put(void* ucx, ucs_status_t status, void* operation);
  static void on_flushed(void* ucx, ucs_status_t status, void* operation);
  static ucs_status_t on_signal(void* context, const void* header, size_t bytes, void*, size_t,
                                const ucp_am_recv_param_t*);

  // lend.cc
  bool lend(Operation& operation, Peer& peer, uint64_t tag);  // returns false if the message must be sent
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
  const Clock::duration spin_, yield_;  // durations of the phases before sleeping
  const Place::Mark mark_;              // the mark of this job
  Worker worker_;
  std::vector<Peer> peers_;
  std::vector<Memory> memory_;       // this rank's memory; the first piece is the window
  size_t shared_ = 0;                // number of pieces of memory_ whose keys the peers have
  std::vector<std::string> hellos_;  // the peers' hellos, and this rank's own as the last
  std::unique_ptr<Request> connecting_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> wanted_{0};     // threads that wait for the lock
  bool someone_sleeps_ = false;    // one thread sleeps for all
  int waiting_ = 0;                // threads waiting on changed_
  Clock::time_point quiet_since_;  // start of the time without events; the epoch = not idle
  int refused_ = 0;                // consecutive failures to arm the worker
  size_t open_ = 0;                // operations that UCX holds
  bool some_lost_ = false;
  std::unordered_map<uint64_t, Operation*> lent_;  // lent messages by number
  uint64_t lent_so_far_ = 0;
  std::deque<Operation*> copies_;  // receives with a source to copy from
  Failure failure_;
  std::vector<std::unique_ptr<Request>> unfinished_;  // failed requests that UCX still holds
};

}  // namespace prun::ucx
