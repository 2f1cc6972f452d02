// What `prun sim` is asked beside a plan and its arguments.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace prun {

struct SimSettings {
  std::string cluster;                                                  // path of the YAML file
  std::vector<std::pair<std::string, std::vector<std::string>>> sweep;  // argument, values
  bool every_rank = false;
  bool whole = false;        // extrapolate nothing
  bool extrapolate = false;  // also what is short
};

}  // namespace prun
