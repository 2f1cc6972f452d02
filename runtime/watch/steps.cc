// Ranks are at most one ring apart, because a writer waits until its slot has been read.
#include "watch/steps.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

namespace prun {
namespace {

int64_t nanoseconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<std::string> step_names(const Program& program) {
  std::vector<std::string> names;
  for (const NamedResult& named : program.step().named) names.push_back(named.name);
  return names;
}

std::vector<std::string> evaluation_names(const Program& program) {
  std::vector<std::string> names;
  for (BodyId id = kStepBody + 1; id < program.bodies.next(); ++id)
    for (const NamedResult& named : program.bodies[id].named) names.push_back(named.name);
  return names;
}

MergedStep& MergedStep::operator+=(const MergedStep& other) {
  for (const auto member : {&MergedStep::time_s, &MergedStep::comm_s, &MergedStep::exposed_s, &MergedStep::bytes_sent,
                            &MergedStep::host_s, &MergedStep::idle_s, &MergedStep::eval_s, &MergedStep::data_s})
    this->*member += other.*member;
  return *this;
}

std::vector<MergedStep> StepReader::take(uint64_t most) {
  std::vector<MergedStep> steps;
  if (recorders_.empty()) return steps;
  uint64_t complete = UINT64_MAX;
  for (const RecorderHeader* recorder : recorders_) {
    complete = std::min(complete, recorder->steps_written.load(std::memory_order_acquire));
  }
  if (complete - next_ > most) complete = next_ + most;
  const int64_t since_1970 = nanoseconds(CLOCK_REALTIME) - nanoseconds(CLOCK_MONOTONIC);
  const double ranks = static_cast<double>(recorders_.size());
  for (; next_ < complete; next_++) {
    MergedStep merged;
    for (RecorderHeader* recorder : recorders_) {
      const StepRecord& record = recorder_steps(recorder)[next_ % static_cast<uint64_t>(kStepRing)];
      if (recorder == recorders_.front()) {
        merged.step = record.step;
        merged.loss = record.loss;
        merged.eval_loss = record.eval_loss;
        merged.eval_s = static_cast<double>(record.eval_ns) / 1e9;
        merged.norm = record.norm;
        std::ranges::copy(record.named, merged.named.begin());
        std::ranges::copy(record.eval_named, merged.eval_named.begin());
        merged.wall_time = static_cast<double>(static_cast<int64_t>(record.end_ns) + since_1970) / 1e9;
        merged.time_s = static_cast<double>(record.end_ns - record.begin_ns) / 1e9;
      }
      if (std::isnan(merged.norm)) merged.norm = record.norm;  // a stage without parameters has none
      merged.skipped = merged.skipped || record.skipped != 0;
      merged.comm_s += static_cast<double>(record.comm_ns) / 1e9 / ranks;
      merged.exposed_s += static_cast<double>(record.exposed_ns) / 1e9 / ranks;
      merged.data_s = std::max(merged.data_s, static_cast<double>(record.data_ns) / 1e9);
      merged.host_s = std::max(merged.host_s, static_cast<double>(record.host_ns) / 1e9);
      merged.idle_s = std::max(merged.idle_s, static_cast<double>(record.idle_ns) / 1e9);
      merged.bytes_sent += static_cast<double>(record.bytes_sent) / ranks;
    }
    steps.push_back(merged);
  }
  for (RecorderHeader* recorder : recorders_) recorder->steps_read.store(next_, std::memory_order_release);
  return steps;
}

}  // namespace prun
