// One rank's program in this process, run by the executor of its device.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "exec/queue_memory.h"

namespace prun::test {

class OneRank {
 public:
  OneRank(const Program& program, const Device& device);

  // Runs all steps; rethrows the executor's exception, after storing the name of the failed op in `failed`.
  std::vector<double> run(std::string* failed = nullptr, std::vector<double>* evaluated = nullptr);
  const StepRecord& record(size_t step) const { return recorder_steps(options_.recorder)[step]; }  // valid after run()
  const QueueMemory& queue() const { return dynamic_cast<const QueueMemory&>(*rank_device_); }     // queue devices only

 private:
  class Alone final : public Bootstrap {
   public:
    std::vector<std::string> all_gather(const std::string& blob) override { return {blob}; }
    bool aborted() const override { return false; }
  };

  static constexpr uint64_t kCapacity = 1024;
  const Program& program_;
  Alone bootstrap_;
  std::unique_ptr<World> world_;
  std::vector<std::byte> memory_;
  ExecutorOptions options_;
  std::unique_ptr<RankDevice> rank_device_;
};

}  // namespace prun::test
