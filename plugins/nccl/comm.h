// A communicator, and the queue of calls on it.
//
// NCCL aborts a communicator safely at any time only if it is nonblocking, but it starts a thread for each call on a
// nonblocking one. So the parent is nonblocking, because ranks may be missing during init, and its child is blocking:
//
//     unique id --init--> parent (nonblocking, one CTA) --split--> child (blocking, runs all calls)
//
// Groups of all ranks are split off the world's parent; every other group has a parent of its own.
//
// NCCL allows one call at a time on a communicator, and the event that marks the end of the device's work may be
// recorded only after the call. So all calls are launches, issued one after the other by the thread that calls `pump`.
// The first message between two ranks blocks until both have called, so it is issued by its own thread.
#pragma once
#include <prun/transport.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "board.h"
#include "retire.h"

namespace prun::nccl {

class Context;

using Link = std::pair<int, bool>;  // a peer in the communicator, and whether it is received from

// One call, or group of calls, of NCCL.
struct Launch {
  enum class State { waiting, issued, running, ended };  // issued: in NCCL's call; running: on the device
  std::function<ncclResult_t()> issue;
  const char* call = "";
  std::vector<Link> links = {};  // peers that NCCL connects at first use
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;                // null while the stream is being captured: nothing runs then
  std::atomic<State> state = State::waiting;  // read without the lock by the enqueuing thread
};

class Comm {
 public:
  Comm(Context& context, std::vector<int> ranks, int lane);
  ~Comm();
  Comm(const Comm&) = delete;

  // Returns true once usable; otherwise `missing` is the awaited rank or -1. Throws Failure.
  bool ready(int& missing);
  void push(Launch* launch);
  void withdraw(Launch* launch);  // called if its request ends with an error
  void pump();                    // throws the communicator's failure, or PRUN_EABORTED
  bool done(Launch& launch);      // queries the device; throws
  // Fails all calls on the communicator and starts its abort.
  void fail(const Failure& failure);
  Failure failure();
  // Returns whether a failed communicator no longer accesses memory.
  bool quiet() const { return native_->ended || (native_->handle == nullptr && !native_->in_call); }
  // Throws NCCL's asynchronous error, which a replayed operation may have; does not block. Members that have waited for
  // long exchange `waits` notes: returns a member that sent none, or -1.
  int check(std::chrono::milliseconds waited);
  void abort();  // called for an abort of the whole context: marks, does not block
  void deregister(const void* ptr);

  int index() const { return me_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int lane() const { return lane_; }
  uint64_t key() const { return key_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int index_of(int rank) const;  // -1 = not a member
  ncclComm_t handle() const { return native_->handle; }
  std::shared_ptr<const Native> native() const { return native_; }
  cudaStream_t stream() const { return native_->stream; }
  int next() const { return ranks_[static_cast<size_t>((me_ + 1) % size())]; }
  int previous() const { return ranks_[static_cast<size_t>((me_ + size() - 1) % size())]; }
  std::string name() const;

  prun_coll_seen seen{};    // the last mismatch
  void* scratch = nullptr;  // pinned memory for barriers

  // Initializes the world: all ranks call it at once, with rank 0's id.
  void init(const ncclUniqueId& id);

 private:
  enum class Stage { wanted, told, parent, split, ready };  // parent, split: that call is in progress
  struct Call {                                             // a call of NCCL in a thread
    ncclResult_t result = ncclSuccess;
    std::atomic<bool> over{false};
  };
  bool advance(int& missing);  // called under the lock
  void init_parent(const ncclUniqueId& id);
  void split(const std::shared_ptr<Native>& from);
  std::unique_lock<std::timed_mutex> lock_parent() const;
  bool settled(ncclComm_t comm) const;  // returns whether no call on it is in progress; throws its asynchronous error
  void register_regions();
  void pump_locked();
  bool may_wait(const Launch& launch) const;  // returns whether the launch may wait for another rank
  void call_in_a_thread(const Launch& launch);
  void check_alive() const;
  Failure asynchronous(const char* call);  // NCCL's asynchronous error, if any
  void fail_locked(const Failure& failure);

  Context& context_;
  const std::vector<int> ranks_;
  const int lane_;
  int me_ = -1;
  uint64_t key_;
  std::shared_ptr<Native> native_ = std::make_shared<Native>();

  // Guarded by native_->calls:
  Stage stage_ = Stage::wanted;
  Note go_{};
  std::shared_ptr<Native> from_;  // owner of the parent that this communicator is split off
  std::deque<Launch*> waiting_;
  Launch* issued_ = nullptr;
  std::shared_ptr<Call> call_;  // the call of issued_, which may have been withdrawn since
  std::set<Link> linked_;
  Failure failure_;
  Clock::time_point told_{};  // time of the last `waits` note, sent by check
};

}  // namespace prun::nccl
