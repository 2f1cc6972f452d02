// Placement of ranks on nodes: global ranks are numbered in node order.
#pragma once
#include <string>
#include <vector>

namespace prun {

struct NodePlace {
  std::string host;
  int first_rank = 0, ranks = 0;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(host, first_rank, ranks);
  }
};

struct Topology {
  int node = 0;  // this one
  std::vector<NodePlace> nodes;

  const NodePlace& here() const { return nodes[node]; }
  int ranks() const { return nodes.back().first_rank + nodes.back().ranks; }
  int node_count() const { return nodes.size(); }
  int node_of(int rank) const {
    int n = 0;
    while (rank >= nodes[n].first_rank + nodes[n].ranks) ++n;
    return n;
  }
};

}  // namespace prun
