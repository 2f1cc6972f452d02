// Regions of a body: the ops that are enqueued together, and the ops that wait for the host.
#include "exec/regions.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace prun {
namespace {

constexpr How D = How::device, H = How::host, F = How::first, C = How::counted;

// Builds a body op by op: a letter for the kind, then the ops of other streams that it waits for.
struct Made {
  Body body;
  Table<StreamId, std::vector<How>> how;

  Made& stream() {
    body.streams.emplace_back();
    how.emplace_back();
    return *this;
  }
  Made& op(How way, std::vector<Edge> waits = {}, bool writes = true) {
    Op op;
    op.def = &op_def(way == D ? "scale" : "print");
    op.waits = std::move(waits);
    if (writes) op.writes = {0};
    body.streams.back().ops.push_back(std::move(op));
    how.back().push_back(way);
    return *this;
  }
  // Makes the last op write counts, or be counted by them.
  Made& counts(TensorId id) {
    Op& op = body.streams.back().ops.back();
    if (how.back().back() == C) {
      op.def = &op_def("exchange_rows");
      op.reads = {0, id};
    } else {
      op.writes = {id};
    }
    return *this;
  }
  Regions regions() const { return Regions(body, how); }
};

// Returns "0.1" for each op of a region, in order; a suffix marks arms (a) and lands (l).
std::vector<std::string> names(const Regions& regions, size_t region) {
  std::vector<std::string> out;
  for (const int id : regions.regions[region].items) {
    const Item& item = regions.items[static_cast<size_t>(id)];
    const char* mark = item.kind == Item::Kind::op ? "" : item.kind == Item::Kind::arm ? "a" : "l";
    out.push_back(std::to_string(item.op.stream.index()) + "." + std::to_string(item.op.index) + mark);
  }
  return out;
}
using Names = std::vector<std::string>;

TEST(Regions, ABodyWithoutHostOpsIsOne) {
  Made made;
  made.stream().op(D).op(D, {{1, 0, 0}}).stream().op(D).op(D, {{0, 1, 0}});
  const Regions regions = made.regions();
  ASSERT_EQ(regions.regions.size(), 1u);
  EXPECT_EQ(names(regions, 0), (Names{"0.0", "1.0", "0.1", "1.1"}));
  EXPECT_EQ(regions.items[2].waits, std::vector<int>{1});
  EXPECT_TRUE(regions.items[1].awaited);
  EXPECT_FALSE(regions.items[0].awaited);
}

TEST(Regions, FirstOpsAreNoItems) {
  Made made;
  made.stream().op(F).op(D).stream().op(D, {{0, 0, 0}});
  const Regions regions = made.regions();
  ASSERT_EQ(regions.regions.size(), 1u);
  EXPECT_EQ(names(regions, 0), (Names{"0.1", "1.0"}));
  EXPECT_EQ(regions.first, std::vector<OpRef>({{0, 0}}));
  EXPECT_TRUE(regions.items[1].waits.empty());
}

TEST(Regions, EndWhereTheInputsOfAHostOpAreReady) {
  // Stream 1 sends the result of 0.0; 0.1 does not need the answer, 0.2 does.
  Made made;
  made.stream().op(D).op(D).op(D, {{1, 0, 0}}).stream().op(H, {{0, 0, 0}}).op(D);
  const Regions regions = made.regions();
  ASSERT_EQ(regions.regions.size(), 3u);
  EXPECT_EQ(names(regions, 0), (Names{"0.0"}));
  EXPECT_EQ(names(regions, 1), (Names{"0.1", "1.0a"}));
  EXPECT_EQ(names(regions, 2), (Names{"1.0l", "1.1", "0.2"}));
  EXPECT_EQ(regions.regions[1].after, std::vector<int>{0});
  EXPECT_EQ(regions.regions[2].hosts, std::vector<int>{0});
  EXPECT_EQ(regions.regions[2].after, std::vector<int>{1});
}

// Returns the region of an op, or of an op's arm or land.
const Region& region_of(const Regions& regions, Item::Kind kind, OpRef op) {
  for (size_t i = 0; i < regions.items.size(); ++i)
    if (regions.items[i].kind == kind && regions.items[i].op == op)
      return regions.regions[static_cast<size_t>(regions.region_of[i])];
  ADD_FAILURE() << "no such item";
  return regions.regions.front();
}

// Whether `later` waits for `earlier`, directly or through other regions.
bool follows(const Regions& regions, const Region& later, const Region& earlier) {
  if (&later == &earlier) return true;
  return std::any_of(later.after.begin(), later.after.end(), [&](int before) {
    return follows(regions, regions.regions[static_cast<size_t>(before)], earlier);
  });
}

// Gradients as backward computes them, with their reductions on a separate stream.
TEST(Regions, AHostOpWaitsForItsInputsAndNotForWhatIsComputedLater) {
  Made made;
  made.stream().op(D).op(D).op(D).op(D, {{1, 2, 0}});
  made.stream().op(H, {{0, 0, 0}}).op(H, {{0, 1, 0}}).op(H, {{0, 2, 0}});
  const Regions regions = made.regions();
  for (int bucket = 0; bucket < 3; ++bucket) {
    const Region& arm = region_of(regions, Item::Kind::arm, {1, bucket});
    const Region& land = region_of(regions, Item::Kind::land, {1, bucket});
    EXPECT_TRUE(follows(regions, arm, region_of(regions, Item::Kind::op, {0, bucket}))) << bucket;
    for (int later = bucket + 2; later < 3; ++later) {
      EXPECT_FALSE(follows(regions, arm, region_of(regions, Item::Kind::op, {0, later}))) << bucket << " " << later;
      EXPECT_FALSE(follows(regions, land, region_of(regions, Item::Kind::op, {0, later}))) << bucket << " " << later;
    }
  }
  EXPECT_TRUE(
      follows(regions, region_of(regions, Item::Kind::op, {0, 3}), region_of(regions, Item::Kind::land, {1, 2})));
}

// A prefetched gather: its result arrives on the device while the previous unit computes.
TEST(Regions, WhatArrivesDoesNotWaitForWhatIsComputedMeanwhile) {
  Made made;
  made.stream().op(D, {{1, 0, 0}}).op(D, {{1, 1, 0}}).op(D, {{1, 2, 0}});
  made.stream().op(H).op(H).op(H, {{0, 0, 0}});  // two slots
  const Regions regions = made.regions();
  const Region& first = region_of(regions, Item::Kind::op, {0, 0});
  EXPECT_FALSE(follows(regions, region_of(regions, Item::Kind::land, {1, 1}), first));
  EXPECT_TRUE(follows(regions, region_of(regions, Item::Kind::arm, {1, 2}), first));
  EXPECT_EQ(first.origin, StreamId(0));
}

TEST(Regions, HostOpsThatDoNotKnowEachOtherHoldUpOnlyTheirOwn) {
  Made made;
  made.stream().op(D).op(D, {{1, 0, 0}}).op(D, {{2, 0, 0}}).stream().op(H).stream().op(H);
  const Regions regions = made.regions();
  ASSERT_EQ(regions.hosts.size(), 2u);
  EXPECT_TRUE(regions.hosts[0].hosts.empty());
  EXPECT_TRUE(regions.hosts[1].hosts.empty());
  // One region has 0.0 and both arms, one depends on each host op, and the last depends on both.
  ASSERT_EQ(regions.regions.size(), 4u);
  const auto of_last = std::find_if(regions.regions.begin(), regions.regions.end(),
                                    [](const Region& region) { return region.hosts.size() == 2; });
  ASSERT_NE(of_last, regions.regions.end());
  EXPECT_EQ(names(regions, static_cast<size_t>(of_last - regions.regions.begin())), (Names{"0.2"}));
}

TEST(Regions, AHostOpThatWritesNothingHasNoLanding) {
  Made made;
  made.stream().op(D).op(H, {}, false).op(D);
  const Regions regions = made.regions();
  ASSERT_EQ(regions.regions.size(), 3u);
  EXPECT_EQ(names(regions, 0), (Names{"0.0"}));
  EXPECT_EQ(names(regions, 1), (Names{"0.1a"}));
  EXPECT_EQ(names(regions, 2), (Names{"0.2"}));
  EXPECT_FALSE(regions.hosts[0].lands);
}

// A region that is not convex cannot be captured in one piece, because ops outside it must run between its ops.
// Stream 0 packs, unpacks and computes; stream 1 gathers counts and exchanges rows.
TEST(Regions, ACountedOpIsEnqueuedAloneOnceItsCountsAreOnTheHost) {
  Made made;
  made.stream().op(D).op(D, {{1, 0, 0}}).op(D, {{1, 1, 0}}).op(D);
  made.stream().op(D, {{0, 0, 0}}).counts(7).op(C, {{0, 1, 0}}).counts(7).op(C, {{0, 3, 0}}).counts(7);
  made.stream().op(D);
  const Regions regions = made.regions();
  ASSERT_EQ(regions.hosts.size(), 1u) << "counts are read once";
  EXPECT_EQ(regions.hosts[0].counts, TensorId(7));
  EXPECT_EQ(regions.hosts[0].op, (OpRef{1, 0}));
  EXPECT_FALSE(regions.hosts[0].lands);
  const Region& arm = region_of(regions, Item::Kind::arm, {1, 0});
  EXPECT_FALSE(arm.counted);
  EXPECT_TRUE(arm.hosts.empty());
  for (const int index : {1, 2}) {
    const Region& exchange = region_of(regions, Item::Kind::op, {1, index});
    EXPECT_TRUE(exchange.counted);
    EXPECT_EQ(exchange.items.size(), 1u);
    EXPECT_EQ(exchange.hosts, std::vector<int>{0});
    EXPECT_TRUE(follows(regions, exchange, arm));
    EXPECT_TRUE(follows(regions, exchange, region_of(regions, Item::Kind::op, {0, 2 * index - 1})));
  }
  EXPECT_TRUE(region_of(regions, Item::Kind::op, {0, 1}).hosts.empty()) << "packing does not wait for the host";
  EXPECT_TRUE(follows(regions, region_of(regions, Item::Kind::op, {0, 2}), region_of(regions, Item::Kind::op, {1, 1})));
  EXPECT_FALSE(region_of(regions, Item::Kind::op, {2, 0}).counted);
}

TEST(Regions, AnOpBesideACountedOneIsInARegionThatIsCaptured) {
  Made made;
  made.stream().op(D).counts(7).op(C).counts(7);
  made.stream().op(D, {{0, 0, 0}});
  const Regions regions = made.regions();
  const Region& beside = region_of(regions, Item::Kind::op, {1, 0});
  EXPECT_FALSE(beside.counted);
  EXPECT_TRUE(beside.hosts.empty());
  EXPECT_TRUE(region_of(regions, Item::Kind::op, {0, 1}).counted);
}

TEST(Regions, AreConvex) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::srand(seed);
    Made made;
    for (int s = 0; s < 3; ++s) {
      made.stream();
      for (int i = 0; i < 8; ++i) {
        std::vector<Edge> waits;  // only earlier streams, so no cycles
        if (s > 0 && std::rand() % 3 == 0) waits.push_back({std::rand() % s, std::rand() % 8, 0});
        const int way = std::rand() % 8;
        if (s == 0 && i == 0) {
          made.op(D).counts(7);
        } else if (way == 7) {
          waits.push_back({0, 0, 0});
          made.op(C, waits).counts(7);
        } else {
          made.op(way < 2 ? H : D, waits, std::rand() % 2 == 0);
        }
      }
    }
    const Regions regions = made.regions();
    const size_t n = regions.regions.size();
    std::vector<std::vector<bool>> reaches(n, std::vector<bool>(n));
    for (size_t r = 0; r < n; ++r)
      for (const int before : regions.regions[r].after) reaches[static_cast<size_t>(before)][r] = true;
    for (size_t k = 0; k < n; ++k)
      for (size_t i = 0; i < n; ++i)
        for (size_t j = 0; j < n; ++j) reaches[i][j] = reaches[i][j] || (reaches[i][k] && reaches[k][j]);
    for (size_t r = 0; r < n; ++r) EXPECT_FALSE(reaches[r][r]) << "seed " << seed << " region " << r;
    for (const HostOp& host : regions.hosts) {  // a host op's own region does not wait for it
      const Region& armed = regions.regions[static_cast<size_t>(regions.region_of[static_cast<size_t>(host.arm)])];
      EXPECT_EQ(armed.hosts, host.hosts);
    }
  }
}

}  // namespace
}  // namespace prun
