// A body divided for a queue device: regions of ops that the device runs alone, and ops that the host runs between
// them.
//
// Two ops share a region if the same host ops come before them in the happens-before order, and the same host ops wait
// for them. So the ops of a region can be enqueued together once their host ops have ended, and captured as one graph;
// and a region ends where the inputs of a host op are ready, so that the host op runs while the next region computes:
//
//     compute  | 0 1 2 | 3 4 5 | 6 7 ...     a graph each
//     reduce           | arm a | land a, arm b | ...
//
// Both sets only change along an edge, so a region is convex: any op between two of its ops is in it. A body without
// host ops is one region.
//
// A host op appears on its stream twice: `arm` copies its inputs to the host, `land` copies its outputs to the device.
// The region of a land does not wait for that of the arm, because the host op has ended in between.
#pragma once
#include <vector>

#include "ir/order.h"
#include "ir/program.h"

namespace prun {

// Where an op runs. `first`: on the host before the step's work is enqueued, since it depends on none of it (the next
// batch). So the host makes a step's batch while the device computes the step before.
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
  StreamId origin;         // the first of its streams: its graph is launched there
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
  Regions(const Body& body, const Table<StreamId, std::vector<How>>& how);

  std::vector<Item> items;
  std::vector<Region> regions;
  std::vector<int> region_of;  // item
  std::vector<HostOp> hosts;
  std::vector<OpRef> first;  // ops that are How::first
};

// Whether the op can be How::first: it reads nothing and waits for nothing of its step.
bool can_come_first(const Op& op);

}  // namespace prun
