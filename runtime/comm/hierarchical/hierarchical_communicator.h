// Groups over several hosts with several ranks each: collectives in steps, each step over one transport.
//
// Reductions are summed inside each host, then between hosts, where each local rank handles its part of the buffer;
// gathers send each block to each host once. Calls without such steps (all_to_all, gather, scatter, sums of 16-bit
// floats) run the core's algorithms, each message over the transport that reaches the peer.
//
// Surprising fact: the steps' own frames do not identify the members' call. Every call therefore first sends its frame
// around the ring of the whole group, over both transports, where it is compared like any other.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives/communicator.h"
#include "comm/transport/host_map.h"

namespace prun {

// The hosts of a group's members. Members are indices in the group.
struct MemberMap {
  MemberMap(const HostMap& map, const std::vector<int>& ranks, int index);
  int host_count() const { return hosts.size(); }
  int here() const { return hosts[host].size(); }
  // Returns the host and place of a member: hosts[host][place].
  std::pair<int, int> find(int member) const;

  std::vector<std::vector<int>> hosts;  // members by host; hosts ordered by their first member
  int host = 0, place = 0;              // hosts[host][place] is this member
  bool in_order = true;                 // hosts[0], hosts[1], ... concatenated are 0, 1, 2, ...
  bool even = true;                     // every host has equally many members
};

// A group over several hosts, as the steps of a call use it.
struct HierarchicalGroup {
  Wire& wire;            // to every member
  Wire* across;          // to the members with this one's place on their hosts; null if some host lacks one
  Communicator& inside;  // the members on this host, in group order
  Scratch& scratch;      // scratch of steps between hosts
  Scratch& sums;         // data that must outlive such a step
  const MemberMap& map;
  const std::string& algorithm;  // for steps between hosts
  const PreparedCall& call;
  uint64_t sequence;  // number of the call

  int size() const { return wire.size(); }
  int here() const { return map.here(); }
  int host_count() const { return map.host_count(); }
  int member(int at_host, int at_place) const { return map.hosts[at_host][at_place]; }
  // Sends the frames and compares calls between neighbours, before all other steps (without steps, the core's algorithm
  // does). It waits, because messages between hosts progress only while a thread waits for them, unlike a step inside a
  // host.
  void start() { wire.flush(); }
  // Runs a step on this host. Errors name the call that it belongs to.
  void run_inside(const CollCall& step);
  // Runs a step among the members with this one's place, by the core's algorithms. `across` must not be null.
  void run_across(const CollCall& step);
};

// There is one function per kind. It returns false, and does nothing, if the call has no steps.
using HierarchicalSteps = bool (*)(HierarchicalGroup&, const CollCall&);
bool hierarchical_all_reduce(HierarchicalGroup&, const CollCall&);
bool hierarchical_reduce_scatter(HierarchicalGroup&, const CollCall&);
bool hierarchical_reduce(HierarchicalGroup&, const CollCall&);
bool hierarchical_all_gather(HierarchicalGroup&, const CollCall&);  // and all_gather_v
bool hierarchical_broadcast(HierarchicalGroup&, const CollCall&);
bool hierarchical_barrier(HierarchicalGroup&, const CollCall&);

// `inside` is null on a rank that is alone on its host. Collective over the members, like World::communicator.
std::unique_ptr<Communicator> make_hierarchical_communicator(TransportSession* inside, TransportSession& between,
                                                             const HostMap& hosts, const std::vector<int>& ranks,
                                                             int index, int lane, const std::string& algorithm);

}  // namespace prun
