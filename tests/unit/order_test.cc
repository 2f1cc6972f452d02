// The happens-before order: clocks along chains of edges, and wait cycles.
//
// Surprising fact: two ops are unordered only if neither is before the other, so tests assert both directions.
#include "ir/order.h"

#include <gtest/gtest.h>

#include <random>

#include "ir/carried.h"

namespace prun {
namespace {

Body body_of(std::vector<std::vector<std::vector<Edge>>> streams) {
  Body body;
  for (const auto& ops : streams) {
    Stream stream;
    for (const auto& waits : ops) {
      Op op;
      op.waits = waits;
      stream.ops.push_back(op);
    }
    body.streams.push_back(stream);
  }
  return body;
}

TEST(Order, OneStreamIsInListOrder) {
  const Body body = body_of({{{}, {}, {}}});
  const Order order(body);
  EXPECT_TRUE(order.stuck().empty());
  EXPECT_TRUE(order.before({0, 0}, {0, 2}));
  EXPECT_FALSE(order.before({0, 2}, {0, 0}));
  EXPECT_FALSE(order.before({0, 1}, {0, 1}));
}

TEST(Order, StreamsWithoutEdgesAreUnordered) {
  const Order order(body_of({{{}, {}}, {{}}}));
  EXPECT_FALSE(order.before({0, 0}, {1, 0}));
  EXPECT_FALSE(order.before({1, 0}, {0, 1}));
  EXPECT_EQ(order.sequence().size(), 3u);
}

TEST(Order, AnEdgeOrdersWhatPrecedesItsSourceAndFollowsItsTarget) {
  // Op 1 of stream 1 waits for op 1 of stream 0.
  const Order order(body_of({{{}, {}, {}}, {{}, {{0, 1, 0}}, {}}}));
  EXPECT_TRUE(order.before({0, 0}, {1, 1}));
  EXPECT_TRUE(order.before({0, 1}, {1, 2}));
  EXPECT_FALSE(order.before({0, 2}, {1, 2}));
  EXPECT_FALSE(order.before({0, 1}, {1, 0}));
  EXPECT_FALSE(order.before({1, 0}, {0, 2}));
}

TEST(Order, IsTransitiveOverStreams) {
  // 0.0 -> 1.0 -> 2.1
  const Order order(body_of({{{}, {}}, {{{0, 0, 0}}}, {{}, {{1, 0, 0}}}}));
  EXPECT_TRUE(order.before({0, 0}, {2, 1}));
  EXPECT_FALSE(order.before({0, 0}, {2, 0}));
  EXPECT_FALSE(order.before({0, 1}, {2, 1}));
}

TEST(Order, SequenceIsLegal) {
  const Body body = body_of({{{{1, 1, 0}}, {}}, {{}, {}, {{0, 1, 0}}}});
  const Order order(body);
  Table<StreamId, int> done(2, 0);
  for (const OpRef ref : order.sequence()) {
    const StreamId s = ref.stream;
    EXPECT_EQ(ref.index, done[s]);
    for (const Edge& edge : body.streams[s].ops[ref.index].waits) {
      EXPECT_LT(edge.index, done[edge.stream]);
    }
    done[s]++;
  }
  EXPECT_EQ(order.sequence().size(), 5u);
}

TEST(Order, EdgesToTheStepBeforeAreSatisfied) {
  const Order order(body_of({{{{1, 0, 1}}}, {{{0, 0, 0}}}}));
  EXPECT_TRUE(order.stuck().empty());
  EXPECT_TRUE(order.before({0, 0}, {1, 0}));
  EXPECT_FALSE(order.before({1, 0}, {0, 0}));
}

// No op of its own step waits for the last op of stream 1; op 1 of stream 0 waits for it in the next step.
TEST(Order, WhatGoesOnOverTheEndOfAStepIsOrderedInTheNext) {
  const Body body = body_of({{{}, {{1, 1, 1}}, {{1, 0, 0}}}, {{{0, 2, 1}}, {{0, 0, 0}}}});
  const Table<StreamId, int> ended = ended_with(body);
  EXPECT_EQ(ended[0], 3);
  EXPECT_EQ(ended[1], 1);
  EXPECT_TRUE(goes_on(body));
  const TwoSteps steps(body);
  EXPECT_TRUE(steps.before({0, 2}, {1, 0}));
  EXPECT_TRUE(steps.before({1, 1}, {1, 0}));
  EXPECT_FALSE(steps.before({1, 1}, {0, 0}));
  EXPECT_TRUE(steps.before({1, 1}, {0, 1}));
  EXPECT_TRUE(steps.before({1, 1}, {0, 2}));
  EXPECT_FALSE(goes_on(body_of({{{}, {{1, 0, 0}}}, {{{0, 0, 0}}}})));
  EXPECT_FALSE(goes_on(body_of({{}, {{}}})));
}

TEST(Order, TheEndOfAStepIsTheClockOfItsLastOp) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<std::vector<Edge>>> streams(4);
    for (int i = 0; i < 40; ++i) {
      std::vector<Edge> waits;
      for (const int stream : {0, 1, 2, 3})
        if (const int ops = static_cast<int>(streams[stream].size()); ops > 0 && random() % 3 == 0)
          waits.push_back({stream, static_cast<int>(random() % ops), static_cast<int>(random() % 4 == 0)});
      streams[random() % 4].push_back(waits);
    }
    streams[0].emplace_back();
    const Body body = body_of(streams);
    const Order order(body);
    const Table<StreamId, int> ended = ended_with(body);
    const OpRef last{0, static_cast<int>(streams[0].size()) - 1};
    for (StreamId s = 1; s < 4; ++s) EXPECT_EQ(ended[s], order.ended_before(last, s)) << "round " << round;
  }
}

TEST(Order, ACycleNamesTheFirstBlockedOpOfEachStream) {
  // 0.1 waits for 1.1 and 1.1 for 0.1; stream 2 is not part of the cycle.
  const Order order(body_of({{{}, {{1, 1, 0}}, {}}, {{}, {{0, 1, 0}}}, {{}}}));
  ASSERT_EQ(order.stuck().size(), 2u);
  EXPECT_EQ(order.stuck()[0], (OpRef{0, 1}));
  EXPECT_EQ(order.stuck()[1], (OpRef{1, 1}));
}

TEST(Order, AnOpThatWaitsForALaterOneOfItsStreamIsStuck) {
  const Order order(body_of({{{{0, 1, 0}}, {}}}));
  ASSERT_EQ(order.stuck().size(), 1u);
  EXPECT_EQ(order.stuck()[0], (OpRef{0, 0}));
}

TEST(Order, AnEdgeToNoOpIsStuck) {
  EXPECT_EQ(Order(body_of({{{{1, 5, 0}}}, {{}}})).stuck().size(), 1u);
  EXPECT_EQ(Order(body_of({{{{7, 0, 0}}}})).stuck().size(), 1u);
}

}  // namespace
}  // namespace prun
