// Recorders are read at every tick; each view gets a step once, when all local ranks have completed it.
#include "observer.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/text.h"
#include "exec/job_run.h"
#include "ir/calendar.h"
#include "ir/model_flops.h"

namespace prun {

Observer::Observer(const Options& options, double peak_flops) : peak_flops_(peak_flops), progress_(standard_screen()) {
  if (!options.metrics.empty()) metrics_.emplace(options.metrics);
  if (!options.trace.empty()) trace_.emplace(options.trace);
}

void Observer::started(const std::vector<int>& ranks, const std::vector<int>&, const std::vector<void*>& recorders) {
  ranks_ = ranks;
  for (void* recorder : recorders) recorders_.push_back(static_cast<RecorderHeader*>(recorder));
  steps_.open(recorders_);
  if (metrics_) metrics_->begin();
  if (trace_) trace_->begin(job, ranks_, recorders_);
  if (job.classes.empty()) return;
  work_ = {job.classes.front().tokens_per_step, model_flops(job), peak_flops_};
  progress_.begin(job.classes.front(), static_cast<int>(job.class_of_rank.size()));
  if (!progress_.silent()) announce();
}

void Observer::announce() const {
  const Program& program = job.classes.front();
  fmt::print(stderr, "{} on {} ({}): {}, {} a rank\n", program.name, counted(std::ssize(job.class_of_rank), "rank"),
             program.mesh.text(), counted(program.schedule.steps, "step"), human_bytes(program.arena_bytes));
}

void Observer::announce_transports() {
  if (told_transports_ || recorders_.empty() || recorders_.front()->connected.load() == 0) return;
  told_transports_ = true;
  const char* words = recorders_.front()->transports;
  if (*words == '\0' || progress_.silent()) return;
  progress_.clear();
  fmt::print(stderr, "over {}\n", words);
}

void Observer::tick() {
  if (trace_) trace_->collect();
  const std::vector<MergedStep> steps = steps_.take();
  if (job.classes.empty()) return;
  announce_transports();
  for (const MergedStep& step : steps) {
    progress_.step(step);
    summary_.add(step);
    if (metrics_) metrics_->add(step, work_);
  }
  if (metrics_ && !steps.empty()) metrics_->flush();
  if (!recorders_.empty()) {
    const RecorderHeader& first = *recorders_.front();
    const bool joining = first.phase.load() == RunPhase::joining;
    progress_.waiting(joining ? "joining" : first.body.load() == 0 ? "initial values" : "first step");
  }
  progress_.redraw();
}

void Observer::line(int, const std::string& text) {
  if (text.starts_with(kForMetrics)) {
    if (metrics_) metrics_->add(text.substr(1));
    return;
  }
  if (told) return told(text);
  progress_.clear();
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void Observer::message(const std::string& text) {
  progress_.clear();
  LaunchObserver::message(text);
}

std::string Observer::where(int rank) {
  const Job& here = job.classes.empty() ? received_ : job;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r] != rank || here.classes.empty()) continue;
    RecorderHeader* recorder = recorders_[r];
    if (recorder->phase.load() == RunPhase::joining)
      return std::string("joining") + (recorder->doing[0] != '\0' ? ": " : "") + recorder->doing;
    const Program& program = here.program(rank);
    const BodyId id = static_cast<int>(recorder->body.load());
    const Body& body = program.bodies[id];
    for (size_t s = 0; s < body.streams.size(); ++s)
      if (recorder->stream[s].running.load() == 3)
        return fmt::format("{}: a graph of it, replayed by the device (--trace FILE has its ops one by one)",
                           moment_text(program, id, recorder->stream[s].step.load()));
    // The stream that is inside an op, else the compute stream.
    for (bool running : {true, false}) {
      for (size_t s = 0; s < body.streams.size(); ++s) {
        const StreamState& state = recorder->stream[s];
        if (running && state.running.load() != 1) continue;
        uint32_t op = state.op.load();
        if (op < body.streams[s].ops.size())
          return fmt::format("{}: {}{}", moment_text(program, id, state.step.load()), running ? "" : "waiting to run ",
                             op_words(body.streams[s].ops[op]));
      }
    }
  }
  return "";
}

void Observer::warn_of_lost_output() {
  const auto warn = [](const OutputFile& file) {
    if (!file.failure().empty()) fmt::print(stderr, "prun: {} is incomplete: {}\n", file.path(), file.failure());
  };
  if (metrics_) warn(metrics_->file());
  if (!trace_) return;
  warn(trace_->file());
  if (trace_->lost() > 0)
    fmt::print(stderr, "prun: {} lacks {} events that came too fast\n", trace_->file().path(), trace_->lost());
  if (trace_->full()) fmt::print(stderr, "prun: {} holds the first steps only\n", trace_->file().path());
}

std::vector<DeviceUse> Observer::device_use() const {
  std::vector<DeviceUse> all;
  for (const RecorderHeader* recorder : recorders_) {
    const auto member = [&](size_t i) { return recorder->device_use[i].load(); };
    if (member(0) > 0) all.push_back({member(0), member(1), member(2), member(3), member(4), member(5)});
  }
  return all;
}

void Observer::ended(int exit_code) {
  if (recorders_.empty()) return;
  tick();
  progress_.end();
  if (trace_) trace_->finish();
  warn_of_lost_output();
  const bool whole = exit_code == 0 || exit_code == static_cast<int>(Exit::preempted);
  if (!whole || progress_.silent() || job.classes.empty()) return;
  std::vector<uint64_t> peaks;
  for (const RecorderHeader* recorder : recorders_) peaks.push_back(recorder->pss.load());
  summary_.set_device_use(device_use());
  fmt::print(stderr, "{}", summary_.text(job, ranks_, peaks, work_.peak_flops));
  if (trace_) fmt::print(stderr, "trace      {} (open it in https://ui.perfetto.dev)\n", trace_->file().path());
}

}  // namespace prun
