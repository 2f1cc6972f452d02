#include "watch/screen_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/cores.h"
#include "base/error.h"
#include "base/text.h"
#include "checkpoint/history.h"
#include "ir/state.h"

namespace prun {
namespace {

constexpr int kCrowd = 16;  // ranks per core

// Returns the path relative to the current folder if it is below that folder.
std::string here(const std::string& path) {
  std::error_code gone;
  const std::filesystem::path below =
      std::filesystem::path(path).lexically_relative(std::filesystem::current_path(gone));
  return below.empty() || *below.begin() == ".." ? path : below.string();
}

// Names the files that training begins with: data, weights, and the checkpoint with the steps that are done.
std::string origins_text(const Program& program, const WatchSpec& spec) {
  std::string text;
  if (const DataSource& data = program.step().data; !data.files.empty()) {
    const size_t more = data.files.size() - 1;
    text += fmt::format("reads {}{} ({}, {})\n", here(data.path()),
                        more > 0 ? fmt::format(" and {}", counted(static_cast<int64_t>(more), "other file")) : "",
                        data.kind, human_bytes(data.file_bytes()));
  }
  if (spec.first_step > 0)
    return text + fmt::format("goes on after step {} of {}\n", spec.first_step, here(spec.resumed_from));
  if (!program.initial_weights.empty())
    text += fmt::format("begins with the weights of {}\n", here(program.initial_weights));
  return text;
}

std::vector<DeviceUse> device_use(const std::vector<RecorderHeader*>& recorders) {
  std::vector<DeviceUse> all;
  for (const RecorderHeader* recorder : recorders) {
    const auto member = [&](size_t i) { return recorder->device_use[i].load(); };
    if (member(0) > 0) all.push_back({member(0), member(1), member(2), member(3), member(4), member(5)});
  }
  return all;
}

// Returns the newest checkpoint of a folder and its step; step 0 = there is none.
std::pair<std::string, int64_t> newest_of(const std::string& folder) try {
  const std::string path = checkpoint::newest(folder).checkpoint;
  const auto name = checkpoint::parse_checkpoint_name(std::filesystem::path(path).filename().string());
  return {path, name ? name->step : 0};
} catch (const Error&) {
  return {};
}

}  // namespace

ScreenView::ScreenView(const WatchSpec& spec, Console& console, double peak_flops)
    : spec_(spec),
      console_(console),
      peak_flops_(peak_flops),
      progress_(console.screen(spec.log_every > 0), spec.log_every) {
  console_.before_line = [this] { progress_.clear(); };
}

void ScreenView::started(const RunningJob& job) {
  if (!job.shown) return;
  job_ = &job;
  const Program& program = job.program();
  announced_ = spec_.first_step;
  progress_.begin(program, static_cast<int>(job.job.class_of_rank.size()));
  if (progress_.silent()) return;
  const int64_t parameters = parameter_count(job.job);
  console_.say(fmt::format("{} on {} ({}): {}{}, {}\n", program.name,
                           counted(std::ssize(job.job.class_of_rank), "rank"), program.mesh.text(),
                           parameters > 0 ? grouped(parameters) + " parameters, " : "",
                           counted(program.schedule.steps, "step"), predicted_memory(job.job)));
  console_.say(origins_text(program, spec_));
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

// Shows at most one checkpoint per second, but always the last one. A commit to memory counts as saved, too, so that
// the newest checkpoint may be older.
void ScreenView::announce_checkpoint(bool last) {
  if (job_->recorders.empty() || job_->ranks.front() != 0 || spec_.checkpoints.empty() || progress_.silent()) return;
  const int64_t saved = job_->recorders.front()->saved.load();
  const double now = wall_time();
  if (saved <= announced_ || (!last && now - announced_at_ < 1)) return;
  announced_at_ = now;
  const auto [path, step] = newest_of(spec_.checkpoints);
  if (step <= announced_ || step > saved) return;
  announced_ = step;
  console_.say(fmt::format("checkpoint after step {}: {}\n", step, here(path)));
}

void ScreenView::tick() {
  if (job_ == nullptr) return;
  announce_transports();
  announce_checkpoint(false);
}

void ScreenView::before_steps(const MergedStep& evaluation) {
  if (!progress_.silent()) console_.say("step 0" + progress_.evaluation_text(evaluation) + "\n");
  summary_.add_evaluation(evaluation);
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
  announce_checkpoint(true);
  std::vector<uint64_t> peaks;
  for (const RecorderHeader* recorder : job_->recorders) peaks.push_back(recorder->pss.load());
  summary_.set_device_use(device_use(job_->recorders));
  summary_.set_binding(spec_.binding);
  console_.say(summary_.text(job_->job, job_->ranks, peaks, peak_flops_));
  if (!spec_.trace.empty())
    console_.say(fmt::format("trace      {} (open it in https://ui.perfetto.dev)\n", spec_.trace));
}

}  // namespace prun
