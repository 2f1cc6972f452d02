// Ends NCCL's communicators, each on its own thread, with a deadline.
//
// ncclCommAbort and ncclCommDestroy wait for kernels, for NCCL's threads and for other ranks of the host, sometimes
// forever (nccl#1777). Two communicators whose operations wait for each other cannot be aborted one after the other
// (pytorch#150690). So only `finish` waits for these calls, with a limit.
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

// NCCL's side of a communicator; outlives the context if ncclCommAbort never returns.
struct Native {
  std::timed_mutex calls;  // guards NCCL's calls on the communicator; none is made once it is retiring
  ncclComm_t handle = nullptr;
  ncclComm_t parent = nullptr;                    // `handle` was split from it; null = from the world's parent
  std::vector<std::shared_ptr<Native>> children;  // NCCL writes their handles when they are split off
  std::atomic<bool> in_call{false};               // a thread of ours is in a call that may wait for another rank
  cudaStream_t stream = nullptr;                  // stream of calls without a queue
  int device = 0;
  int ctas = 0;                                           // upper bound of a kernel's thread blocks; 0 = NCCL's choice
  std::vector<std::pair<const void*, void*>> registered;  // buffer, handle of ncclCommRegister
  std::string name;                                       // name in messages
  std::atomic<bool> retiring{false};
  std::atomic<bool> ended{false};  // its operations no longer access memory
};

class Retirement {
 public:
  explicit Retirement(std::shared_ptr<const Library> library) : library_(std::move(library)) {}

  // Both functions return at once; the first call for a communicator wins.
  void abort(const std::shared_ptr<Native>& native) { start(native, true); }
  void destroy(const std::shared_ptr<Native>& native) { start(native, false); }
  // Waits until all communicators have ended, or the deadline. Returns the names of the others, which are abandoned.
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
