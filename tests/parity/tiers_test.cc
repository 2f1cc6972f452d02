// Bitwise comparisons: real runs of every plan with the interpreter, strategies with each other, and splits of weights
// on integers.
//
// Surprising fact: strategies agree bitwise if they add the same numbers in the same order: reductions in rank order,
// microbatches of one size, powers of two, no clipping.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/cores.h"
#include "kernels/devices.h"
#include "tests/parity/parity_job.h"

namespace prun::test {
namespace {

std::vector<double> interpret_plan(const std::string& plan, int ranks, const Settings& settings,
                                   const std::string& device = "cpu") {
  const Job job = parity_job(ranks, settings, device, plan);
  VirtualOptions options;
  options.threads = threads_per_rank(ranks);
  return losses_of(run_virtual_ranks(job, *open_device(device), options));
}

std::vector<double> run_plan(const std::string& plan, int ranks, const Settings& settings,
                             const std::string& transport) {
  const std::string metrics = fmt::format("{}/prun_tiers_{}.jsonl", testing::TempDir(), getpid());
  std::string command = fmt::format("timeout 120 {} {}/{} --nproc {} --transport {} --metrics {}", PRUN_PROGRAM,
                                    PRUN_SOURCE_DIR, plan, ranks, transport, metrics);
  for (const auto& [name, value] : settings) command += fmt::format(" --set {}={}", name, value);
  EXPECT_EQ(std::system((command + " >/dev/null 2>&1").c_str()), 0) << command;
  std::vector<double> losses;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) losses.push_back(nlohmann::json::parse(line)["loss"]);
  std::remove(metrics.c_str());
  return losses;
}

struct Case {
  const char* plan;
  int ranks;
  Settings settings;
};

Settings tiny(Settings settings) {
  const Settings sizes = {{"layers", "4"}, {"width", "16"}, {"heads", "2"},  {"context", "8"},
                          {"batch", "16"}, {"steps", "4"},  {"lr", "0.001"}, {"reduce", "rank_order"}};
  settings.insert(sizes.begin(), sizes.end());
  return settings;
}

TEST(Tiers, RealRunsAgreeWithTheInterpreter) {
  const std::vector<Case> cases = {
      {"plans/zero1.lua", 3, {{"batch", "12"}, {"micro", "2"}}},
      {"plans/zero2.lua", 4, {{"micro", "2"}}},
      {"plans/fsdp.lua", 4, {{"replicate", "2"}}},
      {"plans/megatron.lua", 4, {}},
      {"plans/1f1b.lua", 2, {{"micro", "4"}}},
      {"plans/interleaved.lua", 2, {{"micro", "4"}}},
      {"plans/zero_bubble.lua", 2, {{"micro", "4"}}},
      {"plans/zero_bubble.lua", 2, {{"micro", "4"}, {"schedule", "zb_v"}}},
      {"plans/one_sided.lua", 2, {{"micro", "4"}}},
      {"plans/one_sided.lua", 4, {{"micro", "4"}, {"pp", "4"}}},
      {"plans/ring_attention.lua", 4, {}},
      {"plans/moe.lua", 4, {}},
      {"plans/3d.lua", 8, {{"micro", "2"}}},
      {"plans/gpt.lua",
       8,
       {{"precision", "f32"}, {"tp", "2"}, {"pp", "2"}, {"chunks", "2"}, {"zero", "1"}, {"recompute", "full"}}},
      {"plans/custom/small_whole.lua", 2, {{"below", "1024"}}},
      {"plans/custom/bf16_gradients.lua", 2, {}},
      {"plans/custom/local_sgd.lua", 2, {{"every", "2"}}},
  };
  size_t number = 0;
  for (const Case& one : cases) {
    Settings settings = tiny(one.settings);
    if (std::string(one.plan).find("small_whole") != std::string::npos) settings["below"] = "1 KiB";
    const std::string transport = number++ % 2 == 0 ? "shm" : "socket";
    const std::vector<double> expected = interpret_plan(one.plan, one.ranks, settings);
    if (settings.count("below")) settings["below"] = "'1 KiB'";  // quoted for the shell
    EXPECT_EQ(run_plan(one.plan, one.ranks, settings, transport), expected) << one.plan << " over " << transport;
  }
}

// ddp = zero1 = zero2 = zero3 = accumulation in one process = a pipeline with the same number of microbatches.
TEST(Tiers, StrategiesAgreeToTheBit) {
  for (const int ranks : {2, 4}) {
    const std::string n = std::to_string(ranks);
    const Settings settings = tiny({{"clip", "0"}});
    Settings accumulation = settings, pipeline = settings;
    accumulation["micro"] = pipeline["micro"] = n;
    pipeline["pp"] = n;
    const auto tier = [&](const std::string& strategy, int on, Settings more) {
      more["strategy"] = strategy;
      return interpret_plan("tests/parity/tiers.lua", on, more);
    };
    const std::vector<double> expected = tier("ddp", ranks, settings);
    ASSERT_EQ(expected.size(), 4u);
    for (const char* strategy : {"zero1", "zero2", "zero3"})
      EXPECT_EQ(tier(strategy, ranks, settings), expected) << strategy << " on " << ranks;
    EXPECT_EQ(tier("none", 1, accumulation), expected) << ranks << " microbatches";
    EXPECT_EQ(tier("none", ranks, pipeline), expected) << "a pipeline of " << ranks;
  }
}

TEST(Tiers, SplitWeightsAreExactOnWholeNumbers) {
  const char* plan = "tests/parity/exact.lua";
  const std::vector<double> expected = interpret_plan(plan, 1, {}, "reference");
  ASSERT_EQ(expected.size(), 2u);
  EXPECT_LT(expected.back(), expected.front()) << "nothing is learned";
  for (const Case& one : std::vector<Case>{{"tp", 2, {{"tp", "2"}}},
                                           {"tp", 4, {{"tp", "4"}}},
                                           {"sequence", 2, {{"tp", "2"}, {"sequence", "true"}}},
                                           {"sequence", 4, {{"tp", "4"}, {"sequence", "true"}}},
                                           {"dp and tp", 4, {{"tp", "2"}, {"sequence", "true"}, {"micro", "2"}}},
                                           {"pp and tp", 4, {{"tp", "2"}, {"pp", "2"}, {"micro", "4"}}}})
    EXPECT_EQ(interpret_plan(plan, one.ranks, one.settings, "reference"), expected) << one.plan << " on " << one.ranks;
}

}  // namespace
}  // namespace prun::test
