// Ranks on several hosts, simulated on one machine: network namespaces joined by a virtual cable where permitted (root
// and iproute2), otherwise ranks with made-up host names.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/suite.h"

namespace prun::testing {

// Two namespaces; eth0 of host h has the address 10.77.0.(h+1). The destructor removes them.
class Namespaces {
 public:
  Namespaces();
  ~Namespaces();
  Namespaces(const Namespaces&) = delete;
  static bool permitted();
  void enter(int host) const;  // moves the calling process
  // Removes the cable.
  void pull() const;

 private:
  int owner_;                 // the process that created them
  std::vector<int> holders_;  // processes that keep them alive
};

struct HostsJob {
  std::vector<int> ranks_of_host = {2, 2};
  const Namespaces* namespaces = nullptr;  // null = made-up host names
  std::string transport = "auto", algorithm;
  double deadline_s = 20;
  LocalJob local;  // except `ranks`
};

// Like run_connected.
std::vector<RankReport> run_on_hosts(const HostsJob& job, const std::function<std::string(Rank&)>& body);

}  // namespace prun::testing
