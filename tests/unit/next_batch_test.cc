// next_batch on every rank of a mesh: the ranks together hold the batch of one rank, for all axes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <map>
#include <set>

#include "data/data_files.h"
#include "device/ids.h"
#include "exec/batch/document_layout.h"
#include "exec/host_ops.h"
#include "exec/read_ahead.h"
#include "ir/ops.h"

namespace prun {
namespace {

constexpr int64_t kBatch = 6, kContext = 12;

struct Split {
  std::vector<Axis> mesh;
  std::string axis, tokens_axis;
  int64_t chunks;
};

// A file of 300 bytes, each different from its neighbours.
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

  // Returns the tokens and targets of `samples` samples of `length` tokens on one rank in step 2.
  std::pair<std::vector<int32_t>, std::vector<int32_t>> batch(const Split& split, int rank, int64_t samples,
                                                              int64_t length, const std::string& kind = "bytes",
                                                              bool eval = false) {
    Program program;
    program.mesh = Mesh(split.mesh);
    if (eval) program.bodies.push_back({"evaluation", {5, 3}, {}, {}, {}});
    program.bodies.back().data = source(kind);
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
    program.schedule.seed = 5;
    std::vector<int32_t> memory(static_cast<size_t>(2 * samples * length));
    RankMemory rank_memory{reinterpret_cast<std::byte*>(memory.data()), rank, &program, &table};
    if (eval) rank_memory.body = 2;
    const std::unique_ptr<Kernel> kernel = make_next_batch(rank_memory, op, {});
    for (table.step = step_ - runs_before_; table.step < step_; ++table.step) kernel->run();
    kernel->run();
    const auto middle = memory.begin() + static_cast<std::ptrdiff_t>(memory.size() / 2);
    return {{memory.begin(), middle}, {middle, memory.end()}};
  }

  DataSource source(const std::string& kind) const {
    DataSource data;
    data.kind = kind;
    data.vocab = 256;
    data.global_batch = kBatch;
    data.order = order_;
    if (kind == "bytes") data.files = {{path_, 300, 0, "u8", ""}}, data.first = first_, data.count = count_;
    return data;
  }

  std::string path_, order_ = "random";
  int64_t step_ = 2, first_ = 0, count_ = 300;
  int64_t runs_before_ = 0;  // previous steps run by the same kernel
};

// `position(rank, i)`: position of the rank's token i in its sample; `first(rank)`: the rank's first sample.
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
    if (i % kContext == kContext - 1) continue;  // the last token's target is outside the sample
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

TEST_F(NextBatchTest, WhatIsMadeAheadIsWhatIsMadeWhenAskedFor) {
  for (const std::string kind : {"bytes", "random", "index"}) {
    runs_before_ = 0;
    const auto asked_for = batch({{}, "", "", 1}, 0, kBatch, kContext, kind);
    runs_before_ = 2;
    EXPECT_EQ((batch({{}, "", "", 1}, 0, kBatch, kContext, kind)), asked_for) << kind;
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

// The file's bytes are i * 7 % 251, so that a window's first byte identifies its offset, up to 251.
TEST_F(NextBatchTest, AnEpochTakesEveryWindowOnceAndTheNextOneInAnotherOrder) {
  order_ = "epochs", first_ = 24, count_ = 10 * kContext + 1;  // 10 windows; a step takes 6
  std::vector<int32_t> starts;
  for (step_ = 0; step_ < 10; ++step_) {
    const auto [tokens, targets] = batch({{}, "", "", 1}, 0, kBatch, kContext);
    for (int64_t s = 0; s < kBatch; ++s) starts.push_back(tokens[static_cast<size_t>(s * kContext)]);
  }
  std::vector<int32_t> windows;
  for (int w = 0; w < 10; ++w) windows.push_back((24 + w * static_cast<int>(kContext)) * 7 % 251);
  std::sort(windows.begin(), windows.end());
  std::set<std::vector<int32_t>> orders;
  for (int epoch = 0; epoch < 6; ++epoch) {
    std::vector<int32_t> taken(starts.begin() + epoch * 10, starts.begin() + epoch * 10 + 10);
    orders.insert(taken);
    std::sort(taken.begin(), taken.end());
    EXPECT_EQ(taken, windows) << epoch;
  }
  EXPECT_EQ(orders.size(), 6u);
}

TEST_F(NextBatchTest, APartOfTheFileIsAllThatIsRead) {
  std::set<int32_t> allowed;
  for (int i = 200; i < 240; ++i) allowed.insert(i * 7 % 251);
  first_ = 200, count_ = 40;
  for (const std::string order : {"random", "epochs"}) {
    order_ = order;
    for (step_ = 0; step_ < 20; ++step_)
      for (const auto& part :
           {batch({{}, "", "", 1}, 0, kBatch, kContext).first, batch({{}, "", "", 1}, 0, kBatch, kContext).second})
        for (const int32_t id : part) ASSERT_EQ(allowed.count(id), 1u) << order << " " << id;
  }
}

TEST_F(NextBatchTest, AFileThatIsCutWhileItIsReadIsNamed) {
  DataFiles files(source("bytes"), "");
  const DataFiles later(source("bytes"), "");
  std::vector<uint8_t> bytes(300);
  files.read(0, 10, bytes.data());
  ASSERT_EQ(truncate(path_.c_str(), 100), 0);
  const auto message = [&](const DataFiles& of) -> std::string {
    try {
      of.read(0, 300, bytes.data());
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_NE(message(files).find("ends at byte 100, and had 300 bytes when the job began"), std::string::npos);
  EXPECT_NE(message(later).find("has 100 bytes, the plan was compiled for 300"), std::string::npos);
  EXPECT_THROW(DataFiles(source("bytes"), ""), Error);
  const std::string gone = path_ + ".gone";
  ASSERT_EQ(rename(path_.c_str(), gone.c_str()), 0);
  EXPECT_NE(message(later).find("No such file"), std::string::npos);
  rename(gone.c_str(), path_.c_str());
}

// More one-byte shards than are open at once, in an order other than that of reading.
// Labels of an array and their shares on each of two ranks. A label outside the classes that is not ignored is named.
TEST_F(NextBatchTest, SharesCountTheLabelsOfAllRanks) {
  constexpr int kRanks = 2, kClasses = 5;
  const auto run = [&](std::vector<int32_t> labels, int rank) {
    std::ofstream(path_).write(reinterpret_cast<const char*>(labels.data()), static_cast<std::streamsize>(kBatch * 4));
    Program program;
    program.mesh = Mesh({{"dp", kRanks}});
    DataSource& data = program.bodies.back().data;
    data.kind = "arrays", data.order = "epochs", data.global_batch = data.count = kBatch;
    data.files = {{path_, kBatch * 4, 0, "i32", "y"}};
    constexpr int64_t kLocal = kBatch / kRanks;
    for (int i = 0; i < 2; ++i) {
      program.buffers.push_back({"batch", Role::data, kLocal * 4, i * kLocal * 4});
      program.tensors.push_back({"batch", i, 0, i == 0 ? Dtype::i32 : Dtype::f32, {kLocal}});
    }
    Op op;
    op.def = &ops::next_batch;
    op.writes = {0, 1};
    op.attrs.set("axis", "dp");
    op.attrs.set("names", "y,y.shares");
    op.attrs.set("share_of", ",y");
    op.attrs.set("weighted_by", ",");
    op.attrs.set("ignored", std::vector<int64_t>{0, -100});
    op.attrs.set("classes", std::vector<int64_t>{0, kClasses});
    StepTable table;
    std::vector<std::byte> memory(2 * kLocal * 4);
    make_next_batch({memory.data(), rank, &program, &table}, op, {})->run();
    float sum = 0;
    for (int64_t i = 0; i < kLocal; ++i) {
      const int32_t id = reinterpret_cast<const int32_t*>(memory.data())[i];
      const float share = reinterpret_cast<const float*>(memory.data() + kLocal * 4)[i];
      EXPECT_TRUE(share == (id == kIgnoredTarget ? 0 : 2)) << id << " " << share;
      sum += share;
    }
    return sum;
  };
  EXPECT_EQ(run({4, -100, 0, -100, -100, 3}, 0) + run({4, -100, 0, -100, -100, 3}, 1), kBatch);
  for (const int32_t wrong : {-1, kClasses}) {
    try {
      run({4, -100, 0, wrong, -100, 3}, 0);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.message(),
                fmt::format("{}: the label {} of sample 3 at position 0 is neither in the 5 logits of a row nor -100, "
                            "which is ignored",
                            path_, wrong));
    }
  }
}

TEST_F(NextBatchTest, ManyShardsAreOneText) {
  constexpr int kShards = 100;
  DataSource data = source("index");
  for (int i = 0; i < kShards; ++i) {
    data.files.push_back({path_ + std::to_string(i), 3, 2, "u8", ""});
    std::ofstream(data.files.back().path) << "**" << static_cast<char>(i);
  }
  const DataFiles files(data, "");
  EXPECT_EQ(files.count(), kShards);
  std::vector<uint8_t> bytes(kShards);
  for (const int first : {70, 0, 99, 3}) {
    files.read(first, kShards - first, bytes.data());
    for (int i = first; i < kShards; ++i) ASSERT_EQ(bytes[static_cast<size_t>(i - first)], i);
  }
  EXPECT_EQ(files.place(42).path, path_ + "42");
  EXPECT_EQ(files.place(42).byte, 2);
  for (const DataFile& file : data.files) unlink(file.path.c_str());
}

TEST(ReadAhead, GivesWhatWasAskedForAndThrowsWhereItIs) {
  ReadAhead ahead({8}, [](int64_t number, const std::vector<void*>& to) {
    if (number == 5) throw usage_error("five");
    *static_cast<int64_t*>(to[0]) = number;
  });
  int64_t out = 0;
  for (const int64_t number : {0, 1, 2, 7, 8, 3, 4}) {
    ahead.take(number, {&out});
    EXPECT_EQ(out, number);
  }
  EXPECT_THROW(ahead.take(5, {&out}), Error);
}

// Batch 1 is blocked until the promise is set; batch 0 is still handed out.
TEST(ReadAhead, WhatIsSlowStandsInNobodysWay) {
  std::promise<void> slow;
  ReadAhead ahead({8}, [&](int64_t number, const std::vector<void*>& to) {
    if (number == 1) slow.get_future().wait();
    *static_cast<int64_t*>(to[0]) = number;
  });
  int64_t out = -1;
  ahead.take(0, {&out});
  EXPECT_EQ(out, 0);
  slow.set_value();
  ahead.take(1, {&out});
  EXPECT_EQ(out, 1);
}

// Half of the streams of 64 bytes are one document, the others documents of 8 bytes.
TEST_F(NextBatchTest, StreamsOfDocumentsAreBalancedOverRanksAndMicrobatches) {
  constexpr int64_t kStreams = 24, kCapacity = 64, kRanks = 4, kMicro = 3, kLocal = kStreams / kRanks;
  {
    std::ofstream file(path_);
    for (int64_t i = 0; i < kStreams * kCapacity; ++i) {
      const bool ends = i < kStreams / 2 * kCapacity ? i % kCapacity == kCapacity - 1 : i % 8 == 7;
      file.put(ends ? '\0' : 'a');
    }
  }
  Program program;
  program.mesh = Mesh({{"dp", kRanks}});
  DataSource& data = program.bodies.back().data;
  data.kind = "bytes", data.order = "epochs", data.vocab = 256, data.global_batch = kStreams;
  data.document_end = 0, data.capacity = kCapacity, data.long_documents = "error";
  data.files = {{path_, kStreams * kCapacity, 0, "u8", ""}};
  program.buffers.push_back({"batch", Role::data, kLocal * kCapacity * 8, 0});
  program.tensors.push_back({"batch", 0, 0, Dtype::i32, {kLocal, kCapacity, 2}});
  Op op;
  op.def = &ops::next_batch;
  op.writes = {0};
  op.attrs.set("axis", "dp");
  op.attrs.set("names", "documents");
  op.attrs.set("micro", kMicro);
  for (int rank = 0; rank < kRanks; ++rank) {
    StepTable table;
    std::vector<int32_t> runs(kLocal * kCapacity * 2);
    make_next_batch({reinterpret_cast<std::byte*>(runs.data()), rank, &program, &table}, op, {})->run();
    for (int64_t m = 0; m < kMicro; ++m) {
      int64_t whole = 0;
      for (int64_t s = m * kLocal / kMicro; s < (m + 1) * kLocal / kMicro; ++s)
        whole += runs[s * kCapacity * 2 + 1] == kCapacity ? 1 : 0;
      EXPECT_EQ(whole, 1) << "rank " << rank << " microbatch " << m;
    }
  }
}

// A stream of 4096 tokens: one document of half of it, and short ones.
TEST(DocumentLayout, SharesCostTheSame) {
  DocumentLayout layout;
  layout.clear(4096);
  layout.add(2048);
  for (int64_t length = 7; layout.size() + length < 4096; length = length * 5 % 331 + 1) layout.add(length);
  layout.pad();
  std::vector<int32_t> runs(2 * 4096);
  layout.fill({"documents", Dtype::i32, 2 * 4096, 0}, runs.data());
  for (const int64_t ranks : {2, 4, 8}) {
    const std::vector<int64_t> tokens = layout.shares(ranks);
    EXPECT_EQ(std::set<int64_t>(tokens.begin(), tokens.end()).size(), 4096);
    const int64_t held = 4096 / ranks;
    double most = 0, all = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      double cost = 0;
      for (int64_t i = rank * held; i < (rank + 1) * held; ++i) {
        cost += static_cast<double>(tokens[i] + 1 - runs[2 * tokens[i]]);
        if (i > rank * held) {
          ASSERT_GT(tokens[i], tokens[i - 1]);
        }
      }
      most = std::max(most, cost), all += cost;
    }
    EXPECT_LT(most, 1.05 * all / static_cast<double>(ranks)) << ranks;
  }
}

TEST(Ids, ThoseWithoutARowAreRefused) {
  const int32_t ids[] = {0, 9, 3}, negative[] = {2, -1};
  EXPECT_NO_THROW(require_ids(ids, 3, 10, kTokenOutside));
  EXPECT_THROW(require_ids(ids, 3, 9, kTokenOutside), Error);
  EXPECT_THROW(require_ids(negative, 2, 9, kTargetOutside), Error);
}

}  // namespace
}  // namespace prun
