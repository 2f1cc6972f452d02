// --metrics FILE: one JSON object per step and line, every step exactly once, readable while the job runs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ir/learning_rate.h"
#include "ir/run_position.h"
#include "watch/console.h"
#include "watch/memory_use.h"
#include "watch/metrics_file.h"
#include "watch/steps.h"
#include "watch/view.h"

namespace prun {

// The fields common to all rows of a job.
struct StepWork {
  int64_t tokens = 0;     // per step
  RunPosition begin;      // begin of the run
  double flops = 0;       // FLOP of the model in one step (ir/op_cost.h)
  double peak_flops = 0;  // FLOP/s of all devices; 0 = unknown
  LearningRate rate = {};
  bool clips = false;                                    // the program computes a gradient norm
  std::vector<std::string> named = {}, eval_named = {};  // of steps and of evaluations
};

// Returns a row: {"step":1,"loss":5.55,"learning_rate":0.0003,"grad_norm":1.2,"tokens":8192,"time_s":0.1,
// "wall_time":1795000000.125,"tokens_per_s":81920,"comm_s":0.02,"exposed_comm_s":0.001,"data_s":0.0003,
// "memory_bytes":52428800}; a missing loss is null. Omitted: the norm without clipping, unknown memory. A model with
// GEMMs adds "model_flops_per_s":1.2e12 and, if the devices' peak is known, "mfu":0.41; a queue device adds "host_us"
// and "idle"; a step with an evaluation adds "eval_loss":5.5,"eval_s":0.2. Numbers that the model names follow the
// loss under their names, those of an evaluation as "eval_NAME".
std::string metrics_row(const MergedStep& step, const StepWork& work, uint64_t memory_bytes);

// Returns the row of an evaluation before the first step, which is step 0. `named`: its named numbers.
std::string evaluation_row(const MergedStep& step, const std::vector<std::string>& named);

// Renders the rows of a job's steps.
class StepRows {
 public:
  void begin(const RunningJob& job, double peak_flops);
  std::string of(const MergedStep& step) { return metrics_row(step, work_, memory_bytes()); }

 private:
  uint64_t memory_bytes();  // maximum over local ranks

  StepWork work_;
  MemoryWatch memory_;
  const RunningJob* job_ = nullptr;
};

class Metrics final : public View {
 public:
  // Throws like MetricsFile.
  Metrics(const MetricsSettings& settings, int64_t first_step, Console& console)
      : file_(settings, first_step), console_(console) {}
  void started(const RunningJob& job) override;
  void row(std::string_view row) override;
  void flush() override { file_.output().flush(); }
  bool behind() override { return file_.output().behind(); }
  void finish(double patience_s) override { file_.output().finish(patience_s); }
  std::vector<IncompleteOutput> losses() const override { return losses_of(file_.output()); }

 private:
  MetricsFile file_;
  Console& console_;
};

}  // namespace prun
