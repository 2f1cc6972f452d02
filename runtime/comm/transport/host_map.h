// The ranks that share a machine ("host"), found by measurement and not by configuration. Two ranks share one if they
// run under one kernel (boot id) and in the same network and IPC namespaces, which scope the socket names and shared
// memory of local transports.
//
// Surprising fact: a node of the launcher is not a host. Two nodes may be started on one machine, and their ranks then
// share memory like any others; two containers on one machine may not. PRUN_HOST_ID overrides the measurement.
#pragma once
#include <string>
#include <vector>

#include "comm/comm.h"

namespace prun {

struct HostMap {
  std::vector<int> host_of;                // by rank
  std::vector<std::vector<int>> ranks_of;  // by host, sorted; hosts in the order of their first ranks
  int count() const { return ranks_of.size(); }
  const std::vector<int>& with(int rank) const { return ranks_of[host_of[rank]]; }  // all ranks of this rank's host
  bool same(int a, int b) const { return host_of[a] == host_of[b]; }
  std::string text() const;  // "ranks 0-3 | 4-7"
};

// Returns a text that is equal on all ranks of a host and differs between hosts.
std::string this_host();
// Collective over all ranks if the launcher has ranks on other hosts; ranks of one launcher share its host.
HostMap find_hosts(const WorldOptions& options, Bootstrap& bootstrap);
HostMap group_by_host(const std::vector<std::string>& host_of_rank);

}  // namespace prun
