// Executes a rank's program on a device whose kernels run on the calling thread: each stream is a thread that walks its
// op list, waits on counters and calls kernels.
//
// Pointers, kernels and communicators are resolved before the first step; a step allocates nothing.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "exec/job_run.h"
#include "exec/progress_counter.h"

namespace prun {

class Executor final : public JobRun {
 public:
  // Arguments as for RankDevice::make_executor.
  Executor(const Program& program, const Device& device, RankDevice& memory, World& world,
           const ExecutorOptions& options);

 private:
  // The communication and data costs of a step. Ops carried over the end of a step (ir/carried.h) count towards the
  // next step.
  struct Spent {
    uint64_t comm_ns = 0, exposed_ns = 0, bytes = 0, data_ns = 0;
  };

  // Time in which at least one stream communicates. Exposed time is that clock's advance during waits of the compute
  // stream, so it cannot exceed the time in communication.
  class CommClock {
   public:
    void enter(uint64_t now) {
      std::lock_guard lock(mutex_);
      if (running_++ == 0) since_ = now;
    }
    void leave(uint64_t now) {
      std::lock_guard lock(mutex_);
      if (--running_ == 0 && now > since_) total_ += now - since_;
    }
    uint64_t at(uint64_t now) {
      std::lock_guard lock(mutex_);
      return total_ + (running_ > 0 && now > since_ ? now - since_ : 0);
    }

   private:
    std::mutex mutex_;
    int running_ = 0;
    uint64_t since_ = 0, total_ = 0;
  };

  struct Worker {  // walks one stream, on its own thread
    const Stream* stream = nullptr;
    std::vector<std::unique_ptr<Kernel>> kernels;
    std::vector<const Communicator*> communicators;  // by op; null = none
    std::unique_ptr<ProgressCounter> done;
    uint32_t ended = 0;      // ops that end within the step; later ones are carried over
    Spent of_steps[2] = {};  // by parity of the step; written only by the worker's thread, until the step ends
    Spent& of(int64_t step, uint32_t op) { return of_steps[(step + (op < ended ? 0 : 1)) % 2]; }
  };

  struct BodyRun {  // a body and the workers of its streams
    BodyId id;
    const Body& body;
    Table<StreamId, Worker> workers;
  };

  void run_body(BodyId id, int64_t first, int64_t end) override;
  void free_init() override { runs_[kInitBody].workers.clear(); }
  Table<StreamId, Worker> make_workers(const Body& body);
  void walk(BodyRun& run, int s, int64_t first, int64_t end);
  bool wait_edges(Table<StreamId, Worker>& workers, int s, const Op& op, int64_t step, uint64_t& ready);
  void finish_step(Table<StreamId, Worker>& workers, int64_t step);
  std::vector<double> results(const Body& body) const;  // empty: it has none
  double scalar(TensorId tensor) const;                 // NaN if there is none

  const Device& device_;
  Table<BodyId, BodyRun> runs_;
  uint64_t put_before_ = 0;  // bytes put before the current step
  CommClock comm_clock_;
  uint64_t exposed_left_ = 0;  // exposed part of a carried op, which counts towards the next step like the op
};

}  // namespace prun
