// Executes a rank's program on a queue device (prun/device.h): one thread issues all streams, events are edges, a step
// is captured once for each slot of steps under way and replayed.
//
// The host is at most two steps ahead: while the device computes step n, the host makes the batch of step n + 1 and
// enqueues that step. So a loss is read a step late, and the device does not wait between steps.
#pragma once
#include <memory>
#include <vector>

#include "exec/job_run.h"
#include "exec/queue_body.h"
#include "exec/queue_memory.h"

namespace prun {

class QueueExecutor final : public JobRun {
 public:
  // As RankDevice::make_executor.
  QueueExecutor(const Program& program, QueueMemory& queue, World& world, const ExecutorOptions& options);
  ~QueueExecutor() override;
  bool settle() override;

 private:
  struct Slot {  // a step under way
    explicit Slot(QueueDevice& device) : begin(device, true), end(device, true) {}
    DeviceEvent begin, end;                      // its first op starts, loss and norm are in pinned memory
    prun_step_values* values = nullptr;          // pinned
    std::byte *loss = nullptr, *norm = nullptr;  // pinned
    int64_t step = -1;                           // -1: none
    uint64_t issued_ns = 0, host_ns = 0, bytes = 0;
    bool after_another = false;  // enqueued behind a step of the same run
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
  uint64_t last_end_ns_ = 0;             // end of the step before, in the host's time
  uint64_t progress_ns_ = 0;             // when the device last ended a step
  Table<BodyId, uint64_t> eager_bytes_;  // that a run of the body sends; replayed collectives count none
  uint64_t sent_between_ = 0;            // since the last step; the next one's
};

}  // namespace prun
