// A body divided for a queue device: regions of ops that the device runs alone, and ops that the host runs between
// them.
//
// An op's region is the set of host ops that come before it in the happens-before order: ops with the same set can be
// enqueued together once these have ended, and captured as one graph. A region is convex: what lies between two of its
// ops is in it. A body without host ops is one region.
//
// A host op has a place on its stream twice: `arm`, where what it reads is copied to the host, in the region before it,
// and `land`, where what it writes is copied to the device, in the region behind it.
#pragma once
#include <vector>

#include "ir/order.h"
#include "ir/program.h"

namespace prun {

// How an op is carried out. `first`: on the host before the step's work is enqueued, for it depends on none of it
// (the next batch): so the host makes the next one while the device computes.
enum class How : uint8_t { device, host, first };

struct Item {
  enum class Kind : uint8_t { op, arm, land } kind;
  OpRef op;
  int host = -1;           // arm and land: index in Regions::hosts
  std::vector<int> waits;  // items on other streams that come before
  bool awaited = false;    // an item of another stream waits for it
};

struct Region {
  std::vector<int> items;  // in an order that all edges agree with
  std::vector<int> after;  // regions that hold what it waits for
  std::vector<int> hosts;  // host ops that must have ended
};

struct HostOp {
  OpRef op;
  std::vector<int> hosts;  // that must have ended before it begins
  int arm = -1;            // item
  bool lands = false;      // it has a land item
};

struct Regions {
  // `how`: for every stream and op. Edges to the step before are left out: a step begins when the one before has ended.
  Regions(const Body& body, const std::vector<std::vector<How>>& how);

  std::vector<Item> items;
  std::vector<Region> regions;
  std::vector<int> region_of;  // item
  std::vector<HostOp> hosts;
  std::vector<OpRef> first;  // ops that are How::first
};

// Whether the op can be How::first: it reads nothing and waits for nothing of its step.
bool can_come_first(const Op& op);

}  // namespace prun
