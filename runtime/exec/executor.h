// Executes a rank's program on a device whose kernels run where they are called: each stream is a thread that walks its
// list, waits on counters, calls the kernel.
//
// Everything is resolved before the first step: pointers, kernels, communicators. A step allocates nothing.
#pragma once
#include <memory>
#include <vector>

#include "exec/job_run.h"
#include "exec/progress_counter.h"

namespace prun {

class Executor final : public JobRun {
 public:
  // Makes all kernels and communicators; `world` is connected. Throws what they throw.
  Executor(const Program& program, const Device& device, World& world, const ExecutorOptions& options);

 private:
  struct Lane {  // a stream at work
    const Stream* stream = nullptr;
    std::vector<std::unique_ptr<Kernel>> kernels;
    std::unique_ptr<ProgressCounter> done;
    uint64_t comm_ns = 0, exposed_ns = 0;  // of the step under way, by the lane's thread only
  };

  struct Work {  // a body at work
    Kind kind;
    const Body& body;
    std::vector<Lane> lanes;
  };

  void run_body(Kind kind, int64_t first, int64_t end) override;
  void free_init() override { work(Kind::init).lanes.clear(); }
  Work& work(Kind kind) { return works_[static_cast<size_t>(kind)]; }
  std::vector<Lane> make_lanes(const Body& body);
  void walk(Work& work, int s, int64_t first, int64_t end);
  bool wait_edges(std::vector<Lane>& lanes, int s, const Op& op, int64_t step, uint64_t& ready);
  void finish_step(std::vector<Lane>& lanes, int64_t step);
  double loss(TensorId tensor) const;

  const Device& device_;
  std::vector<Work> works_;  // by kind
};

}  // namespace prun
