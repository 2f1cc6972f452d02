// The last words of a run: loss, time, rate, FLOPs, memory predicted and real, bytes sent, how much communication was
// hidden.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "exec/queue_memory.h"
#include "ir/program.h"
#include "steps.h"

namespace prun {

class Summary {
 public:
  void add(const MergedStep& step);
  // Of each local rank that computes on a device with memory of its own: how that was used.
  void set_device_use(std::vector<DeviceUse> use) { device_use_ = std::move(use); }
  // `peak_bytes`: resident peak of the local ranks, in the order of `ranks`; 0 = a rank that did not end well.
  // `peak_flops`: of all devices of the job, 0 where it is not known.
  std::string text(const Job& job, const std::vector<int>& ranks, const std::vector<uint64_t>& peak_bytes,
                   double peak_flops = 0) const;

 private:
  double steps_per_s() const;
  std::string device_text() const;

  uint64_t steps_ = 0;
  double first_loss_ = 0, last_loss_ = 0;
  uint64_t evaluations_ = 0;
  double first_eval_loss_ = 0, last_eval_loss_ = 0, eval_s_ = 0;
  double time_s_ = 0, first_time_s_ = 0, comm_s_ = 0, exposed_s_ = 0, bytes_ = 0;
  double host_s_ = 0, idle_s_ = 0, replayed_s_ = 0;  // of the steps that a queue device replayed
  uint64_t replayed_ = 0;
  std::vector<DeviceUse> device_use_;
};

// "412 TFLOP/s"
std::string flops_text(double flops_per_s);

}  // namespace prun
