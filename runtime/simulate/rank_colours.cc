// Colour refinement: ranks start with a colour by program, device and shapes of groups. Colours are split by the
// colours of groups and peers until none changes.
#include "simulate/rank_colours.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "ir/walk.h"

namespace prun::simulate {
namespace {

// The communication partners of a class of ranks.
struct Partners {
  std::set<std::string> groups;
  std::set<std::pair<std::string, int>> peers;  // axis, offset along it; in both directions
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

// The ranks along an axis are `stride` apart.
struct Line {
  std::string axis;
  int size = 1, stride = 1;

  int index(int rank) const { return rank / stride % size; }
  int leader(int rank) const { return rank - index(rank) * stride; }
  int further(int offset, int rank) const {
    const int at = index(rank);
    return rank + ((at + offset) % size - at) * stride;
  }
};

// Numbers objects in the order of their first occurrence.
template <class Thing>
class Numbering {
 public:
  int of(const Thing& thing) { return known_.try_emplace(thing, static_cast<int>(known_.size())).first->second; }
  size_t count() const { return known_.size(); }

 private:
  std::map<Thing, int> known_;
};

class Refinement {
 public:
  Refinement(const Job& job, const Cluster& cluster, const std::vector<RankPlace>& places)
      : job_(job), mesh_(job.classes.front().mesh), cluster_(cluster), places_(places) {
    for (const Axis& axis : mesh_.axes()) lines_.push_back({axis.name, axis.size, 1});
    for (size_t i = lines_.size(); i-- > 1;) lines_[i - 1].stride = lines_[i].stride * lines_[i].size;
    lines_.push_back({kWorld, mesh_.ranks(), 1});
    for (const Program& program : job.classes) {
      const Partners of = partners_of(program);
      Links& links = links_.emplace_back();
      for (const std::string& axis : of.groups) links.groups.push_back(line(axis));
      for (const auto& [axis, offset] : of.peers) links.peers.emplace_back(line(axis), offset);
    }
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
  struct Links {
    std::vector<size_t> groups;                 // indices of lines_
    std::vector<std::pair<size_t, int>> peers;  // index of lines_, offset
  };

  const Links& links(int rank) const { return links_[static_cast<size_t>(job_.class_of_rank[rank])]; }
  size_t line(const std::string& axis) const {
    size_t at = 0;
    while (lines_[at].axis != axis) ++at;
    return at;
  }
  int ranks() const { return static_cast<int>(places_.size()); }

  GroupShape pair_shape(int rank, int peer) const {
    GroupShape pair;
    pair.level = level_between(cluster_, places_[rank].node, places_[peer].node);
    pair.bus = std::min(network_share(cluster_, places_, rank, pair.level),
                        network_share(cluster_, places_, peer, pair.level));
    return pair;
  }

  void begin() {
    Numbering<std::tuple<int, double, int>> kinds;
    Numbering<GroupShape> shapes;
    Numbering<std::vector<int>> known;
    std::vector<const DeviceModel*> devices;                // distinct devices
    std::vector<std::vector<int>> shape_at(lines_.size());  // by line and leader: shape of the group
    std::vector<int> words;
    for (int rank = 0; rank < ranks(); ++rank) {
      const Links& of = links(rank);
      const DeviceModel& device = cluster_.node_at(places_[rank].node).device;
      words = {kinds.of({job_.class_of_rank[rank], speed_of(cluster_, places_[rank]), number_of(device, devices)})};
      for (const size_t at : of.groups) {
        shape_at[at].resize(places_.size(), -1);
        int& shape = shape_at[at][lines_[at].leader(rank)];
        if (shape < 0) shape = shapes.of(group_shape(mesh_, cluster_, places_, lines_[at].axis, rank));
        words.push_back(shape);
      }
      for (const auto& [at, offset] : of.peers)
        words.push_back(shapes.of(pair_shape(rank, lines_[at].further(offset, rank))));
      colours_.push_back(known.of(words));
    }
    count_ = known.count();
  }

  static int number_of(const DeviceModel& device, std::vector<const DeviceModel*>& known) {
    const auto alike = std::find_if(known.begin(), known.end(),
                                    [&](const DeviceModel* each) { return each == &device || *each == device; });
    const int number = static_cast<int>(alike - known.begin());
    if (alike == known.end()) known.push_back(&device);
    return number;
  }

  // Returns the distinct colours of a group.
  void colours_of(const Line& line, int leader, std::vector<int>& colours) {
    colours.clear();
    seen_.resize(std::max(seen_.size(), count_), 0);
    ++stamp_;
    for (int i = 0, rank = leader; i < line.size; ++i, rank += line.stride)
      if (std::exchange(seen_[static_cast<size_t>(colours_[rank])], stamp_) != stamp_)
        colours.push_back(colours_[rank]);
    std::sort(colours.begin(), colours.end());
  }

  void refine() {
    Numbering<std::vector<int>> sets, known;
    std::vector<std::vector<int>> set_at(lines_.size());  // by line and leader: set of the group's colours
    std::vector<int> refined, words, colours;
    for (int rank = 0; rank < ranks(); ++rank) {
      const Links& of = links(rank);
      words = {colours_[rank]};
      for (const size_t at : of.groups) {
        set_at[at].resize(places_.size(), -1);
        const int leader = lines_[at].leader(rank);
        int& set = set_at[at][leader];
        if (set < 0) {
          colours_of(lines_[at], leader, colours);
          set = sets.of(colours);
        }
        words.push_back(set);
      }
      for (const auto& [at, offset] : of.peers) words.push_back(colours_[lines_[at].further(offset, rank)]);
      refined.push_back(known.of(words));
    }
    count_ = known.count();
    colours_ = std::move(refined);
  }

  const Job& job_;
  const Mesh& mesh_;
  const Cluster& cluster_;
  const std::vector<RankPlace>& places_;
  std::vector<Line> lines_;   // the mesh's axes, then the world
  std::vector<Links> links_;  // by class
  std::vector<int> colours_;
  size_t count_ = 0;
  std::vector<int> seen_;  // by colour: stamp of the last group that had it
  int stamp_ = 0;
};

}  // namespace

double network_share(const Cluster& cluster, const std::vector<RankPlace>& places, int rank, int level) {
  const NodeModel& node = cluster.node_at(places[rank].node);
  if (level == 0) return cluster.bus.bandwidth * node.bus_speed;
  // Ranks fill nodes in order, so the number on this node follows from rank and device.
  const int last = std::min<int>(static_cast<int>(places.size()), rank - places[rank].device + node.devices);
  const double here = last - (rank - places[rank].device);
  return link_at(cluster, level).bandwidth * node.network_speed * std::min(1.0, node.nics / here);
}

GroupShape group_shape(const Mesh& mesh, const Cluster& cluster, const std::vector<RankPlace>& places,
                       const std::string& axis, int rank) {
  const std::vector<int> members = mesh.group(axis, rank);
  std::vector<std::pair<int, int>> on_node;  // node and number of its members
  for (const int each : members) {
    if (on_node.empty() || on_node.back().first != places[each].node) on_node.emplace_back(places[each].node, 0);
    on_node.back().second++;
  }
  GroupShape shape;
  shape.ranks = static_cast<int>(members.size());
  shape.nodes = static_cast<int>(on_node.size());
  shape.level = level_between(cluster, on_node.front().first, on_node.back().first);
  shape.bus = shape.network = std::numeric_limits<double>::infinity();
  shape.per_node = shape.ranks;
  auto next = members.begin();
  for (const auto& [node, ranks] : on_node) {
    shape.per_node = std::min(shape.per_node, ranks);
    // The ranks of a node have equal shares of its links.
    shape.bus = std::min(shape.bus, network_share(cluster, places, *next, 0));
    if (shape.nodes > 1)
      shape.network = std::min(shape.network, ranks * network_share(cluster, places, *next, shape.level));
    next += ranks;
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
