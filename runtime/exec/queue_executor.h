// Executes a rank's program on a queue device (prun/device.h): one thread enqueues all streams, events implement edges,
// and a step is captured once per step slot and then replayed.
//
// The host runs at most two steps ahead: while the device computes step n, the host makes the batch of step n + 1 and
// enqueues that step. A loss is therefore read one step late, and the device does not idle between steps.
#pragma once
#include <memory>
#include <vector>

#include "exec/job_run.h"
#include "exec/queue_body.h"
#include "exec/queue_memory.h"

namespace prun {

class QueueExecutor final : public JobRun {
 public:
  // Arguments as for RankDevice::make_executor.
  QueueExecutor(const Program& program, QueueMemory& queue, World& world, const ExecutorOptions& options);
  ~QueueExecutor() override;
  bool settle() override;

 private:
  struct Slot {  // a step in flight
    explicit Slot(QueueDevice& device) : begin(device, true), end(device, true) {}
    DeviceEvent begin, end;              // its first op starts; loss and norm are in pinned memory
    prun_step_values* values = nullptr;  // pinned
    std::byte *loss = nullptr, *norm = nullptr, *results = nullptr;  // pinned
    int64_t step = -1;                                               // -1 = none
    uint64_t issued_ns = 0, host_ns = 0, bytes = 0;
    bool after_another = false;  // enqueued after another step of the same run
  };
  struct Batch;  // a kernel that runs the first ops of a step

  void run_body(BodyId id, int64_t first, int64_t end) override;
  void free_init() override { bodies_[kInitBody].reset(); }
  void run_steps(BodyId id, int64_t first, int64_t end);
  void issue(BodyId id, int64_t step, const StepTable& table);
  void finish(BodyId id, Slot& slot);
  void check_alive();
  StepTable table_of(BodyId id, int64_t step, int64_t first) const;
  Slot& slot_of(int64_t step) { return slots_[step % kStepSlots]; }

  QueueMemory& queue_;
  std::vector<DeviceStream> streams_;
  DeviceStream copies_;
  DeviceMemory values_;
  std::vector<Slot> slots_;
  Table<BodyId, std::unique_ptr<QueueBody>> bodies_;
  uint64_t last_end_ns_ = 0;   // end of the previous step, in host time
  uint64_t progress_ns_ = 0;   // time at which the device last completed a step
  uint64_t sent_between_ = 0;  // bytes sent since the last step; they count towards the next
};

}  // namespace prun
