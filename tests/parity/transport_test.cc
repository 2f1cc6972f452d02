// Compares real runs of prun bitwise with the interpreter: every transport, strategy and number of ranks.
//
// Surprising fact: comparing losses compares all parameters, because the loss of step k depends on every bit of step
// k-1's.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/parity/parity_job.h"

namespace prun::test {
namespace {

// Returns the losses of `prun PLAN` from its metrics; a failed run fails the test.
std::vector<double> run_prun(const std::string& plan, int ranks, const std::string& transport,
                             const Settings& settings) {
  const std::string metrics = fmt::format("{}/prun_parity_{}.jsonl", testing::TempDir(), getpid());
  std::string command = fmt::format("timeout 120 {} {} --nproc {} --transport {} --metrics {}", PRUN_PROGRAM, plan,
                                    ranks, transport, metrics);
  for (const auto& [name, value] : settings) command += fmt::format(" --set {}={}", name, value);
  EXPECT_EQ(std::system((command + " >/dev/null 2>&1").c_str()), 0) << command;
  std::vector<double> losses;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json step = nlohmann::json::parse(line);
    EXPECT_EQ(step["step"], losses.size() + 1);
    losses.push_back(step["loss"]);
  }
  std::remove(metrics.c_str());
  return losses;
}

class Transports : public testing::TestWithParam<const char*> {};

TEST_P(Transports, AgreeWithTheInterpreterToTheBit) {
  for (const char* strategy : {"ddp", "zero3"}) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      const Settings settings = {{"strategy", strategy}, {"steps", "6"}, {"clip", "1"}};
      const std::vector<double> expected = interpret(ranks, settings);
      EXPECT_EQ(run_prun(PRUN_SOURCE_DIR "/tests/parity/gpt.lua", ranks, GetParam(), settings), expected)
          << strategy << " on " << ranks;
    }
  }
}

TEST_P(Transports, InAnyOrderOfSumsAgreeWithOneRank) {
  const std::vector<double> single = interpret(1, {{"strategy", "single"}});
  for (const char* strategy : {"ddp", "zero3"}) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      const std::vector<double> losses = run_prun(PRUN_SOURCE_DIR "/tests/parity/gpt.lua", ranks, GetParam(),
                                                  {{"strategy", strategy}, {"reduce", "any"}});
      ASSERT_EQ(losses.size(), single.size());
      for (size_t step = 0; step < losses.size(); step++) {
        EXPECT_NEAR(losses[step], single[step], 1e-5 * single[step])
            << strategy << " on " << ranks << ", step " << step;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Transports, testing::Values("shm", "socket"), [](const auto& made) { return made.param; });

// Returns the entropy of a file's byte frequencies, which is the loss of the best context-free model.
double byte_entropy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<double> counts(256, 0.0);
  double total = 0;
  for (std::istreambuf_iterator<char> at(file), end; at != end; ++at) {
    counts[static_cast<unsigned char>(*at)]++;
    total++;
  }
  double entropy = 0;
  for (const double count : counts)
    if (count > 0) entropy -= count / total * std::log(count / total);
  return entropy;
}

TEST(Learning, TheLossFallsWellUnderTheEntropyOfBytes) {
  const double entropy = byte_entropy(PRUN_SOURCE_DIR "/plans/text/sample.txt");
  EXPECT_GT(entropy, 2.5);
  const std::vector<double> losses = run_prun(PRUN_SOURCE_DIR "/plans/zero3.lua", 2, "auto",
                                              {{"layers", "2"},
                                               {"width", "64"},
                                               {"heads", "2"},
                                               {"context", "32"},
                                               {"batch", "16"},
                                               {"steps", "400"},
                                               {"lr", "3e-3"}});
  ASSERT_EQ(losses.size(), 400u);
  EXPECT_NEAR(losses.front(), std::log(256.0), 0.2) << "before training, every byte is as likely as another";
  double last = 0;
  for (size_t i = losses.size() - 50; i < losses.size(); i++) last += losses[i] / 50;
  EXPECT_LT(last, 0.8 * entropy);
}

}  // namespace
}  // namespace prun::test
