// Groups over several hosts with several ranks each: collectives in steps, each step over one transport.
//
// Reductions are summed inside each host, then between hosts, by each local rank for its part of the buffer; gathers
// bring each block to each host once. A call without such steps (all_to_all, gather, scatter, sums of 16-bit floats)
// runs the core's algorithms, each message over the transport that leads to the peer.
//
// Surprising fact: the steps' own frames could not tell what the members called. So every call first sends its frame
// round the whole group, over both transports, and is compared there like any other.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives/communicator.h"
#include "comm/transport/host_map.h"

namespace prun {

// Where the members of a group are. Numbers are indices in the group.
struct MemberMap {
  MemberMap(const HostMap& map, const std::vector<int>& ranks, int index);
  int host_count() const { return hosts.size(); }
  int here() const { return hosts[host].size(); }
  // The host and place of a member: hosts[host][place].
  std::pair<int, int> find(int member) const;

  std::vector<std::vector<int>> hosts;  // their members; hosts by their first
  int host = 0, place = 0;              // hosts[host][place] is this member
  bool in_order = true;                 // hosts[0], hosts[1] ... are 0, 1, 2 ...
  bool even = true;                     // as many members on each host
};

// A group over several hosts as the steps of a call see it.
struct HierarchicalGroup {
  Wire& wire;            // to every member
  Wire* across;          // to the members with this one's place on their hosts; null if some have none
  Communicator& inside;  // the members on this host, in their order in the group
  Scratch& scratch;      // of steps between hosts
  Scratch& sums;         // of what must outlive such a step
  const MemberMap& map;
  const std::string& algorithm;  // for steps between hosts
  const PreparedCall& call;
  uint64_t sequence;  // of the call

  int size() const { return wire.size(); }
  int here() const { return map.here(); }
  int host_count() const { return map.host_count(); }
  int member(int at_host, int at_place) const { return map.hosts[at_host][at_place]; }
  // The steps' first act: the frames go round, and neighbours compare calls (without steps, the core's algorithm sends
  // them). It waits: messages between hosts move only while somebody waits for them, and nobody does in a step inside.
  void start() { wire.flush(); }
  // A step on this host. Errors say which call it is part of.
  void run_inside(const CollCall& step);
  // A step among the members with this one's place, by the core's algorithms. `across` is not null.
  void run_across(const CollCall& step);
};

// One for each kind of call; false: this call has no steps, and nothing was done.
using HierarchicalSteps = bool (*)(HierarchicalGroup&, const CollCall&);
bool hierarchical_all_reduce(HierarchicalGroup&, const CollCall&);
bool hierarchical_reduce_scatter(HierarchicalGroup&, const CollCall&);
bool hierarchical_reduce(HierarchicalGroup&, const CollCall&);
bool hierarchical_all_gather(HierarchicalGroup&, const CollCall&);  // and all_gather_v
bool hierarchical_broadcast(HierarchicalGroup&, const CollCall&);
bool hierarchical_barrier(HierarchicalGroup&, const CollCall&);

// `inside`: null on a rank that is alone on its host. Collective over the members, as World::communicator.
std::unique_ptr<Communicator> make_hierarchical_communicator(TransportSession* inside, TransportSession& between,
                                                             const HostMap& hosts, const std::vector<int>& ranks,
                                                             int index, int lane, const std::string& algorithm);

}  // namespace prun
