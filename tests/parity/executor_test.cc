// The executor's threads: three streams of one rank give bitwise the interpreter's results, and an error on any stream
// ends all of them. Runs under the thread sanitizer, which detects accesses that no edge orders.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/devices.h"
#include "tests/parity/one_rank.h"
#include "tests/parity/parity_job.h"

namespace prun::test {
namespace {

// The reference device, except that one kind of op fails.
class FailingDevice final : public Device {
 public:
  explicit FailingDevice(std::string_view kind) : inner_(open_device("reference")), kind_(kind) {}
  std::string_view name() const override { return inner_->name(); }
  int64_t workspace_bytes(const Program& program, const Op& op, int threads) const override {
    return inner_->workspace_bytes(program, op, threads);
  }
  bool supports(const Op& op, const Program& program) const override { return inner_->supports(op, program); }
  std::unique_ptr<Kernel> make_kernel(const RankMemory& memory, const Op& op, int threads) const override {
    struct Failing final : Kernel {
      void run() override { throw usage_error("out of luck"); }
    };
    if (op.def->name == kind_ && op.phase != Phase::init) return std::make_unique<Failing>();
    return inner_->make_kernel(memory, op, threads);
  }

 private:
  std::unique_ptr<Device> inner_;
  std::string_view kind_;
};

// Optimizer state in host memory: one stream loads it and another stores it.
Job job_of_three_streams() {
  return parity_job(1, {{"strategy", "zero3"}, {"offload", "optimizer"}, {"piece", "4 KiB"}}, "reference",
                    "tests/parity/offload.lua");
}

TEST(Executor, ThreeStreamsGiveTheInterpretersBits) {
  const Job job = job_of_three_streams();
  ASSERT_EQ(job.classes[0].step().streams.size(), 3u);
  const std::unique_ptr<Device> device = open_device("reference");
  EXPECT_EQ(OneRank(job.classes[0], *device).run(), losses_of(run_virtual_ranks(job, *device, {})));
}

TEST(Executor, EvaluationsGiveTheInterpretersBitsToo) {
  const Settings settings = {{"strategy", "zero3"}, {"steps", "5"}, {"eval", "2"}};
  const std::unique_ptr<Device> device = open_device("reference");
  const Job job = parity_job(1, settings, "reference");
  const VirtualRun run = run_virtual_ranks(job, *device, {});
  std::vector<double> evaluated;
  EXPECT_EQ(OneRank(job.classes[0], *device).run(nullptr, &evaluated), losses_of(run));
  ASSERT_EQ(evaluated.size(), 2u);
  for (size_t i = 0; i < 2; i++) EXPECT_EQ(evaluated[i], run.eval_losses[i][0]) << i;
  // An evaluation that never happens holds the same samples out of the training.
  EXPECT_EQ(losses_of(run), interpret(1, {{"strategy", "zero3"}, {"steps", "5"}, {"eval", "1000"}}, "reference"))
      << "an evaluation changes the training";
}

TEST(Executor, AnErrorEndsAllStreamsAndNamesTheOp) {
  for (const char* kind : {"layernorm_grad", "adamw"}) {
    const Job job = job_of_three_streams();
    std::string failed;
    try {
      OneRank(job.classes[0], FailingDevice(kind)).run(&failed);
      ADD_FAILURE() << kind << " did not fail";
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), "out of luck");
      EXPECT_TRUE(failed.starts_with(kind)) << failed;
    }
  }
}

}  // namespace
}  // namespace prun::test
