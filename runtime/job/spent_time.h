// Processor time by what it went into, of this process and of the children that it has waited for: what
// `prun tune --time-passes` prints. A part inside another one is its own and not the other's.
#pragma once
#include <map>
#include <string>

namespace prun {

// Of parts that have ended, "estimates, script" by its seconds.
using SpentTime = std::map<std::string, double>;
SpentTime& spent_time();

// As long as this exists, time goes into this part of those around it.
class TimeSpent {
 public:
  explicit TimeSpent(const std::string& on);
  ~TimeSpent();
  TimeSpent(const TimeSpent&) = delete;
  TimeSpent& operator=(const TimeSpent&) = delete;

 private:
  std::string outer_;
};

void add_spent_time(double seconds);  // of processes that others have waited for: into the part that is open
void print_spent_time();              // a line a part on standard error, and their sum

}  // namespace prun
