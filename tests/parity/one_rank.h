// A program on one rank of this process, by the executor that its device asks for.
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

  // Throws what the executor throws; `failed` is what it says of the op.
  std::vector<double> run(std::string* failed = nullptr, std::vector<double>* evaluated = nullptr);
  const StepRecord& record(size_t step) const { return recorder_steps(options_.recorder)[step]; }  // after run()
  const QueueMemory& queue() const { return dynamic_cast<const QueueMemory&>(*rank_device_); }     // of a queue device

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
