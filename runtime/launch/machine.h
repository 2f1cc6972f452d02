// Facts of this machine that can stop a job: cores, memory, process limits, as a run's environment.json keeps them.
// Advice where one is too small is `prun doctor`'s.
#pragma once
#include <string>
#include <vector>

namespace prun {

struct MachineFact {
  std::string name;   // "open files"
  std::string value;  // for people
};

// Cores, memory, /dev/shm, limits.
std::vector<MachineFact> machine_facts();

}  // namespace prun
