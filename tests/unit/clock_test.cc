// Ops that outlast a step continue in the next step as they would have: those of a stream run one after the other.
#include "simulate/clock.h"

#include <gtest/gtest.h>

#include "verify_builder.h"

namespace prun::simulate {
namespace {

Cluster slow_bus() {
  Cluster cluster;
  cluster.device.peak[static_cast<size_t>(Dtype::f32)] = 1e12;
  cluster.device.memory_bandwidth = 1e12;
  cluster.node.device = cluster.device;
  cluster.node.devices = 2;
  cluster.bus = {.name = "bus", .bandwidth = 1e9};
  return cluster;
}

// Returns the spans, in the second step, of ops carried over from the first.
std::vector<OpSpan> left_over_spans(const Job& job, const Cluster& cluster) {
  const std::vector<RankPlace> places = place_ranks(cluster, 2);
  const RankColours colours = colour_ranks(job, cluster, places);
  Clock first(job, cluster, places, colours), second(job, cluster, places, colours, true);
  first.run();
  second.begin_with(first.left_over());
  second.run();
  std::vector<OpSpan> spans = second.spans().front();
  std::erase_if(spans, [](const OpSpan& span) { return !span.of_step_before; });
  return spans;
}

// An all-gather of 1 MB per rank takes 1 ms.
constexpr int kFloats = 250'000;

// Returns the carried-over spans of two all-gathers, the second on `stream`, when a step has little compute.
std::vector<OpSpan> of_two_gathers(int stream, const std::vector<Edge>& waits = {}) {
  Builder b;
  const int x = b.buffer("x", 64), y = b.buffer("y", 64);
  const int shard = b.persistent("shard", kFloats), first = b.buffer("first", 2 * kFloats),
            second = b.buffer("second", 2 * kFloats);
  b.op(kCompute, {x, x}, {y});
  b.op(kAllGather, {shard}, {first}, 1);
  b.op(kAllGather, {shard}, {second}, stream, waits);
  return left_over_spans(b.job(), slow_bus());
}

TEST(LeftOver, OfOneStreamOneRunsAfterTheOther) {
  const std::vector<OpSpan> spans = of_two_gathers(1);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].op, (OpRef{1, 0}));
  EXPECT_EQ(spans[1].op, (OpRef{1, 1}));
  EXPECT_NEAR(spans[0].end, 1e-3, 1e-5);
  EXPECT_EQ(spans[1].begin, spans[0].end);
  EXPECT_NEAR(spans[1].end, 2e-3, 1e-5);
}

TEST(LeftOver, WaitsForWhatItWaitedForInItsStep) {
  const std::vector<OpSpan> spans = of_two_gathers(2, {{1, 0, 0}});
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[1].op, (OpRef{2, 0}));
  EXPECT_EQ(spans[1].begin, spans[0].end);
}

TEST(LeftOver, StreamsOfTheirOwnShareTheLink) {
  const std::vector<OpSpan> spans = of_two_gathers(2);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].begin, spans[1].begin);
  EXPECT_NEAR(spans[1].end, 2e-3, 1e-5);
}

}  // namespace
}  // namespace prun::simulate
