// The summary of a run: loss, time, rate, FLOPs, predicted and used memory, bytes sent, overlap of communication.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "exec/rank_device.h"
#include "ir/program.h"
#include "watch/steps.h"

namespace prun {

// Returns the predicted memory of a rank: "12.5 MiB a rank"; if classes differ, "12.5 MiB to 20.0 MiB a rank".
std::string predicted_memory(const Job& job);

class Summary {
 public:
  void add(const MergedStep& step);
  void add_evaluation(const MergedStep& evaluation);  // of a step, or before the first one
  // Device memory of each local rank on a device with memory of its own.
  void set_device_use(std::vector<DeviceUse> use) { device_use_ = std::move(use); }
  void set_binding(std::string text) { binding_ = std::move(text); }  // "cores 0-3 | 4-7"
  // `peak_bytes`: resident peak of the local ranks, in the order of `ranks`; 0 = unknown, because the rank failed.
  // `peak_flops`: sum over all devices of the job; 0 = unknown.
  std::string text(const Job& job, const std::vector<int>& ranks, const std::vector<uint64_t>& peak_bytes,
                   double peak_flops = 0) const;

 private:
  double steps_per_s() const;
  std::string device_text() const;

  uint64_t steps_ = 0, evaluations_ = 0, replayed_ = 0, skipped_ = 0;
  MergedStep first_, last_, sum_;
  MergedStep replayed_sum_;  // sum over the steps that a queue device replayed
  double first_eval_loss_ = 0, last_eval_loss_ = 0, evaluation_s_ = 0;
  std::vector<DeviceUse> device_use_;
  std::string binding_;
};

}  // namespace prun
