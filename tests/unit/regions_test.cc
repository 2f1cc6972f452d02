// Regions of a body: what is enqueued together, and what has to wait for the host.
#include "exec/regions.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace prun {
namespace {

constexpr How D = How::device, H = How::host, F = How::first;

// A body by its ops: a letter for how, then the ops of other streams that it waits for.
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
  Regions regions() const { return Regions(body, how); }
};

// "0.1" for each op of a region, in order; arms with a, lands with l.
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

TEST(Regions, OnlyWhatNeedsAHostOpComesBehindIt) {
  // Stream 1 sends what 0.0 made; 0.1 does not need the answer, 0.2 does.
  Made made;
  made.stream().op(D).op(D).op(D, {{1, 0, 0}}).stream().op(H, {{0, 0, 0}}).op(D);
  const Regions regions = made.regions();
  ASSERT_EQ(regions.regions.size(), 2u);
  EXPECT_EQ(names(regions, 0), (Names{"0.0", "0.1", "1.0a"}));
  EXPECT_EQ(names(regions, 1), (Names{"1.0l", "1.1", "0.2"}));
  EXPECT_EQ(regions.regions[1].hosts, std::vector<int>{0});
  EXPECT_EQ(regions.regions[1].after, std::vector<int>{0});
}

TEST(Regions, HostOpsThatDoNotKnowEachOtherHoldUpOnlyTheirOwn) {
  Made made;
  made.stream().op(D).op(D, {{1, 0, 0}}).op(D, {{2, 0, 0}}).stream().op(H).stream().op(H);
  const Regions regions = made.regions();
  ASSERT_EQ(regions.hosts.size(), 2u);
  EXPECT_TRUE(regions.hosts[0].hosts.empty());
  EXPECT_TRUE(regions.hosts[1].hosts.empty());
  // {}: 0.0 and both arms; {1.0}; {2.0}; {1.0, 2.0}.
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
  ASSERT_EQ(regions.regions.size(), 2u);
  EXPECT_EQ(names(regions, 0), (Names{"0.0", "0.1a"}));
  EXPECT_EQ(names(regions, 1), (Names{"0.2"}));
  EXPECT_FALSE(regions.hosts[0].lands);
}

// Else a region could not be captured in one piece: what lies between two of its ops would have to run in the middle.
TEST(Regions, AreConvex) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::srand(seed);
    Made made;
    for (int s = 0; s < 3; ++s) {
      made.stream();
      for (int i = 0; i < 8; ++i) {
        std::vector<Edge> waits;  // of streams before this one: no cycles
        if (s > 0 && std::rand() % 3 == 0) waits.push_back({std::rand() % s, std::rand() % 8, 0});
        made.op(std::rand() % 5 == 0 ? H : D, waits, std::rand() % 2 == 0);
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
    for (const HostOp& host : regions.hosts) {  // its own region does not wait for it
      const Region& armed = regions.regions[static_cast<size_t>(regions.region_of[static_cast<size_t>(host.arm)])];
      EXPECT_EQ(armed.hosts, host.hosts);
    }
  }
}

}  // namespace
}  // namespace prun
