// Groups that span hosts with several ranks: collectives in steps, each of them over one transport.
//
// Reductions are summed inside each host, then between hosts, by each local rank for its part of the buffer; gathers
// bring each block to each host once. What has no such steps (all_to_all, gather, scatter, sums of 16-bit floats) runs
// the core's algorithms over messages that take the transport that leads to the peer.
//
// Surprising fact: the steps' own frames could not tell what the members called. So every call first sends its frame
// round the whole group, over both transports, and is compared there like any other.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives/algorithm.h"
#include "comm/collectives/wire.h"
#include "comm/transport/host_map.h"
#include "comm/transport/transport_session.h"

namespace prun {

// A group over several hosts as the steps see it; the ranks in it are indices of the group.
struct Span {
  Wire& wire;            // to every member
  Wire* across;          // to the members with this one's place on their hosts; null if some have none
  Communicator& inside;  // the members on this host, in their order in the group
  Scratch& scratch;      // of steps between hosts
  Scratch& sums;         // of what must outlive such a step
  const std::vector<std::vector<int>>& hosts;  // their members; hosts by their first
  int host, place;                             // hosts[host][place] is this member
  bool in_order;                               // hosts[0], hosts[1] ... are 0, 1, 2 ...
  bool even;                                   // as many members on each host
  const std::string& algorithm;                // for steps between hosts
  FrameHeader header;                          // of the call

  int size() const { return wire.size(); }
  int host_count() const { return static_cast<int>(hosts.size()); }
  int here() const { return static_cast<int>(hosts[host].size()); }
  int member(int at_host, int at_place) const { return hosts[at_host][at_place]; }
  // The steps' first act: the frames go round, and neighbours compare calls (without steps, the core's algorithm sends
  // them). It waits: messages between hosts move only while somebody waits for them, and nobody does in a step inside.
  void start() { wire.flush(); }
  // A step on this host. Errors say which call it is part of.
  void run_inside(const CollCall& step);
  // A step among the members with this one's place: by the core's algorithms. `across` is not null.
  void run_across(const CollCall& step);
};

// One file each kind; false: this call has no steps, and nothing was done.
bool spanning_all_reduce(Span&, const CollCall&);
bool spanning_reduce_scatter(Span&, const CollCall&);
bool spanning_reduce(Span&, const CollCall&);
bool spanning_all_gather(Span&, const CollCall&);  // and all_gather_v
bool spanning_broadcast(Span&, const CollCall&);
bool spanning_barrier(Span&, const CollCall&);

// `inside`: null on a rank that is alone on its host. Collective over the members, as World::communicator.
std::unique_ptr<Communicator> make_mixed_communicator(Link* inside, Link& between, const Hosts& hosts,
                                                      const std::vector<int>& ranks, int index, int lane,
                                                      const std::string& algorithm);

}  // namespace prun
