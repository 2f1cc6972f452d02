// Seconds of a collective and of a message, from the shape of its group on the cluster: ring and tree formulas.
#pragma once
#include "ir/coll_kind.h"
#include "simulate/cluster.h"

namespace prun::simulate {

// Of a group: how many ranks, on how many nodes, and the bandwidth that it has.
struct GroupShape {
  int ranks = 1, nodes = 1;
  int per_node = 1;    // of its ranks on the node that has the fewest
  int level = 0;       // of the slowest link between them
  double bus = 0;      // bytes/s inside a node
  double network = 0;  // bytes/s of all its ranks on a node into the network
  bool operator==(const GroupShape&) const = default;
  auto operator<=>(const GroupShape&) const = default;
};

// `bytes`: of the full buffer S, which is what one rank has in the end (all_gather) or brings (the others).
double collective_seconds(const Cluster& cluster, CollKind kind, const GroupShape& group, double bytes);
double ring_seconds(const Cluster& cluster, CollKind kind, const GroupShape& group, double bytes);
double tree_seconds(const Cluster& cluster, const GroupShape& group, double bytes);  // of an all-reduce

// From one rank to another over the link of that level.
double message_seconds(const Cluster& cluster, int level, double bandwidth, double bytes);

}  // namespace prun::simulate
