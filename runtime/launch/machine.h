// Facts about this machine that can stop a job: cores, memory, process limits, as recorded in a run's environment.json.
// `prun doctor` gives advice about values that are too small.
#pragma once
#include <string>
#include <vector>

namespace prun {

struct MachineFact {
  std::string name;   // "open files"
  std::string value;  // for people
};

// Returns cores, memory, /dev/shm and limits.
std::vector<MachineFact> machine_facts();

}  // namespace prun
