// next_batch on every rank of a mesh: together the ranks hold the batch of one rank, whatever the axes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "exec/host_ops.h"
#include "ir/ops.h"

namespace prun {
namespace {

constexpr int64_t kBatch = 6, kContext = 12;

struct Split {
  std::vector<Axis> mesh;
  std::string axis, tokens_axis;
  int64_t chunks;
};

// A file of 300 bytes that differ from their neighbours.
class NextBatchTest : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/prun_next_batch_XXXXXX";
    const int fd = mkstemp(path);
    ASSERT_GE(fd, 0);
    close(fd);
    path_ = path;
    std::ofstream file(path_);
    for (int i = 0; i < 300; ++i) file.put(static_cast<char>(i * 7 % 251));
  }
  void TearDown() override { unlink(path_.c_str()); }

  // Tokens and targets of `samples` samples of `length` tokens on one rank in step 2.
  std::pair<std::vector<int32_t>, std::vector<int32_t>> batch(const Split& split, int rank, int64_t samples,
                                                              int64_t length, const std::string& kind = "bytes",
                                                              bool eval = false) {
    Program program;
    program.mesh = Mesh(split.mesh);
    if (eval) program.bodies.push_back({"evaluation", {5, 3}, {}, {}, {}});
    program.bodies.back().data = {kind, kind == "bytes" ? path_ : "", 300, 0, 256, kBatch};
    const int64_t bytes = samples * length * 4;
    for (int i = 0; i < 2; ++i) {
      program.buffers.push_back({"batch", Role::data, bytes, i * bytes});
      program.tensors.push_back({"batch", i, 0, Dtype::i32, {samples, length}});
    }
    Op op;
    op.def = &ops::next_batch;
    op.writes = {0, 1};
    op.attrs.set("axis", split.axis);
    op.attrs.set("tokens_axis", split.tokens_axis);
    op.attrs.set("chunks", split.chunks);
    op.attrs.set("names", "tokens,targets");
    StepTable table;
    table.step = step_;
    table.eval_batch = 2;
    table.seed = 5;
    std::vector<int32_t> memory(static_cast<size_t>(2 * samples * length));
    RankMemory rank_memory{reinterpret_cast<std::byte*>(memory.data()), rank, &program, &table};
    if (eval) rank_memory.body = 2;
    make_host_kernel(rank_memory, op, open_host_services(program, {}))->run();
    const auto middle = memory.begin() + static_cast<std::ptrdiff_t>(memory.size() / 2);
    return {{memory.begin(), middle}, {middle, memory.end()}};
  }

  std::string path_;
  int64_t step_ = 2;
};

// `position(rank, i)`: where the rank's token i stands in its sample; `first(rank)`: the rank's first sample.
template <class First, class Position>
void expect_part(const std::vector<int32_t>& part, const std::vector<int32_t>& whole, int64_t length, int rank,
                 First first, Position position) {
  for (size_t k = 0; k < part.size(); ++k) {
    const int64_t s = static_cast<int64_t>(k) / length, i = static_cast<int64_t>(k) % length;
    const int64_t at = (first(rank) + s) * kContext + position(rank, i);
    ASSERT_EQ(part[k], whole[static_cast<size_t>(at)]) << "rank " << rank << " sample " << s << " token " << i;
  }
}

TEST_F(NextBatchTest, TargetsAreTheTokensThatFollow) {
  const auto [tokens, targets] = batch({{}, "", "", 1}, 0, kBatch, kContext);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i % kContext == kContext - 1) continue;  // the last one's target is no token of the sample
    EXPECT_EQ(targets[i], tokens[i + 1]);
  }
}

TEST_F(NextBatchTest, EvaluationsHaveSamplesOfTheirOwnTheSameInAllSteps) {
  const Split alone{{}, "", "", 1};
  for (const std::string kind : {"bytes", "random"}) {
    step_ = 2;
    const auto training = batch(alone, 0, kBatch, kContext, kind),
               first = batch(alone, 0, kBatch, kContext, kind, true);
    EXPECT_NE(first, training) << kind;
    step_ = 3;
    EXPECT_NE((batch(alone, 0, kBatch, kContext, kind)), training);
    EXPECT_EQ((batch(alone, 0, kBatch, kContext, kind, true)), first) << kind;
  }
}

TEST_F(NextBatchTest, SamplesAreSplitOverSeveralAxesTheFirstSlowest) {
  const std::vector<Axis> mesh = {{"ep", 2}, {"tp", 2}, {"dp", 3}};
  const auto whole = batch({mesh, "", "", 1}, 0, kBatch, kContext);
  for (int rank = 0; rank < 12; ++rank) {
    const auto part = batch({mesh, "dp,ep", "", 1}, rank, 1, kContext);
    const auto first = [](int r) { return r % 3 * 2 + r / 6; };
    expect_part(part.first, whole.first, kContext, rank, first, [](int, int64_t i) { return i; });
    expect_part(part.second, whole.second, kContext, rank, first, [](int, int64_t i) { return i; });
  }
}

TEST_F(NextBatchTest, TokensAreSplitInBalancedChunksOrRuns) {
  const std::vector<Axis> mesh = {{"dp", 2}, {"cp", 3}};
  for (const std::string kind : {"bytes", "random"}) {
    const auto whole = batch({mesh, "", "", 1}, 0, kBatch, kContext, kind);
    for (int rank = 0; rank < 6; ++rank) {
      const auto first = [](int r) { return r / 3 * 3; };
      const auto run = [](int r, int64_t i) { return r % 3 * 4 + i; };
      const auto chunks = [](int r, int64_t i) { return i < 2 ? r % 3 * 2 + i : (5 - r % 3) * 2 + i - 2; };
      const auto one = batch({mesh, "dp", "cp", 1}, rank, 3, 4, kind);
      expect_part(one.first, whole.first, 4, rank, first, run);
      expect_part(one.second, whole.second, 4, rank, first, run);
      const auto two = batch({mesh, "dp", "cp", 2}, rank, 3, 4, kind);
      expect_part(two.first, whole.first, 4, rank, first, chunks);
      expect_part(two.second, whole.second, 4, rank, first, chunks);
    }
  }
}

}  // namespace
}  // namespace prun
