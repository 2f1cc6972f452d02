// A communicator, and the queue of calls on it.
//
// NCCL aborts a communicator safely at any time only if it is nonblocking, but it starts a thread for each call on a
// nonblocking one. So the parent is nonblocking, because ranks may be missing during init, and its child is blocking:
//
//     unique id --init--> parent (nonblocking, one CTA) --split--> child (blocking, runs all calls)
//
// Groups of all ranks are split off the world's parent; every other group has a parent of its own.
//
// NCCL allows nothing on a communicator while one of its calls is under way, and only when it is over may the event be
// recorded that is reached when the device has done the work. So all calls are launches: issued one after the other, by
// the thread that calls `pump`. The first message between two ranks waits for both, so it has a thread of its own.
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
  enum class State { waiting, issued, running, ended };  // issued: NCCL is still at it; running: the device is
  std::function<ncclResult_t()> issue;
  const char* call = "";
  std::vector<Link> links = {};  // that NCCL connects at the first use
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;                // null where the stream is being captured: nothing runs then
  std::atomic<State> state = State::waiting;  // whoever enqueues looks at it without the lock
};

class Comm {
 public:
  Comm(Context& context, std::vector<int> ranks, int lane);
  ~Comm();
  Comm(const Comm&) = delete;

  // Once usable; false: `missing` is waited for, or -1. Throws Failure.
  bool ready(int& missing);
  void push(Launch* launch);
  void withdraw(Launch* launch);  // its request ends with an error
  void pump();                    // throws the failure of the communicator, or that it is being aborted
  bool done(Launch& launch);      // asks the device; throws
  // Nothing on it can succeed any more. Its operations on the device are being stopped.
  void fail(const Failure& failure);
  Failure failure();
  // No longer touches memory, though it failed.
  bool quiet() const { return native_->ended || (native_->handle == nullptr && !native_->in_call); }
  // Throws the error that NCCL knows of, which a replayed operation may have; does not wait. Members that have waited
  // for long tell each other that they do: returns one that has not, or -1.
  int check(std::chrono::milliseconds waited);
  void abort();  // of the whole context: marks, does not wait
  void deregister(const void* ptr);

  int index() const { return me_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int lane() const { return lane_; }
  uint64_t key() const { return key_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int index_of(int rank) const;  // -1: no member
  ncclComm_t handle() const { return native_->handle; }
  std::shared_ptr<const Native> native() const { return native_; }
  cudaStream_t stream() const { return native_->stream; }
  int next() const { return ranks_[static_cast<size_t>((me_ + 1) % size())]; }
  int previous() const { return ranks_[static_cast<size_t>((me_ + size() - 1) % size())]; }
  std::string name() const;

  prun_coll_seen seen{};    // of the last mismatch
  void* scratch = nullptr;  // pinned, for barriers

  // The world's: made by its ranks at once, from rank 0's id.
  void init(const ncclUniqueId& id);

 private:
  enum class Stage { wanted, told, parent, split, ready };  // parent, split: under way
  struct Call {                                             // of NCCL, in a thread
    ncclResult_t result = ncclSuccess;
    std::atomic<bool> over{false};
  };
  bool advance(int& missing);  // under the lock
  void init_parent(const ncclUniqueId& id);
  void split(const std::shared_ptr<Native>& from);
  std::unique_lock<std::timed_mutex> lock_parent() const;
  bool settled(ncclComm_t comm) const;  // whether no call on it is in progress; throws its asynchronous error
  void register_regions();
  void pump_locked();
  bool may_wait(const Launch& launch) const;  // for another rank
  void call_in_a_thread(const Launch& launch);
  void check_alive() const;
  Failure asynchronous(const char* call);  // what NCCL says of itself, if that is an error
  void fail_locked(const Failure& failure);

  Context& context_;
  const std::vector<int> ranks_;
  const int lane_;
  int me_ = -1;
  uint64_t key_;
  std::shared_ptr<Native> native_ = std::make_shared<Native>();

  // Under native_->calls:
  Stage stage_ = Stage::wanted;
  Note go_{};
  std::shared_ptr<Native> from_;  // owner of the parent that this communicator is split off
  std::deque<Launch*> waiting_;
  Launch* issued_ = nullptr;
  std::shared_ptr<Call> call_;  // of issued_, perhaps withdrawn since
  std::set<Link> linked_;
  Failure failure_;
  Clock::time_point told_{};  // the others, by check
};

}  // namespace prun::nccl
