// prun eval and prun predict: a checkpoint's loss on the plan's evaluation, and what its model predicts for each
// sample.
#include "job/forward.h"

#include "environment.h"
#include "job/device_check.h"
#include "job_options.h"

namespace prun {
namespace {

class Forwards final : public PlanCommand {
 public:
  explicit Forwards(Purpose purpose) { job_.purpose = purpose; }
  void declare(OptionTable& table) override;
  void settle() override;
  int run() override;
  const char* json_help() const override {
    return job_.purpose == Purpose::predict ? "one JSON object: plan, from, ranks, out, dtype, shape"
                                            : "one JSON object: plan, from, ranks, samples, eval_loss, seconds";
  }
};

void Forwards::declare(OptionTable& table) {
  declare_plan(table, job_);
  table.group("weights and results");
  table.text("--from", "DIR", job_.forward.from,
             "the weights: a checkpoint, the newest or DIR/best in a folder of them, or a Hugging Face folder");
  option::ema(table, job_);
  if (job_.purpose == Purpose::predict) {
    table.text("--out", "FILE", job_.forward.out, "the array of all samples, [samples, ...], in numpy's format");
    table.text("--output", "NAME", job_.forward.output,
               "a value that the model names with prun.output (default: what its loss compares with the targets)");
  }
  table.group("ranks and devices");
  option::transport(table, job_);
  option::device(table, job_);
  option::device_options(table, job_);
  option::kernels(table, job_,
                  "kernels of CPUs: any, avx2, avx512, and with +bf16, +pairs, +tiles (default: the fastest)");
  option::bind(table, job_);
  option::pad_vocabulary(table, job_);
  option::timeout(table, job_);
}

void Forwards::settle() {
  check_ranks(job_);
  require_plan();
  check_forward_options(job_);
  check_transport_hint(job_);
}

int Forwards::run() {
  warn_of_useless_variables();
  const DeviceReport devices = check_devices(job_);
  job_.watch.json = line_.json;
  return run_forward(job_, devices);
}

}  // namespace

std::unique_ptr<Command> make_eval() { return std::make_unique<Forwards>(Purpose::evaluate); }
std::unique_ptr<Command> make_predict() { return std::make_unique<Forwards>(Purpose::predict); }

}  // namespace prun
