// Chooses the steps of a call; makes the communicators and wires of a group over hosts.
#include "comm/hierarchical/hierarchical_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace prun {
namespace {

// Returns null for kinds that run the core's algorithms, member to member.
HierarchicalSteps steps_of(CollKind kind) {
  switch (kind) {
    case CollKind::all_reduce:
      return hierarchical_all_reduce;
    case CollKind::reduce_scatter:
      return hierarchical_reduce_scatter;
    case CollKind::reduce:
      return hierarchical_reduce;
    case CollKind::all_gather:
    case CollKind::all_gather_v:
      return hierarchical_all_gather;
    case CollKind::broadcast:
      return hierarchical_broadcast;
    case CollKind::barrier:
      return hierarchical_barrier;
    default:
      return nullptr;
  }
}

class HierarchicalCommunicator : public MessageCommunicator {
 public:
  HierarchicalCommunicator(Wire wire, std::unique_ptr<Communicator> inside, std::optional<Wire> across, MemberMap map,
                           const std::string& algorithm)
      : MessageCommunicator(std::move(wire), algorithm),
        map_(std::move(map)),
        inside_(std::move(inside)),
        across_(std::move(across)) {}

  int64_t bytes_sent() const override {
    return wire_.bytes_sent() + inside_->bytes_sent() + (across_ ? across_->bytes_sent() : 0);
  }

  // Returns false, because the order of sums inside and between hosts depends on an element's slice.
  bool divides(const CollCall& whole, const CollCall&) const override {
    return !traits(whole.kind).reduces || whole.rank_order;
  }

  CollPath path_of(const CollCall& call) const override {
    if (ran_in_steps_) return {"by host", fmt::format("in steps, inside {} hosts and between them", map_.hosts.size())};
    return core_path(call, "member to member, over several hosts");
  }

  PreparedCall prepare(const CollCall& call) const override { return prepare_call(call, size()); }

  void run(const PreparedCall& call) override {
    guarded([&] {
      wire_.begin(call, sequence_, Wire::Ring::apart);
      const HierarchicalSteps steps = algorithm_.empty() ? steps_of(call.kind) : nullptr;
      HierarchicalGroup hosts{
          wire_, across_ ? &*across_ : nullptr, *inside_, scratch_, sums_, map_, algorithm_, call, sequence_};
      ran_in_steps_ = steps != nullptr && steps(hosts, call);
      if (!ran_in_steps_) {
        Group group{wire_, scratch_, index(), size()};
        algorithm_of(call).run(group, call);
      }
      wire_.finish();
      ++sequence_;
    });
  }

 private:
  void give_up() override {
    wire_.give_up();
    if (across_) across_->give_up();
  }

  MemberMap map_;
  std::unique_ptr<Communicator> inside_;
  std::optional<Wire> across_;
  Scratch sums_;
  bool ran_in_steps_ = false;  // whether the last run had steps
};

std::vector<int> ranks_at(const std::vector<int>& ranks, const std::vector<int>& indices) {
  std::vector<int> out;
  for (int i : indices) out.push_back(ranks[i]);
  return out;
}

}  // namespace

MemberMap::MemberMap(const HostMap& map, const std::vector<int>& ranks, int index) {
  std::vector<std::string> names;
  for (int rank : ranks) names.push_back(std::to_string(map.host_of[rank]));
  hosts = group_by_host(names).ranks_of;
  std::tie(host, place) = find(index);
  int next = 0;
  for (const std::vector<int>& members : hosts) {
    even = even && members.size() == hosts[0].size();
    for (int member : members) in_order = in_order && member == next++;
  }
}

std::pair<int, int> MemberMap::find(int member) const {
  for (int h = 0; h < host_count(); ++h)
    for (int p = 0; p < std::ssize(hosts[h]); ++p)
      if (hosts[h][p] == member) return {h, p};
  PRUN_CHECK(false, fmt::format("no member {}", member));
}

void HierarchicalGroup::run_inside(const CollCall& step) {
  try {
    inside.run(step);
  } catch (Error& error) {
    if (dynamic_cast<Aborted*>(&error) == nullptr) error.prefix("step of " + wire.doing());
    throw;
  }
}

void HierarchicalGroup::run_across(const CollCall& step) {
  const Algorithm& chosen = choose_algorithm(step, across->size(), algorithm);
  // Between hosts no later call would end hints, so calls are compared at once.
  across->begin(call, sequence, chosen.ring == Wire::Ring::later ? Wire::Ring::apart : chosen.ring);
  Group group{*across, scratch, across->index(), across->size()};
  chosen.run(group, step);
  across->finish();
}

bool hierarchical_barrier(HierarchicalGroup& group, const CollCall& call) {
  group.start();
  group.run_inside(call);
  if (group.map.place == 0) group.run_across(call);
  group.run_inside(call);
  return true;
}

std::unique_ptr<Communicator> make_hierarchical_communicator(TransportSession* inside, TransportSession& between,
                                                             const HostMap& hosts, const std::vector<int>& ranks,
                                                             int index, int lane, const std::string& algorithm) {
  MemberMap map(hosts, ranks, index);
  const std::vector<int> near = ranks_at(ranks, map.hosts[map.host]);
  const bool alone = near.size() == 1;
  // Members agree on tags inside each host first, then all of them between hosts.
  const int inside_tag = alone ? 0 : agree_on_tags(*inside, near, map.place, lane, 2);
  std::unique_ptr<Communicator> local =
      alone ? make_lone_communicator() : make_communicator(*inside, near, map.place, inside_tag + 1, "");
  const int between_tag = agree_on_tags(between, ranks, index, lane, 2);
  Wire wire(alone ? Route(between, between_tag) : Route(*inside, inside_tag, between, between_tag), ranks, index,
            group_hash(ranks, between_tag), true);
  std::optional<Wire> across;
  const auto reaches_place = [&](const std::vector<int>& members) { return std::ssize(members) > map.place; };
  if (std::all_of(map.hosts.begin(), map.hosts.end(), reaches_place)) {
    std::vector<int> peers;
    for (const std::vector<int>& members : map.hosts) peers.push_back(members[map.place]);
    across.emplace(Route(between, between_tag + 1), ranks_at(ranks, peers), map.host,
                   group_hash(ranks, between_tag + 1), true);
  }
  return std::make_unique<HierarchicalCommunicator>(std::move(wire), std::move(local), std::move(across),
                                                    std::move(map), algorithm);
}

}  // namespace prun
