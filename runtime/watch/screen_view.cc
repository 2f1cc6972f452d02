#include "watch/screen_view.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/cores.h"
#include "base/text.h"
#include "ir/state.h"

namespace prun {
namespace {

constexpr int kCrowd = 16;  // ranks per core

std::vector<DeviceUse> device_use(const std::vector<RecorderHeader*>& recorders) {
  std::vector<DeviceUse> all;
  for (const RecorderHeader* recorder : recorders) {
    const auto member = [&](size_t i) { return recorder->device_use[i].load(); };
    if (member(0) > 0) all.push_back({member(0), member(1), member(2), member(3), member(4), member(5)});
  }
  return all;
}

}  // namespace

ScreenView::ScreenView(const WatchSpec& spec, Console& console, double peak_flops)
    : spec_(spec), console_(console), peak_flops_(peak_flops), progress_(console.screen()) {
  console_.before_line = [this] { progress_.clear(); };
}

void ScreenView::started(const RunningJob& job) {
  if (!job.shown) return;
  job_ = &job;
  const Program& program = job.program();
  progress_.begin(program, static_cast<int>(job.job.class_of_rank.size()));
  if (progress_.silent()) return;
  const int64_t parameters = parameter_count(job.job);
  int64_t most = 0;
  for (const Program& each : job.job.classes) most = std::max(most, each.arena_bytes);
  console_.say(fmt::format("{} on {} ({}): {}{}, {} a rank\n", program.name,
                           counted(std::ssize(job.job.class_of_rank), "rank"), program.mesh.text(),
                           parameters > 0 ? grouped(parameters) + " parameters, " : "",
                           counted(program.schedule.steps, "step"), human_bytes(most)));
  const int here = static_cast<int>(job.pids.size()), cores = usable_cores();
  if (here > kCrowd * cores && program.device.starts_with("cpu"))
    console_.say(
        fmt::format("{} share {} of this machine, so steps are long; `prun check` and `prun sim` start no rank\n",
                    counted(here, "rank"), counted(cores, "core")));
}

void ScreenView::announce_transports() {
  if (told_transports_ || job_->recorders.empty() || job_->recorders.front()->connected.load() == 0) return;
  told_transports_ = true;
  const char* words = job_->recorders.front()->transports;
  if (*words != '\0' && !progress_.silent()) console_.say(fmt::format("over {}\n", words));
}

void ScreenView::tick() {
  if (job_ != nullptr) announce_transports();
}

void ScreenView::step(const MergedStep& step) {
  progress_.step(step);
  summary_.add(step);
}

void ScreenView::flush() {
  if (job_ == nullptr) return;
  if (!job_->recorders.empty()) {
    const RecorderHeader& first = *job_->recorders.front();
    const bool joining = first.phase.load() == RunPhase::joining;
    progress_.waiting(joining ? "joining" : first.body.load() == 0 ? "initial values" : "first step");
  }
  progress_.redraw();
}

void ScreenView::ended(int exit_code, bool begins_again) {
  progress_.end();
  const bool whole = exit_code == 0 || exit_code == static_cast<int>(Exit::preempted);
  if (!whole || begins_again || job_ == nullptr || progress_.silent()) return;
  std::vector<uint64_t> peaks;
  for (const RecorderHeader* recorder : job_->recorders) peaks.push_back(recorder->pss.load());
  summary_.set_device_use(device_use(job_->recorders));
  summary_.set_binding(spec_.binding);
  console_.say(summary_.text(job_->job, job_->ranks, peaks, peak_flops_));
  if (!spec_.trace.empty())
    console_.say(fmt::format("trace      {} (open it in https://ui.perfetto.dev)\n", spec_.trace));
}

}  // namespace prun
