// Seconds of a collective and of a message, from the shape of its group on the cluster: ring and tree formulas.
#pragma once
#include "ir/coll_kind.h"
#include "simulate/cluster.h"

namespace prun::simulate {

// The ranks, nodes and bandwidths of a group.
struct GroupShape {
  int ranks = 1, nodes = 1;
  int per_node = 1;    // ranks on the node with the fewest
  int level = 0;       // level of the slowest link between them
  double bus = 0;      // bytes/s inside a node
  double network = 0;  // bytes/s into the network, of all its ranks on a node
  bool operator==(const GroupShape&) const = default;
  auto operator<=>(const GroupShape&) const = default;
};

// Returns the multiprocessors that the collective's kernel occupies on each rank: one per channel, because NCCL's
// blocks share none with compute (github.com/NVIDIA/nccl/issues/689), and two channels per NIC (issues/438).
int occupied_multiprocessors(const Cluster& cluster, const GroupShape& group);

// `bytes`: size of the full buffer S: the result of one rank (all_gather) or its operand (all others).
double collective_seconds(const Cluster& cluster, CollKind kind, const GroupShape& group, double bytes);
double ring_seconds(const Cluster& cluster, CollKind kind, const GroupShape& group, double bytes);
double tree_seconds(const Cluster& cluster, const GroupShape& group, double bytes);  // of an all-reduce by trees

// Returns the seconds of a message between two ranks over the link of that level.
double message_seconds(const Cluster& cluster, int level, double bandwidth, double bytes);

}  // namespace prun::simulate
