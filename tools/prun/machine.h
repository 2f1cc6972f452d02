// This machine as far as it can stop a job: memory and the limits of processes, each with what to do where it is small.
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
