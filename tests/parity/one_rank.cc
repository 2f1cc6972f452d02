#include "tests/parity/one_rank.h"

namespace prun::test {

OneRank::OneRank(const Program& program, const Device& device)
    : program_(program),
      world_(World::open({}, bootstrap_)),
      memory_(recorder_bytes(kCapacity)),
      rank_device_(open_rank_device(device, program, *world_)) {
  options_.recorder = reinterpret_cast<RecorderHeader*>(memory_.data());
  options_.recorder->capacity = kCapacity;
  world_->connect();
}

std::vector<double> OneRank::run(std::string* failed, std::vector<double>* evaluated) {
  const std::unique_ptr<JobRun> executor = rank_device_->make_executor(*world_, options_);
  try {
    executor->run();
  } catch (...) {
    if (failed) *failed = executor->failed_op();
    throw;
  }
  std::vector<double> losses;
  const StepRecord* steps = recorder_steps(options_.recorder);
  for (uint64_t s = 0; s < options_.recorder->steps_written.load(); s++) {
    losses.push_back(steps[s].loss);
    if (evaluated && steps[s].eval_ns > 0) evaluated->push_back(steps[s].eval_loss);
  }
  return losses;
}

}  // namespace prun::test
