#include "job/spent_time.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <utility>

#include "base/text.h"

namespace prun {
namespace {

std::string g_part;
double g_counted = 0;

double processor_seconds(int whose) {
  rusage usage{};
  getrusage(whose, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Adds the time since the last call to the current part.
void charge() {
  const double now = processor_seconds(RUSAGE_SELF) + processor_seconds(RUSAGE_CHILDREN);
  if (!g_part.empty()) spent_time()[g_part] += now - g_counted;
  g_counted = now;
}

}  // namespace

SpentTime& spent_time() {
  static SpentTime all;
  return all;
}

void add_spent_time(double seconds) {
  if (!g_part.empty()) spent_time()[g_part] += seconds;
}

TimeSpent::TimeSpent(const std::string& on) : outer_(g_part) {
  charge();
  g_part = outer_.empty() ? on : outer_ + ", " + on;
}

TimeSpent::~TimeSpent() {
  charge();
  g_part = outer_;
}

void print_spent_time() {
  double sum = 0;
  for (const auto& [part, seconds] : spent_time()) {
    fmt::print(stderr, "{:<28} {:>10}\n", part, human_seconds(seconds));
    sum += seconds;
  }
  fmt::print(stderr, "{:<28} {:>10} of processors\n", "all", human_seconds(sum));
}

}  // namespace prun
