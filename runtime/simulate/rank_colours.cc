// Colour by program, device and the shapes of groups; then refine by the colours of groups and peers until no colour
// splits any more.
#include "simulate/rank_colours.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "ir/walk.h"

namespace prun::simulate {
namespace {

// What the ops of a class of ranks talk to.
struct Partners {
  std::set<std::string> groups;
  std::set<std::pair<std::string, int>> peers;  // axis, how many ranks further; both ways
};

Partners partners_of(const Program& program) {
  Partners partners;
  for (const Stream& stream : program.step().streams)
    for (const Op& op : stream.ops) {
      if (!op.communicates()) continue;
      if (!op.point_to_point() && !op.offers()) {
        partners.groups.insert(op.axis);
        continue;
      }
      const int size = program.mesh.size(op.axis), offset = peer_offset(program.mesh, op);
      partners.peers.insert({op.axis, op.sends() ? offset : (size - offset) % size});
    }
  return partners;
}

class Refinement {
 public:
  Refinement(const Job& job, const Cluster& cluster, const std::vector<RankPlace>& places)
      : job_(job), mesh_(job.classes.front().mesh), cluster_(cluster), places_(places) {
    for (const Program& program : job.classes) partners_.push_back(partners_of(program));
  }

  std::vector<int> run() {
    begin();
    for (size_t colours = 0; colours != count_;) {
      colours = count_;
      refine();
    }
    return colours_;
  }

 private:
  const Partners& partners(int rank) const { return partners_[job_.class_of_rank[rank]]; }
  // Without the whole group, of which there may be thousands of ranks.
  int leader(const std::string& axis, int rank) const { return further(axis, -mesh_.index(axis, rank), rank); }
  int further(const std::string& axis, int offset, int rank) const {
    const int size = mesh_.size(axis), index = mesh_.index(axis, rank);
    return rank + ((index + offset) % size - index) * stride(axis);
  }
  int stride(const std::string& axis) const {
    int ranks = 1;
    if (axis == kWorld) return ranks;
    for (auto at = mesh_.axes().rbegin(); at->name != axis; ++at) ranks *= at->size;
    return ranks;
  }

  void begin() {
    std::map<std::tuple<int, double, int>, int> kinds;
    std::vector<const DeviceModel*> devices;  // that differ
    std::map<std::pair<std::string, int>, GroupShape> shapes;
    std::map<std::pair<int, std::vector<std::tuple<std::string, int, GroupShape>>>, int> known;
    for (int rank = 0; rank < std::ssize(places_); ++rank) {
      const DeviceModel& device = cluster_.node_at(places_[rank].node).device;
      const auto alike =
          std::find_if(devices.begin(), devices.end(), [&](const DeviceModel* each) { return *each == device; });
      const int which = alike - devices.begin();
      if (alike == devices.end()) devices.push_back(&device);
      const std::tuple kind(job_.class_of_rank[rank], speed_of(cluster_, places_[rank]), which);
      const int kind_id = kinds.try_emplace(kind, kinds.size()).first->second;
      std::vector<std::tuple<std::string, int, GroupShape>> links;
      for (const std::string& axis : partners(rank).groups) {
        const auto [shape, fresh] = shapes.try_emplace({axis, leader(axis, rank)});
        if (fresh) shape->second = group_shape(mesh_, cluster_, places_, axis, rank);
        links.emplace_back(axis, 0, shape->second);
      }
      for (const auto& [axis, offset] : partners(rank).peers) {
        const int peer = further(axis, offset, rank);
        const int level = level_between(cluster_, places_[rank].node, places_[peer].node);
        GroupShape pair;
        pair.level = level;
        pair.bus =
            std::min(network_share(cluster_, places_, rank, level), network_share(cluster_, places_, peer, level));
        links.emplace_back(axis, offset, pair);
      }
      colours_.push_back(known.try_emplace({kind_id, links}, known.size()).first->second);
    }
    count_ = known.size();
  }

  void refine() {
    std::map<std::pair<std::string, int>, int> group_ids;
    std::map<std::vector<int>, int> sets;
    std::map<std::vector<int>, int> known;
    std::vector<int> refined;
    std::vector<int> words;
    for (int rank = 0; rank < std::ssize(places_); ++rank) {
      words = {colours_[rank]};
      for (const std::string& axis : partners(rank).groups) {
        const auto [id, fresh] = group_ids.try_emplace({axis, leader(axis, rank)});
        if (fresh) {
          std::set<int> colours;
          for (const int each : mesh_.group(axis, rank)) colours.insert(colours_[each]);
          id->second = sets.try_emplace({colours.begin(), colours.end()}, sets.size()).first->second;
        }
        words.push_back(id->second);
      }
      for (const auto& [axis, offset] : partners(rank).peers) words.push_back(colours_[further(axis, offset, rank)]);
      refined.push_back(known.try_emplace(words, known.size()).first->second);
    }
    count_ = known.size();
    colours_ = std::move(refined);
  }

  const Job& job_;
  const Mesh& mesh_;
  const Cluster& cluster_;
  const std::vector<RankPlace>& places_;
  std::vector<Partners> partners_;  // by class
  std::vector<int> colours_;
  size_t count_ = 0;
};

}  // namespace

double network_share(const Cluster& cluster, const std::vector<RankPlace>& places, int rank, int level) {
  const NodeModel& node = cluster.node_at(places[rank].node);
  if (level == 0) return cluster.bus.bandwidth * node.bus_speed;
  // Ranks fill nodes in order: how many are on this one follows from its neighbours.
  const int last = std::min<int>(static_cast<int>(places.size()), rank - places[rank].device + node.devices);
  const double here = last - (rank - places[rank].device);
  return link_at(cluster, level).bandwidth * node.network_speed * std::min(1.0, node.nics / here);
}

GroupShape group_shape(const Mesh& mesh, const Cluster& cluster, const std::vector<RankPlace>& places,
                       const std::string& axis, int rank) {
  const std::vector<int> members = mesh.group(axis, rank);
  std::map<int, int> on_node;
  for (const int each : members) on_node[places[each].node]++;
  GroupShape shape;
  shape.ranks = members.size();
  shape.nodes = on_node.size();
  shape.level = level_between(cluster, on_node.begin()->first, on_node.rbegin()->first);
  shape.bus = shape.network = std::numeric_limits<double>::infinity();
  shape.per_node = shape.ranks;
  for (const auto& [node, ranks] : on_node) shape.per_node = std::min(shape.per_node, ranks);
  for (const int each : members) {
    shape.bus = std::min(shape.bus, network_share(cluster, places, each, 0));
    if (shape.nodes > 1)
      shape.network =
          std::min(shape.network, on_node[places[each].node] * network_share(cluster, places, each, shape.level));
  }
  return shape;
}

RankColours colour_ranks(const Job& job, const Cluster& cluster, const std::vector<RankPlace>& places,
                         bool every_rank) {
  RankColours colours;
  if (every_rank) {
    for (int rank = 0; rank < std::ssize(places); ++rank) colours.of_rank.push_back(rank);
  } else {
    colours.of_rank = Refinement(job, cluster, places).run();
  }
  for (int rank = 0; rank < std::ssize(colours.of_rank); ++rank) {
    const int colour = colours.of_rank[rank];
    if (colour == std::ssize(colours.first)) colours.first.push_back(rank), colours.ranks.push_back(0);
    colours.ranks[colour]++;
  }
  return colours;
}

}  // namespace prun::simulate
