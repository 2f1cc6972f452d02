// Item 8: ranks whose calls differ get an error that names both calls, never data.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/conformance/case.h"

namespace prun::testing {
namespace {

struct Difference {
  const char* name;
  CollCall common, deviant;
  std::string common_text, deviant_text;  // as in the message
};

CollCall make(CollKind kind, int64_t count, Dtype dtype = Dtype::f32, RedOp op = RedOp::sum, int root = 0) {
  CollCall call;
  call.kind = kind;
  call.count = count;
  call.dtype = dtype;
  call.redop = op;
  call.root = root;
  return call;
}

std::vector<Difference> differences() {
  using K = CollKind;
  return {
      {"operation", make(K::all_reduce, 100), make(K::all_reduce, 100, Dtype::f32, RedOp::max),
       "all_reduce f32[100] sum", "all_reduce f32[100] max"},
      {"count", make(K::all_reduce, 100), make(K::all_reduce, 101), "all_reduce f32[100] sum",
       "all_reduce f32[101] sum"},
      {"large_count", make(K::all_reduce, 70000), make(K::all_reduce, 70100), "all_reduce f32[70000] sum",
       "all_reduce f32[70100] sum"},
      {"small_and_large", make(K::all_gather, 10), make(K::all_gather, 70100), "all_gather f32[10]",
       "all_gather f32[70100]"},
      {"dtype", make(K::reduce_scatter, 50), make(K::reduce_scatter, 50, Dtype::i32), "reduce_scatter f32[50] sum",
       "reduce_scatter i32[50] sum"},
      {"kind", make(K::all_reduce, 100), make(K::broadcast, 100), "all_reduce f32[100] sum",
       "broadcast f32[100] root 0"},
      {"barrier", make(K::all_gather, 10), make(K::barrier, 0), "all_gather f32[10]", "barrier"},
      {"root", make(K::broadcast, 5000, Dtype::f32, RedOp::sum, 0), make(K::broadcast, 5000, Dtype::f32, RedOp::sum, 1),
       "broadcast f32[5000] root 0", "broadcast f32[5000] root 1"},
  };
}

bool has(const RankReport& report, const std::string& words) { return report.text.find(words) != std::string::npos; }

// Returns an error if a difference was not detected or not reported; "" if all ranks got an error in time, and one of
// them names both calls.
std::string untold(const std::vector<RankReport>& reports, const Difference& difference, int deviant) {
  const std::string calls = fmt::format("rank {} called {} where the others called {}", deviant,
                                        difference.deviant_text, difference.common_text);
  bool both_named = false;
  for (size_t r = 0; r < reports.size(); ++r) {
    const RankReport& report = reports[r];
    const bool mismatch = report.text.starts_with("Exit 12: ");
    if (report.status == 0 || has(report, "was given data"))
      return fmt::format("{}, and rank {} was given data", calls, r);
    if (!mismatch && !report.text.starts_with("Aborted: "))
      return fmt::format("{}, and rank {} was told: {}", calls, r, report.text);
    if (report.seconds > 3) return fmt::format("{}, and rank {} was told after {:.1f} s", calls, r, report.seconds);
    both_named |= mismatch && has(report, difference.common_text) &&
                  has(report, fmt::format("rank {} called {}", deviant, difference.deviant_text));
  }
  return both_named ? "" : fmt::format("{}, and nobody was told both: {}", calls, failures(reports));
}

class Misuse : public ::testing::TestWithParam<int> {};

TEST_P(Misuse, CallsThatDifferAreNamed) {
  const int deviant = GetParam() - 1;
  for (const Difference& difference : differences()) {
    ConnectedJob job;
    job.local.ranks = GetParam();
    job.local.timeout_s = 20;
    job.deadline_s = 10;
    auto reports = run_connected(job, [&](Rank& rank) -> std::string {
      Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
      std::vector<double> a(300000), b(300000);
      CollCall good = make(CollKind::all_reduce, 10);
      good.send = a.data();
      good.recv = b.data();
      all.run(good);
      CollCall call = rank.index == deviant ? difference.deviant : difference.common;
      call.send = a.data();
      call.recv = b.data();
      all.run(call);
      // A rank that finished before detection gets the error from the next call.
      all.run(good);
      return "was given data";
    });
    EXPECT_EQ(untold(reports, difference, deviant), "");
  }
}

// Collectives with counts per member are the core's even if the plugin has its own collectives.
TEST_P(Misuse, ACountedFormAgainstAnother) {
  ConnectedJob job;
  job.local.ranks = GetParam();
  auto reports = run_connected(job, [](Rank& rank) -> std::string {
    Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
    std::vector<float> a(3000), b(3000);
    std::vector<int64_t> counts(static_cast<size_t>(rank.size), 20);
    CollCall call = make(rank.index == 0 ? CollKind::all_gather_v : CollKind::all_reduce, 20);
    call.send = a.data();
    call.recv = b.data();
    call.counts = counts.data();
    all.run(call);
    return "was given data";
  });
  std::string texts = failures(reports);
  EXPECT_EQ(texts.find("was given data"), std::string::npos) << texts;
  EXPECT_NE(texts.find("rank 0 called all_gather_v f32"), std::string::npos) << texts;
  EXPECT_NE(texts.find("all_reduce f32[20] sum"), std::string::npos) << texts;
  for (const RankReport& report : reports) EXPECT_LT(report.seconds, 3);
}

TEST_P(Misuse, OrdersThatDifferAreNamed) {
  ConnectedJob job;
  job.local.ranks = GetParam();
  auto reports = run_connected(job, [](Rank& rank) -> std::string {
    Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
    std::vector<float> a(3000), b(3000);
    CollCall first = make(CollKind::all_gather, 20), second = make(CollKind::all_reduce, 300);
    first.send = second.send = a.data();
    first.recv = second.recv = b.data();
    bool swapped = rank.index == rank.size - 1;
    all.run(swapped ? second : first);
    all.run(swapped ? first : second);
    return "was given data";
  });
  std::string texts = failures(reports);
  EXPECT_EQ(texts.find("was given data"), std::string::npos) << texts;
  EXPECT_NE(texts.find("all_gather f32[20]"), std::string::npos) << texts;
  EXPECT_NE(texts.find("all_reduce f32[300] sum"), std::string::npos) << texts;
}

INSTANTIATE_TEST_SUITE_P(Ranks, Misuse, ::testing::Values(2, 3));

TEST(MisuseOfSendReceive, SizesThatDiffer) {
  for (int64_t bytes : {8, 100000}) {
    auto reports = run_connected(2, [&](Rank& rank) -> std::string {
      Communicator& all = rank.world.communicator(all_ranks(2), 0);
      std::vector<char> data(200000);
      if (rank.index == 0)
        all.send_recv(1, data.data(), bytes, -1, nullptr, 0);
      else
        all.send_recv(-1, nullptr, 0, 0, data.data(), bytes + 4);
      return rank.index == 0 ? "" : "was given data";
    });
    // Either side may detect it first; the other side is informed.
    std::string text = failures(reports);
    EXPECT_EQ(text.find("was given data"), std::string::npos) << text;
    EXPECT_NE(text.find("Exit 12: "), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(bytes)), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(bytes + 4)), std::string::npos) << text;
  }
}

// Groups must be created in the same order everywhere; otherwise the message reports it.
TEST(MisuseOfGroups, MadeInDifferentOrders) {
  auto reports = run_connected(2, [](Rank& rank) -> std::string {
    rank.world.communicator(rank.index == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0}, 0);
    return "made one";
  });
  std::string texts = failures(reports);
  EXPECT_NE(texts.find("do all ranks make theirs in the same order?"), std::string::npos) << texts;
  EXPECT_EQ(texts.find("made one"), std::string::npos) << texts;
}

}  // namespace
}  // namespace prun::testing
