// Colours: ranks that the clock cannot distinguish, with the same program, device and links, and partners of the same
// colours. One rank represents its colour. A slow device or link creates additional colours only for the ranks that it
// affects.
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
  std::vector<int> ranks;  // by colour: number of ranks
};

// `every_rank`: each rank has a colour of its own; tests compare with this.
RankColours colour_ranks(const Job& job, const Cluster& cluster, const std::vector<RankPlace>& places,
                         bool every_rank = false);

// Returns the shape of the group of `rank` along `axis` on the cluster.
GroupShape group_shape(const Mesh& mesh, const Cluster& cluster, const std::vector<RankPlace>& places,
                       const std::string& axis, int rank);

// Returns the bytes/s that one rank on its node has into the network while all ranks there send.
double network_share(const Cluster& cluster, const std::vector<RankPlace>& places, int rank, int level);

}  // namespace prun::simulate
