#include "simulate/cluster.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace prun::simulate {

bool joins_steps(const Cluster& cluster) {
  const auto is_gpu = [](const DeviceModel& device) { return device.multiprocessors > 1; };
  return is_gpu(cluster.device) || std::ranges::any_of(cluster.nodes, is_gpu, &NodeModel::device);
}

double peak_of(const DeviceModel& device, Dtype dtype) {
  const auto at = [&](Dtype each) { return device.peak[static_cast<size_t>(each)]; };
  if (at(dtype) > 0) return at(dtype);
  for (const Dtype wider : {Dtype::f16, Dtype::bf16, Dtype::f32, Dtype::f64})
    if (at(wider) > 0 && dtype_bytes(wider) >= dtype_bytes(dtype)) return at(wider);
  return *std::max_element(device.peak.begin(), device.peak.end());
}

std::vector<RankPlace> place_ranks(const Cluster& cluster, int ranks) {
  std::vector<RankPlace> places;
  places.reserve(ranks);
  const int most_nodes = cluster.nodes.empty() ? ranks : static_cast<int>(cluster.nodes.size());
  for (int node = 0; node < most_nodes && std::ssize(places) < ranks; ++node)
    for (int device = 0; device < cluster.node_at(node).devices && std::ssize(places) < ranks; ++device)
      places.push_back({node, device});
  if (std::ssize(places) < ranks)
    throw usage_error(fmt::format("{} has {} on {}: too small for {}; --nproc {} fits, or more `nodes:`", cluster.path,
                                  counted(std::ssize(places), "device"), counted(most_nodes, "node"),
                                  counted(ranks, "rank"), places.size()));
  return places;
}

double speed_of(const Cluster& cluster, RankPlace place) {
  const NodeModel& node = cluster.node_at(place.node);
  for (const auto& [device, speed] : node.slow)
    if (device == place.device) return node.device.speed * speed;
  return node.device.speed;
}

int level_between(const Cluster& cluster, int first_node, int last_node) {
  if (first_node == last_node) return 0;
  for (int level = 0; level < std::ssize(cluster.network); ++level) {
    const int inside = cluster.network[level].nodes;
    if (inside == 0 || first_node / inside == last_node / inside) return level + 1;
  }
  return cluster.network.size();
}

const LinkModel& link_at(const Cluster& cluster, int level) {
  return level == 0 || cluster.network.empty() ? cluster.bus : cluster.network[level - 1];
}

}  // namespace prun::simulate
