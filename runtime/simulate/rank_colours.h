// Ranks that the clock cannot tell apart: the same program, device and links, and partners of whom the same holds. One
// of them stands for all. A slow device or link makes colours of its own for what it reaches, and no others.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "ir/program.h"
#include "simulate/collective_cost.h"

namespace prun::simulate {

struct RankColours {
  std::vector<int> of_rank;
  std::vector<int> first;  // by colour: its first rank
  std::vector<int> ranks;  // by colour: how many
};

// `every_rank`: each rank has a colour of its own, which is what tests compare with.
RankColours colour_ranks(const Job& job, const Cluster& cluster, const std::vector<RankPlace>& places,
                         bool every_rank = false);

// The group of `rank` along `axis` on the cluster.
GroupShape group_shape(const Mesh& mesh, const Cluster& cluster, const std::vector<RankPlace>& places,
                       const std::string& axis, int rank);

// Bytes/s that one rank on that node has into the network, where all ranks there send.
double network_share(const Cluster& cluster, const std::vector<RankPlace>& places, int rank, int level);

}  // namespace prun::simulate
