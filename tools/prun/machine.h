// Facts of this machine that can stop a job: cores, memory, process limits, each with advice where it is too small.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace prun {

struct MachineFact {
  std::string name;    // "open files"
  std::string value;   // for people
  int64_t number;      // bytes or a count; -1: unlimited
  std::string advice;  // "" where it is enough
};

// Cores, memory, /dev/shm, limits.
std::vector<MachineFact> machine_facts();

}  // namespace prun
