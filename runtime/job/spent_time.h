// CPU time of this process and its reaped children, by part; printed by `prun tune --time-passes`. The time of a nested
// part does not count towards the outer one.
#pragma once
#include <map>
#include <string>

namespace prun {

// Seconds by name of a finished part, for example "estimates, script".
using SpentTime = std::map<std::string, double>;
SpentTime& spent_time();

// Attributes CPU time to this part, nested in the current one, for the lifetime of the object.
class TimeSpent {
 public:
  explicit TimeSpent(const std::string& on);
  ~TimeSpent();
  TimeSpent(const TimeSpent&) = delete;
  TimeSpent& operator=(const TimeSpent&) = delete;

 private:
  std::string outer_;
};

void add_spent_time(double seconds);  // adds the time of processes reaped by others
void print_spent_time();              // prints a line per part, and the sum, to standard error

}  // namespace prun
