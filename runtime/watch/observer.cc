// Recorders are read at every tick; each view gets a step once, when all local ranks have completed it.
#include "watch/observer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "device/device.h"
#include "exec/job_run.h"
#include "ir/calendar.h"
#include "ir/model_flops.h"
#include "ir/state.h"

namespace prun {
namespace {

using Json = nlohmann::ordered_json;

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Observer::Observer(const WatchSpec& spec, double peak_flops, RunFolder* folder)
    : spec_(spec),
      told_not_finite_(spec.explains_non_finite),
      peak_flops_(peak_flops),
      folder_(folder),
      console_(spec.json || standard_stream(spec.metrics.path) == STDOUT_FILENO, spec.quiet),
      progress_(console_.screen()) {
  if (folder_ != nullptr) console_.log = [this](std::string_view text) { folder_->log(text); };
  if (folder_ != nullptr) events_.emplace([this](const std::string& line) { folder_->event(line); });
  if (!spec.metrics.path.empty() && spec.node == 0) metrics_.emplace(spec.metrics, spec.first_step);
  if (!spec.trace.empty()) trace_.emplace(spec.trace, spec.trace_steps);
}

void Observer::begin_after(int64_t step) {
  if (!metrics_) return;
  metrics_.reset();  // which has the file's lock
  metrics_.emplace(spec_.metrics, step);
}

// Nodes other than 0 have no folder, and leave it to node 0 to say what holds the job up.
void Observer::watch() {
  if (!watch_) return;
  const Job& here = job.classes.empty() ? received_ : job;
  watch_->tick(here, [this](const std::string& sentence) {
    if (topology_.node == 0) warn(sentence);
  });
  if (events_) events_->look_at(watch_->ranks());
  if (topology_.node == 0) slow_.tick(watch_->ranks(), [this](const std::string& sentence) { warn(sentence); });
  status_.tick(*watch_, here, slow_.ranks());
}

// Where it cannot be said the job runs all the same.
void Observer::publish() {
  const Json about = {{"format", 1},
                      {"id", folder_ != nullptr ? folder_->id() : ""},
                      {"pid", getpid()},
                      {"node", topology_.node},
                      {"nodes", topology_.node_count()},
                      {"plan", spec_.plan},
                      {"arguments", spec_.words},
                      {"directory", std::filesystem::current_path().string()},
                      {"folder", folder_ == nullptr || folder_->path().empty()
                                     ? Json()
                                     : Json(std::filesystem::absolute(folder_->path()).string())},
                      {"started", wall_time()}};
  try {
    status_.open(about, serialize_job(job.classes.empty() ? received_ : job));
  } catch (const Error& error) {
    warn(fmt::format("prun status will not show this job: {}", error.what()));
  }
}

void Observer::warn(const std::string& sentence) {
  progress_.clear();
  console_.warn(fmt::format("prun: {}\n", sentence));
  if (events_) events_->warning(sentence);
}

std::optional<Failure> Observer::hung() {
  if (!watch_ || !watch_->hang() || topology_.node != 0 || std::exchange(told_hang_, true)) return std::nullopt;
  const Hang& hang = *watch_->hang();
  Failure failure = job_failed(static_cast<int>(Exit::hang), hang.holdup.sentence,
                               fmt::format("nothing has moved for {}", human_seconds(hang.seconds)), spec_.command);
  failure.op = hang.holdup.op;
  for (size_t i = 0; i < std::min<size_t>(hang.holdup.chain.size(), 3); ++i)
    failure.evidence += (i == 0 ? ": " : "; ") + hang.holdup.chain[i];
  for (const WatchedRank& rank : watch_->ranks()) {
    if (rank.rank != hang.holdup.rank) continue;
    set_who(failure, {rank.rank, rank.node, topology_.node_count(), rank.pid, rank.host});
    if (!rank.kernel.empty()) failure.evidence += "; in the kernel " + rank.kernel;
  }
  return failure;
}

void Observer::output(int rank, bool error, std::string_view text, bool here) {
  if (here) {
    progress_.clear();
    console_.relay(text, error);
  }
  if (folder_ != nullptr) folder_->rank_output(rank, text);
}

void Observer::started(const std::vector<int>& ranks, const std::vector<int>& pids,
                       const std::vector<void*>& recorders) {
  ranks_ = ranks;
  for (size_t r = 0; r < ranks.size(); ++r) log_info("launch", "rank {} is process {}", ranks[r], pids[r]);
  for (void* recorder : recorders) recorders_.push_back(static_cast<RecorderHeader*>(recorder));
  memory_.open(pids);
  watch_.emplace(all_ranks(pids), spec_.deadline_s);
  if (topology_.node == 0) steps_.open(recorders_);  // else mirror() takes them
  if (!job.classes.empty()) slow_.begin(job);
  publish();
  if (events_) events_->started(spec_.plan, watch_->ranks());
  if (metrics_) metrics_->begin();
  if (metrics_ && !metrics_->remark().empty()) console_.warn(fmt::format("prun: {}\n", metrics_->remark()));
  if (trace_) trace_->begin(job, ranks_, recorders_);
  if (job.classes.empty()) return;
  if (trace_ && open_device(job.classes.front().device)->queue() != nullptr) trace_->note_eager();
  const Program& program = job.classes.front();
  const Schedule& schedule = program.schedule;
  work_ = {.tokens = program.tokens_per_step,
           .first = schedule.first,
           .tokens_before = schedule.tokens,
           .flops = model_flops(job),
           .peak_flops = peak_flops_,
           .rate = schedule.learning_rate};
  for (const Program& one : job.classes) work_.clips = work_.clips || one.step().norm >= 0;
  progress_.begin(program, static_cast<int>(job.class_of_rank.size()));
  if (!progress_.silent()) announce();
}

std::string Observer::result(int exit_code) const { return result_.text(job, exit_code); }

void Observer::announce() {
  const Program& program = job.classes.front();
  const int64_t parameters = parameter_count(job);
  console_.say(fmt::format("{} on {} ({}): {}{}, {} a rank\n", program.name,
                           counted(std::ssize(job.class_of_rank), "rank"), program.mesh.text(),
                           parameters > 0 ? grouped(parameters) + " parameters, " : "",
                           counted(program.schedule.steps, "step"), human_bytes(program.arena_bytes)));
}

void Observer::announce_transports() {
  if (told_transports_ || recorders_.empty() || recorders_.front()->connected.load() == 0) return;
  told_transports_ = true;
  const char* words = recorders_.front()->transports;
  result_.connected(words);
  if (*words == '\0' || progress_.silent()) return;
  progress_.clear();
  console_.say(fmt::format("over {}\n", words));
}

void Observer::tick() {
  console_.flush();
  if (metrics_) metrics_->flush();
  if (trace_) trace_->collect();
  watch();
  const std::vector<MergedStep> steps = steps_.take();
  if (job.classes.empty()) return;
  announce_transports();
  for (const MergedStep& step : steps) {
    progress_.step(step);
    summary_.add(step);
    result_.add(step);
    if (folder_ != nullptr) folder_->step(step);
    if (events_) events_->step(step);
    status_.step(step);
    add_row(metrics_row(step, work_, memory_bytes()));
    tell_not_finite(step);
    if (step.skipped) tell_skipped(step);
  }
  if (folder_ != nullptr && !steps.empty()) folder_->flush();
  if (!recorders_.empty()) {
    const RecorderHeader& first = *recorders_.front();
    const bool joining = first.phase.load() == RunPhase::joining;
    progress_.waiting(joining ? "joining" : first.body.load() == 0 ? "initial values" : "first step");
  }
  progress_.redraw();
}

void Observer::line(int rank, const std::string& text) {
  if (text.starts_with(kForMetrics)) {
    add_row(text.substr(1) + "\n");
    return;
  }
  if (text.starts_with(kForEvents)) {
    if (folder_ != nullptr) folder_->event(text.substr(1) + "\n");
    return;
  }
  if (told) return told(text);
  if (folder_ != nullptr) folder_->rank_output(rank, text + "\n");
  progress_.clear();
  console_.print(text + "\n");
}

// Ranks that have ended have said it themselves.
uint64_t Observer::memory_bytes() {
  uint64_t most = memory_.most();
  for (const RecorderHeader* recorder : recorders_) most = std::max(most, recorder->pss.load());
  return most;
}

void Observer::add_row(const std::string& row) {
  if (metrics_ && standard_stream(metrics_->file().path()) >= 0) progress_.clear();
  if (metrics_) metrics_->add(row);
  if (folder_ != nullptr) folder_->row(row);
}

// Reports the first loss, evaluation or gradient norm that is not finite.
void Observer::tell_not_finite(const MergedStep& step) {
  const bool loss = !std::isfinite(step.loss), evaluation = step.evaluated() && !std::isfinite(step.eval_loss),
             norm = work_.clips && !std::isfinite(step.norm);
  if (told_not_finite_ || progress_.silent() || !(loss || evaluation || norm)) return;
  told_not_finite_ = true;
  progress_.clear();
  const double value = loss ? step.loss : norm ? step.norm : step.eval_loss;
  const char* const effect = loss || !norm       ? ""
                             : std::isnan(value) ? ", so nothing is clipped"
                                                 : ", so clipping leaves 0 or NaN of each gradient";
  console_.warn(fmt::format(
      "prun: the {} step {} is {}{}: --check-finite ends the run at the op that makes the first NaN or infinity\n",
      loss   ? "loss of"
      : norm ? "norm of the gradients of"
             : "evaluation after",
      step.step + 1, std::isnan(value) ? "NaN" : "infinite", effect));
}

// Each is an event; the screen tells the first ones, and then fewer and fewer.
void Observer::tell_skipped(const MergedStep& step) {
  skipped_steps_.push_back(static_cast<int64_t>(step.step));
  const size_t many = skipped_steps_.size();
  if (events_) events_->skipped(step, many);
  if (!spec_.names_skipped || (many & (many - 1)) != 0) return;
  progress_.clear();
  console_.warn(fmt::format("prun: step {} updated nothing: the norm of its gradients is {}{}\n", step.step + 1,
                            std::isnan(step.norm) ? "NaN" : "infinite",
                            many > 1 ? fmt::format(" ({} steps so far)", many) : ""));
}

void Observer::failed(const Failure& failure) {
  if (failure.code == static_cast<int>(Exit::non_finite)) not_finite_step_ = failure.step;
  result_.failed(failure);
  failed_ = true;
  if (folder_ != nullptr && watch_ && failure.code == static_cast<int>(Exit::hang))
    folder_->keep_stacks(watch_->stacks());
  keep_flight();
  if (folder_ != nullptr) folder_->failed(failure);
  if (events_) events_->failed(failure);
}

void Observer::message(const std::string& text) {
  progress_.clear();
  if (events_ && !failed_ && text.starts_with("prun: ")) events_->warning(text.substr(6, text.find('\n') - 6));
  console_.warn(text);
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
  const auto incomplete = [&](const std::string& path, const std::string& why) {
    if (why.empty() || !said_lost_.insert(path).second) return;
    console_.warn(fmt::format("prun: {} is incomplete: {}\n", path, why));
  };
  incomplete("standard output", console_.failure());
  if (metrics_) incomplete(metrics_->file().path(), metrics_->file().failure());
  if (!trace_) return;
  incomplete(trace_->file().path(), trace_->file().failure());
  if (trace_->lost() > 0)
    console_.warn(fmt::format("prun: {} lacks {} events that came too fast\n", trace_->file().path(), trace_->lost()));
  if (trace_->full() && !trace_->windowed())
    console_.warn(fmt::format("prun: {} holds the first steps only\n", trace_->file().path()));
}

std::vector<DeviceUse> Observer::device_use() const {
  std::vector<DeviceUse> all;
  for (const RecorderHeader* recorder : recorders_) {
    const auto member = [&](size_t i) { return recorder->device_use[i].load(); };
    if (member(0) > 0) all.push_back({member(0), member(1), member(2), member(3), member(4), member(5)});
  }
  return all;
}

int Observer::finish(int exit_code) {
  const double patience_s = exit_code == 0 ? 60 : 5;
  if (metrics_) metrics_->finish(patience_s);
  console_.finish(patience_s);
  warn_of_lost_output();
  console_.finish(1);
  return exit_code == 0 && !said_lost_.empty() ? static_cast<int>(Exit::check_failed) : exit_code;
}

void Observer::ended(int exit_code, bool begins_again) {
  log_info("launch", "the ranks of this node have ended, exit code {}", exit_code);
  if (recorders_.empty()) return;
  if (failed_) steps_.keep_first(static_cast<size_t>(topology_.here().ranks));
  tick();
  if (events_) events_->ended(exit_code);
  progress_.end();
  if (trace_) trace_->finish();
  const bool whole = exit_code == 0 || exit_code == static_cast<int>(Exit::preempted);
  if (!whole || begins_again || progress_.silent() || job.classes.empty()) return warn_of_lost_output();
  std::vector<uint64_t> peaks;
  for (const RecorderHeader* recorder : recorders_) peaks.push_back(recorder->pss.load());
  summary_.set_device_use(device_use());
  summary_.set_binding(spec_.binding);
  console_.say(summary_.text(job, ranks_, peaks, work_.peak_flops));
  if (trace_) console_.say(fmt::format("trace      {} (open it in https://ui.perfetto.dev)\n", trace_->file().path()));
  warn_of_lost_output();
}

}  // namespace prun
