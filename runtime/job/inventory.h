// Resources of a joining node, for node 0.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/kept_commits.h"
#include "launch/control.h"

namespace prun {

struct Inventory {
  std::vector<checkpoint::KeptCommit> commits;  // in its memory (replicas.h)
  std::string kernels;                          // the most demanding set that its CPU can run (kernels.h)

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(commits, kernels);
  }
};

}  // namespace prun
