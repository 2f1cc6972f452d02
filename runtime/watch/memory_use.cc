#include "watch/memory_use.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

namespace prun {
namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

uint64_t proportional_set_size(const std::string& process) {
  std::ifstream rollup("/proc/" + process + "/smaps_rollup");
  std::string line;
  while (std::getline(rollup, line)) {
    unsigned long long kilobytes = 0;
    if (std::sscanf(line.c_str(), "Pss: %llu kB", &kilobytes) == 1) return kilobytes * 1024;
  }
  return 0;
}

uint64_t MemoryWatch::most() {
  const double begin = now_s();
  if (begin < next_s_) return most_;
  uint64_t most = 0;
  for (const int process : processes_) most = std::max(most, proportional_set_size(std::to_string(process)));
  if (most > 0) most_ = most;  // ended processes have none
  const double end = now_s();
  next_s_ = end + std::max(1.0, 100 * (end - begin));
  return most_;
}

}  // namespace prun
