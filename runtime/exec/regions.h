// Divides a body for a queue device: regions of ops that the device runs alone, and ops that the host runs between
// them.
//
// Two ops share a region if the same host ops precede them in the happens-before order, and the same host ops wait for
// them. The ops of a region can therefore be enqueued together once their host ops have ended, and captured as one
// graph; and a region ends where the inputs of a host op are ready, so that the host op runs while the next region
// computes:
//
//     compute  | 0 1 2 | 3 4 5 | 6 7 ...     one graph each
//     reduce           | arm a | land a, arm b | ...
//
// Both sets change only along an edge, so a region is convex: every op between two of its ops is in it. A body without
// host ops is one region.
//
// A host op has two items on its stream: `arm` copies its inputs to the host, `land` copies its outputs to the device.
// The land's region does not wait for the arm's, because the host op has ended in between.
//
// A counted op runs on the device, but its call names counts that an earlier op computes there. A count read copies
// them to the host, right after that op and once for all counted ops that name them. The counted op is a region of its
// own, which is enqueued anew in each step:
//
//     compute  | gather of counts, arm | packing of rows | exchange | experts ...
//     host                          the counts arrive ---^
#pragma once
#include <vector>

#include "ir/order.h"
#include "ir/program.h"

namespace prun {

// Where an op runs. `first`: on the host before the step's work is enqueued, because it depends on none of it (the next
// batch), so that the host makes a step's batch while the device computes the previous step. `counted`: on the device,
// once the host has the counts that its call names.
enum class How : uint8_t { device, host, first, counted };
// Returns the tensor of a counted op's counts.
TensorId counts_of(const Op& op);

struct Item {
  enum class Kind : uint8_t { op, arm, land } kind;
  OpRef op;
  int host = -1;           // arm and land: index in Regions::hosts
  std::vector<int> waits;  // earlier items on other streams
  bool awaited = false;    // an item of another stream waits for it
};

struct Region {
  std::vector<int> items;  // in an order that respects all edges
  StreamId origin;         // the first of its streams, on which its graph is launched
  std::vector<int> after;  // regions that it waits for
  std::vector<int> hosts;  // host ops that must have ended
  bool counted = false;    // its only item is a counted op, which is never captured
};

// A host op, or a count read after the op that computes the counts.
struct HostOp {
  OpRef op;
  std::vector<int> hosts;  // host ops that must have ended before it begins
  int arm = -1;            // item
  bool lands = false;      // whether it has a land item
  TensorId counts = -1;    // of a count read
};

struct Regions {
  // `how`: by stream and op. Omits edges to the previous step, because a step begins after it has ended.
  Regions(const Body& body, const Table<StreamId, std::vector<How>>& how);

  std::vector<Item> items;
  std::vector<Region> regions;
  std::vector<int> region_of;  // by item
  std::vector<HostOp> hosts;
  std::vector<OpRef> first;  // ops that are How::first
};

// Returns whether the op can be How::first: it reads nothing and waits for nothing of its step.
bool can_come_first(const Op& op);

}  // namespace prun
