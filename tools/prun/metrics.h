// --metrics FILE: one JSON object a line and step, every step exactly once, readable while the job runs.
#pragma once
#include <string>

#include "output_file.h"
#include "steps.h"

namespace prun {

// The work of one step, the same for all steps of a job.
struct StepWork {
  int64_t tokens = 0;
  double flops = 0;       // of the model (ir/model_flops.h)
  double peak_flops = 0;  // of all devices, a second; 0 where it is not known
};

class Metrics {
 public:
  explicit Metrics(const std::string& path) : file_(path, "metrics") {}
  void begin() { file_.begin(); }
  void add(const MergedStep& step, const StepWork& work);
  void add(const std::string& object) { file_.write(object + "\n"); }  // that a rank has made
  void flush() { file_.flush(); }
  const OutputFile& file() const { return file_; }

 private:
  OutputFile file_;
};

// {"step":0,"loss":5.55,"time_s":0.1,"tokens_per_s":81920,"comm_s":0.02,"exposed_comm_s":0.001}; no loss: null;
// a model with matrix products adds "model_flops_per_s":1.2e12 and, where the devices' peak is known, "mfu":0.41;
// a step with an evaluation adds "eval_loss":5.5,"eval_s":0.2
std::string metrics_line(const MergedStep& step, const StepWork& work);

}  // namespace prun
