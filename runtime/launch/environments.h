// Detects the foreign launcher of this process: mpirun, srun, torchrun and Kubernetes set environment variables that
// give each process its place. A launcher is a row of the table in environments.cc.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace prun {

// Place of a process among those that a launcher started for one job; -1 and "" = not given.
struct ForeignPlace {
  std::string launcher;  // the row's name
  int index = 0, count = 1;
  int local_index = -1, local_count = -1;  // among the processes of this host
  std::string job;                         // the same for all processes of the job, unique to the job
  std::string rendezvous;                  // HOST:PORT, if the launcher names the host of process 0
};

using ReadVariable = std::function<const char*(const char*)>;  // getenv, except in tests

// Returns the place among several processes; nullopt if no row reports several. `chosen`: name of the row to use ("":
// the first that matches, in table order; "none": no row). Throws usage_error with the table if two matching rows
// differ, a value is not a number, or the chosen row does not match or exist.
std::optional<ForeignPlace> read_environments(const ReadVariable& variable, const std::string& chosen);

// Returns the variables by which the row `launcher` matches if no launcher has set them for this process: RANK and
// WORLD_SIZE without torchrun's other variables, or variables that a shell has set. Otherwise returns an empty list.
std::vector<std::string> stray_variables(const ReadVariable& variable, const std::string& launcher);

// Returns whether the variables of a row describe this process, also as the only one of its job.
bool is_described(const ReadVariable& variable);

std::vector<std::string> environment_names();

// Returns rows' names, each with a variable that only processes started by that launcher have.
std::vector<std::pair<const char*, const char*>> launcher_marks();

// Returns one line per row, each after a newline: its values and its missing variables. Messages and `prun doctor`
// print them.
std::string environments_table(const ReadVariable& variable);

}  // namespace prun
