// The parts of comm that need no second rank: conversions for reductions, texts of calls, names of algorithms, folders.
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

#include "comm/collectives/algorithm.h"
#include "comm/collectives/call.h"
#include "comm/reduce.h"
#include "comm/transport/transport_session.h"

namespace prun {
namespace {

// Every 16-bit float times one is bitwise itself; a NaN remains a NaN.
void expect_all_survive(Dtype dtype, uint16_t one, uint16_t infinity) {
  std::vector<uint16_t> all(65536), ones(65536, one), out(65536);
  std::iota(all.begin(), all.end(), uint16_t{0});
  const void* inputs[] = {all.data(), ones.data()};
  reduce(dtype, RedOp::prod, inputs, 2, out.data(), 65536, 2);
  for (int i = 0; i < 65536; ++i) {
    uint16_t got = out[static_cast<size_t>(i)];
    bool nan = (i & 0x7fff) > infinity;
    ASSERT_TRUE(nan ? (got & 0x7fff) > infinity : got == i) << std::hex << i << " became " << got;
  }
}

TEST(Reduce, EverySixteenBitFloatSurvives) {
  expect_all_survive(Dtype::f16, 0x3c00, 0x7c00);
  expect_all_survive(Dtype::bf16, 0x3f80, 0x7f80);
}

TEST(Reduce, RoundsOnceAndOverflowsToInfinity) {
  // Adds 2^-11 four times to 1: f16 cannot represent the partial sums, f32 can. 65504 + 16 rounds to infinity.
  uint16_t one = 0x3c00, step = 0x1000, big = 0x7bff, sixteen = 0x4c00, out = 0;
  const void* small[] = {&one, &step, &step};
  reduce(Dtype::f16, RedOp::sum, small, 3, &out, 1, 3);
  EXPECT_EQ(out, 0x3c01);
  const void* large[] = {&big, &sixteen};
  reduce(Dtype::f16, RedOp::sum, large, 2, &out, 1, 2);
  EXPECT_EQ(out, 0x7c00);
}

TEST(Reduce, OutputMayBeAnInput) {
  std::vector<float> a(5000, 1.5f), b(5000, 2.25f);
  const void* inputs[] = {a.data(), b.data()};
  reduce(Dtype::f32, RedOp::avg, inputs, 2, b.data(), 5000, 2);
  EXPECT_EQ(b, std::vector<float>(5000, 1.875f));
}

TEST(Call, Texts) {
  CollCall call;
  call.kind = CollKind::all_reduce;
  call.count = 1024;
  EXPECT_EQ(describe(call), "all_reduce f32[1024] sum");
  call.rank_order = true;
  EXPECT_EQ(describe_packed(pack_fingerprint(call), 1024), "all_reduce f32[1024] sum rank_order");
  call.kind = CollKind::scatter;
  call.dtype = Dtype::bf16;
  call.root = 70000;
  EXPECT_EQ(describe_packed(pack_fingerprint(call), 8), "scatter bf16[8] root 70000");
  EXPECT_EQ(describe_packed(pack_fingerprint(CollCall{}), 0), "barrier");
  EXPECT_EQ(describe_packed(0xd, 0), "an unknown operation (0xd)");
}

TEST(Algorithm, RankOrderAndNarrowFloatsNeverTravelAsPartialSums) {
  CollCall call;
  call.kind = CollKind::all_reduce;
  call.count = 1 << 24;
  EXPECT_STREQ(choose_algorithm(call, 8, "ring").name, "ring");
  EXPECT_STREQ(choose_algorithm(call, 1000, "").name, "ring");
  call.rank_order = true;
  EXPECT_STREQ(choose_algorithm(call, 8, "ring").name, "direct");
  EXPECT_STREQ(choose_algorithm(call, 1000, "").name, "direct");
  call.rank_order = false;
  call.dtype = Dtype::bf16;
  EXPECT_STREQ(choose_algorithm(call, 1000, "").name, "direct");
}

TEST(Algorithm, NeitherDoAveragesOfSmallIntegers) {
  CollCall call;
  call.kind = CollKind::all_reduce;
  call.dtype = Dtype::i8;
  call.redop = RedOp::avg;
  call.count = 1 << 24;
  EXPECT_STREQ(choose_algorithm(call, 1000, "").name, "direct");  // 100 + 100 overflows i8
  call.redop = RedOp::sum;
  EXPECT_STREQ(choose_algorithm(call, 1000, "").name, "ring");
}

TEST(Algorithm, SomeNeedAPowerOfTwo) {
  CollCall call;
  call.kind = CollKind::reduce_scatter;
  call.dtype = Dtype::f32;
  call.count = 1024;
  EXPECT_STREQ(choose_algorithm(call, 8, "halving").name, "halving");
  EXPECT_STREQ(choose_algorithm(call, 6, "halving").name, "direct");
}

TEST(Algorithm, LargeCallsOfEightHaveOnePartnerAtATime) {
  CollCall call;
  call.kind = CollKind::all_reduce;
  call.dtype = Dtype::f32;
  call.count = 16 << 20;
  EXPECT_STREQ(choose_algorithm(call, 8, "").name, "halving");
  EXPECT_STREQ(choose_algorithm(call, 4, "").name, "direct");
  EXPECT_STREQ(choose_algorithm(call, 6, "").name, "direct");
  call.kind = CollKind::reduce_scatter;
  call.count = 1 << 15;  // 1 MiB in all
  EXPECT_STREQ(choose_algorithm(call, 8, "").name, "halving");
  call.count = 1 << 17;  // 4 MiB: partial sums of half that size exceed the cache
  EXPECT_STREQ(choose_algorithm(call, 8, "").name, "pairwise");
  EXPECT_STREQ(choose_algorithm(call, 6, "").name, "direct");
  call.rank_order = true;
  EXPECT_STREQ(choose_algorithm(call, 8, "").name, "direct");
  call.rank_order = false;
  call.count = 1 << 16;  // 4 MiB with 16 members
  EXPECT_STREQ(choose_algorithm(call, 16, "").name, "halving");
  call.count = 2 << 20;  // 64 MiB: its scratch is half that size
  EXPECT_STREQ(choose_algorithm(call, 8, "").name, "halving");
  call.count = 4 << 20;
  EXPECT_STREQ(choose_algorithm(call, 8, "").name, "direct");
  call.kind = CollKind::all_gather;
  EXPECT_STREQ(choose_algorithm(call, 8, "").name, "ring");
  call.count = 1 << 17;
  EXPECT_STREQ(choose_algorithm(call, 8, "").name, "direct");
}

TEST(Algorithm, MeasuredCostsDecide) {
  // ring: 14 steps of 1 us, and 1.75 S at 1 GB/s; direct: 14 steps of 10 us, at 2 GB/s.
  const AlgorithmCosts costs(
      "socket all_reduce ring 1e-6 1000:1e9 1000000:1e9\nsocket all_reduce direct 1e-5 0:2e9\n"
      "ucx all_reduce doubling 1e-9 0:1e12\n",
      "socket");
  CollCall call;
  call.kind = CollKind::all_reduce;
  call.count = 16;
  EXPECT_DOUBLE_EQ(*costs.seconds(call.kind, "ring", 8, 64), 14e-6 + 112 / 1e9);
  EXPECT_DOUBLE_EQ(*costs.seconds(call.kind, "direct", 8, 64), 140e-6 + 112 / 2e9);
  EXPECT_FALSE(costs.seconds(call.kind, "doubling", 8, 64));  // other transport
  EXPECT_STREQ(choose_algorithm(call, 8, "", costs).name, "ring");
  EXPECT_STREQ(choose_algorithm(call, 8, "gather", costs).name, "gather");
  EXPECT_EQ(explain_algorithm(call, 8, "", costs), "by calibration, 14.1 us");
  call.rank_order = true;
  EXPECT_STREQ(choose_algorithm(call, 8, "", costs).name, "direct");
  call.rank_order = false;
  call.count = 1 << 24;
  EXPECT_STREQ(choose_algorithm(call, 8, "", costs).name, "direct");
  call.kind = CollKind::all_gather;  // not measured
  EXPECT_STREQ(choose_algorithm(call, 8, "", costs).name, choose_algorithm(call, 8, "").name);
  EXPECT_THROW(AlgorithmCosts("socket all_reduce rink 1e-6 0:1e9\n", ""), Error);
  EXPECT_THROW(AlgorithmCosts("socket all_reduce ring 1e-6\n", ""), Error);
  EXPECT_THROW(AlgorithmCosts("socket all_reduce ring 1e-6 5:1e9 4:1e9\n", ""), Error);
}

TEST(Algorithm, EveryComparedNameIsAnAlgorithm) {
  for (int i = 0; i < kCollKinds; ++i)
    for (const std::string& name : compared_algorithms(static_cast<CollKind>(i))) {
      CollCall call;
      call.kind = static_cast<CollKind>(i);
      call.count = 1 << 10;
      EXPECT_EQ(choose_algorithm(call, 8, name).name, name);
      EXPECT_GT(algorithm_work(call.kind, name, 8)->moved, 0);
      EXPECT_GE(algorithm_work(call.kind, name, 2)->steps, 1);
    }
}

TEST(Algorithm, PartsHaveTheBitsOfTheWholeWhereSumsAreInOrder) {
  CollCall whole, part;
  whole.kind = part.kind = CollKind::all_reduce;
  whole.count = 8 << 20;  // f32: 32 MiB, 4 MiB
  part.count = 1 << 20;
  EXPECT_TRUE(divides(whole, part, 4, ""));    // slices, both
  EXPECT_FALSE(divides(whole, part, 8, ""));   // slices; pairs
  EXPECT_FALSE(divides(whole, part, 64, ""));  // a ring starts the reduction of each slice at another member
  EXPECT_TRUE(divides(whole, part, 64, "direct"));
  whole.rank_order = part.rank_order = true;
  EXPECT_TRUE(divides(whole, part, 64, ""));
  whole.rank_order = part.rank_order = false;
  whole.dtype = part.dtype = Dtype::bf16;
  EXPECT_TRUE(divides(whole, part, 64, ""));
  whole.kind = part.kind = CollKind::broadcast;
  EXPECT_TRUE(divides(whole, part, 64, ""));
}

// 1,000 ranks on 2 cores answer one after the other.
TEST(Connecting, IsWaitedForLongerWhereManyRanksShareACore) {
  EXPECT_EQ(connecting_deadline_s(60, 2), 60);
  EXPECT_EQ(connecting_deadline_s(60, 2.0 / 32), 60);
  EXPECT_EQ(connecting_deadline_s(60, 2.0 / 1000), 60 * 1000.0 / 32);
}

TEST(Plugins, DirectoriesInOrder) {
  setenv("PRUN_PLUGIN_PATH", "/a::/b/c", 1);
  EXPECT_EQ(plugin_directories("/opt/prun/bin/prun"),
            (std::vector<std::string>{"/a", "/b/c", "/opt/prun/lib/prun/plugins"}));
  unsetenv("PRUN_PLUGIN_PATH");
}

}  // namespace
}  // namespace prun
