// A ring over n ranks on N nodes takes c(n-1) steps, c(N-1) of them over the network, with c = 2 for all-reduce and 1
// for all-gather and reduce-scatter. Each rank sends c(n-1)/n of the buffer; in a rooted collective, all of it.
#include "simulate/collective_cost.h"

#include <algorithm>
#include <cmath>

namespace prun::simulate {
namespace {

double bandwidth_of(const GroupShape& group) {
  return group.nodes == 1 ? group.bus : std::min(group.bus, group.network);
}

// Returns the kind with blocks of equal sizes, which calibrations measure.
CollKind of_equal_blocks(CollKind kind) {
  if (kind == CollKind::all_gather_v) return CollKind::all_gather;
  return kind == CollKind::all_to_all_v ? CollKind::all_to_all : kind;
}

// Returns measured rates if all steps use one link: the ranks share a node, or each has a node of its own. Otherwise
// null.
const CollectiveRates* measured(const Cluster& cluster, CollKind kind, const GroupShape& group) {
  if (group.nodes > 1 && group.ranks > group.nodes) return nullptr;
  const auto& known = link_at(cluster, group.level).collectives;
  const auto found = known.find(of_equal_blocks(kind));
  return found == known.end() ? nullptr : &found->second;
}

}  // namespace

double ring_seconds(const Cluster& cluster, CollKind kind, const GroupShape& group, double bytes) {
  const double c = kind == CollKind::all_reduce ? 2 : 1;
  const double n = group.ranks, steps = c * (n - 1), inter = c * (group.nodes - 1);
  const double part = traits(kind).rooted ? 1 : c * (n - 1) / n;
  const LinkModel& link = link_at(cluster, group.level);
  if (const CollectiveRates* rates = measured(cluster, kind, group)) {
    const double degraded = bandwidth_of(group) / link.bandwidth;
    return cluster.collective_s + steps * rates->step_s + part * bytes / (rates->bandwidth.of(part * bytes) * degraded);
  }
  return cluster.collective_s + (steps - inter) * cluster.bus.step_s + inter * link.step_s +
         part * bytes / bandwidth_of(group);
}

double tree_seconds(const Cluster& cluster, const GroupShape& group, double bytes) {
  const double n = group.ranks;
  return cluster.collective_s +
         2 * ((group.per_node - 1) * cluster.bus.tree_step_s +
              std::log2(group.nodes) * link_at(cluster, group.level).tree_step_s) +
         2 * (n - 1) / n * bytes / (cluster.tree_bandwidth * bandwidth_of(group));
}

double collective_seconds(const Cluster& cluster, CollKind kind, const GroupShape& group, double bytes) {
  if (group.ranks < 2) return 0;
  const double ring = ring_seconds(cluster, kind, group, bytes);
  return kind == CollKind::all_reduce && group.nodes > 1 ? std::min(ring, tree_seconds(cluster, group, bytes)) : ring;
}

int occupied_multiprocessors(const Cluster& cluster, const GroupShape& group) {
  const LinkModel& link = link_at(cluster, group.level);
  if (group.ranks < 2 || group.nodes == 1 || link.channels == 0) return group.ranks < 2 ? 0 : link.channels;
  const int all = link.channels * std::max(1, static_cast<int>(std::lround(group.network / link.bandwidth)));
  return cluster.bus.channels > 0 ? std::min(all, cluster.bus.channels) : all;
}

double message_seconds(const Cluster& cluster, int level, double bandwidth, double bytes) {
  const LinkModel& link = link_at(cluster, level);
  return link.message_s + bytes / (link.message_efficiency * bandwidth);
}

}  // namespace prun::simulate
