// Ending NCCL's communicators, each on a thread of its own, with a deadline.
//
// ncclCommAbort and ncclCommDestroy wait: for kernels, for NCCL's own threads, for other ranks of the host, now and
// then for ever (nccl#1777). And two communicators whose operations wait for each other cannot be aborted one after the
// other (pytorch#150690). So nobody waits for these calls but `finish`, and that only so long.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "library.h"

namespace prun::nccl {

// NCCL's side of a communicator; outlives the context where ncclCommAbort never returns.
struct Native {
  std::timed_mutex calls;  // of NCCL on it; none is made once it is retiring
  ncclComm_t handle = nullptr;
  ncclComm_t parent = nullptr;                    // that `handle` was split from; null where that is the world's
  std::vector<std::shared_ptr<Native>> children;  // NCCL writes their handles when they are split off
  std::atomic<bool> in_call{false};               // a thread of ours is in a call that may wait for another rank
  cudaStream_t stream = nullptr;                  // for calls without a queue
  int device = 0;
  int ctas = 0;                                           // thread blocks of a kernel at most; 0: NCCL's choice
  std::vector<std::pair<const void*, void*>> registered;  // buffer, handle of ncclCommRegister
  std::string name;                                       // for people
  std::atomic<bool> retiring{false};
  std::atomic<bool> ended{false};  // nothing of it touches memory any more
};

class Retirement {
 public:
  explicit Retirement(std::shared_ptr<const Library> library) : library_(std::move(library)) {}

  // At once; a communicator is retired once, whoever asks first.
  void abort(const std::shared_ptr<Native>& native) { start(native, true); }
  void destroy(const std::shared_ptr<Native>& native) { start(native, false); }
  // Until all have ended, or the deadline. Returns the names of those that have not: they are left behind.
  std::vector<std::string> finish(int milliseconds);

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::shared_ptr<Native>> going;
  };
  void start(const std::shared_ptr<Native>& native, bool abort);

  std::shared_ptr<const Library> library_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace prun::nccl
