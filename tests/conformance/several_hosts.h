// Ranks on several hosts, on one machine: network namespaces joined by a virtual cable where they are permitted (root
// and iproute2), and ranks that are told to look like several hosts everywhere.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/suite.h"

namespace prun::testing {

// Two namespaces; eth0 of host h has the address 10.77.0.(h+1). They end with the object.
class Namespaces {
 public:
  Namespaces();
  ~Namespaces();
  Namespaces(const Namespaces&) = delete;
  static bool permitted();
  void enter(int host) const;  // the calling process
  // Ends the cable.
  void pull() const;

 private:
  int owner_;                 // the process that made them
  std::vector<int> holders_;  // processes that keep them alive
};

struct HostsJob {
  std::vector<int> ranks_of_host = {2, 2};
  const Namespaces* namespaces = nullptr;  // null: names of hosts are made up
  std::string transport = "auto", algorithm;
  double deadline_s = 20;
  LocalJob local;  // but for `ranks`
};

// As run_connected.
std::vector<RankReport> run_on_hosts(const HostsJob& job, const std::function<std::string(Rank&)>& body);

}  // namespace prun::testing
