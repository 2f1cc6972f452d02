// Recorders are read at every tick; each view gets a step once, after all ranks have completed it.
#include "watch/observer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "exec/job_run.h"
#include "ir/calendar.h"
#include "launch/control.h"

namespace prun {
namespace {

constexpr uint64_t kStepsAtATime = 16;  // between two looks at slow readers

// Returns a rank's position from its recorder: "step 12: all_reduce 3 of axis dp (block2), plans/a.lua:14", or
// "joining: socket"; "" if unknown.
std::string where_is(const Job& job, int rank, const RecorderHeader& recorder) {
  if (recorder.phase.load() == RunPhase::joining)
    return std::string("joining") + (recorder.doing[0] != '\0' ? ": " : "") + recorder.doing;
  const Program& program = job.program(rank);
  const BodyId id = static_cast<int>(recorder.body.load());
  const Body& body = program.bodies[id];
  for (size_t s = 0; s < body.streams.size(); ++s)
    if (recorder.stream[s].running.load() == 3)
      return fmt::format("{}: a graph of it, replayed by the device (--trace FILE has its ops one by one)",
                         moment_text(program, id, recorder.stream[s].step.load()));
  // Takes a stream inside an op, otherwise the first stream with an op left.
  for (bool running : {true, false}) {
    for (size_t s = 0; s < body.streams.size(); ++s) {
      const StreamState& state = recorder.stream[s];
      if (running && state.running.load() != 1) continue;
      uint32_t op = state.op.load();
      if (op < body.streams[s].ops.size())
        return fmt::format("{}: {}{}", moment_text(program, id, state.step.load()), running ? "" : "waiting to run ",
                           op_words(body.streams[s].ops[op]));
    }
  }
  return "";
}

}  // namespace

Observer::Observer(const WatchSpec& spec, double peak_flops, RunFolder* folder)
    : spec_(spec),
      console_(spec.json || standard_stream(spec.metrics.path) == STDOUT_FILENO, spec.quiet),
      folder_(folder),
      peak_flops_(peak_flops),
      watchdog_(spec.deadline_s, [this](const std::string& sentence) { warn(sentence); }),
      status_(spec, folder, watchdog_, [this](const std::string& sentence) { warn(sentence); }),
      screen_(spec, console_, peak_flops),
      not_finite_(spec, console_) {
  if (folder_ != nullptr) {
    console_.log = [this](std::string_view text) { folder_->log(text); };
    events_.emplace(spec.plan, watchdog_, [this](const std::string& line) { folder_->event(line); });
  }
  if (!spec.trace.empty() && spec.node == 0) trace_.emplace(spec.trace, spec.trace_steps, spec.runs_graphs);
  begin_after(spec.first_step);
  const std::initializer_list<View*> all = {trace_ ? &*trace_ : nullptr,
                                            &watchdog_,
                                            events_ ? &*events_ : nullptr,
                                            &status_,
                                            &screen_,
                                            &result_,
                                            folder_,
                                            metrics_ ? &*metrics_ : nullptr,
                                            &not_finite_};
  std::copy_if(all.begin(), all.end(), std::back_inserter(views_), [](const View* view) { return view != nullptr; });
}

void Observer::begin_after(int64_t step) {
  metrics_.reset();  // it holds the lock of the file
  if (!spec_.metrics.path.empty() && spec_.node == 0) metrics_.emplace(spec_.metrics, step, console_);
}

void Observer::show(Job job) {
  running_.job = std::move(job);
  running_.shown = true;
}

void Observer::placed(const Topology& topology, bool mirror_all) {
  running_.topology = topology;
  mirrors_.placed(mirror_all);
}

void Observer::started(const std::vector<int>& ranks, const std::vector<int>& pids,
                       const std::vector<void*>& recorders) {
  for (size_t r = 0; r < ranks.size(); ++r) log_info("launch", "rank {} is process {}", ranks[r], pids[r]);
  running_.ranks = ranks;
  running_.pids = pids;
  for (void* recorder : recorders) running_.recorders.push_back(static_cast<RecorderHeader*>(recorder));
  watchdog_.begin(running_, mirrors_.open(running_, recorder_capacity(spec_)));
  if (running_.topology.node == 0) reader_.open(running_.recorders);  // on other nodes the mirrors consume the steps
  if (running_.shown) rows_.begin(running_, peak_flops_);
  for (View* view : views_) view->started(running_);
}

void Observer::tick() {
  console_.flush();
  if (running_.recorders.empty()) return;  // a rank failed to start
  for (View* view : views_) view->tick();
  while (!behind() && show_steps(kStepsAtATime)) {
  }
  if (!running_.shown) return;
  for (View* view : views_) view->flush();
}

// Returns false if no step was left. A rank whose steps are not taken waits when its ring is full.
bool Observer::show_steps(uint64_t most) {
  const std::vector<MergedStep> steps = reader_.take(most);
  if (!running_.shown) return false;
  for (const MergedStep& step : steps) {
    if (step.step == kBeforeSteps) {
      show_first(step);
      continue;
    }
    for (View* view : views_) view->step(step);
    add_row(rows_.of(step));
  }
  return !steps.empty();
}

// No view counts it as a step.
void Observer::show_first(const MergedStep& evaluation) {
  if (evaluated) return evaluated(evaluation);
  for (View* view : views_) view->before_steps(evaluation);
  add_row(evaluation_row(evaluation, evaluation_names(running_.program())));
}

bool Observer::behind() {
  return console_.behind() || std::any_of(views_.begin(), views_.end(), [](View* view) { return view->behind(); });
}

void Observer::add_row(std::string_view row) {
  for (View* view : views_) view->row(row);
}

void Observer::line(int rank, const std::string& text) {
  if (text.starts_with(kForMetrics)) return add_row(text.substr(1) + "\n");
  if (text.starts_with(kForEvents)) {
    if (folder_ != nullptr) folder_->event(text.substr(1) + "\n");
    return;
  }
  if (told) return told(text);
  if (folder_ != nullptr) folder_->rank_output(rank, text + "\n");
  console_.print(text + "\n");
}

void Observer::output(int rank, bool error, std::string_view text, bool here) {
  if (here) console_.relay(text, error);
  if (folder_ != nullptr) folder_->rank_output(rank, text);
}

void Observer::warn(const std::string& sentence) {
  console_.warn(fmt::format("prun: {}\n", sentence));
  for (View* view : views_) view->warning(sentence);
}

void Observer::message(const std::string& text) {
  if (!failed_ && text.starts_with("prun: "))
    for (View* view : views_) view->warning(text.substr(6, text.find('\n') - 6));
  console_.warn(text);
}

void Observer::abandoned(int rank, int64_t step, std::string_view words) {
  const auto failure = unpack<checkpoint::SaveFailure>(words);
  const int64_t committed = running_.recorders.empty() ? 0 : running_.recorders.front()->saved.load();
  const int64_t last = committed > 0 ? committed : spec_.first_step;
  std::string room;
  if (failure.free_bytes >= 0)
    room = fmt::format("; a checkpoint takes {}, {} are free", human_bytes(failure.bytes),
                       human_bytes(failure.free_bytes));
  console_.warn(
      fmt::format("prun: the checkpoint after step {} is abandoned by all ranks, and the job goes on: rank {}: "
                  "{}{}; {}\n",
                  step, rank, failure.what, room,
                  last > 0 ? fmt::format("the last one is that after step {}", last) : "there is none yet"));
  if (!events_) return;
  if (watchdog_.watch() != nullptr) events_->tick();  // writes earlier events first
  events_->abandoned(rank, step, spec_.checkpoints, last, failure);
}

std::optional<Failure> Observer::hung() { return watchdog_.hung(spec_.command); }

// Ranks are not notified yet, so each is still at its position.
void Observer::ending() {
  if (watchdog_.watch() == nullptr) return;
  watchdog_.watch()->freeze();
  flight_ = watchdog_.watch()->flight(kKeptEvents);
  mirrors_.freeze(*watchdog_.watch());
}

void Observer::failed(const Failure& failure) {
  failed_ = true;
  keep_flight();
  if (folder_ != nullptr && watchdog_.watch() != nullptr && failure.code == static_cast<int>(Exit::hang))
    folder_->keep_stacks(watchdog_.watch()->stacks());
  for (View* view : views_) view->failed(failure);
}

// Updates ranks of other nodes with later news.
void Observer::keep_flight() {
  if (folder_ == nullptr || !running_.shown || flight_.ranks.empty()) return;
  const Flight now = watchdog_.watch()->flight(kKeptEvents);
  for (FlightRank& rank : flight_.ranks)
    if (const FlightRank* known = now.of(rank.rank); known != nullptr && mirrors_.is_mirrored(rank.rank)) rank = *known;
  folder_->keep_flight(flight_json(flight_), serialize_job(running_.job));
}

std::string Observer::where(int rank) {
  const RecorderHeader* recorder = running_.recorder_of(rank);
  return recorder == nullptr || running_.job.classes.empty() ? "" : where_is(running_.job, rank, *recorder);
}

void Observer::ended(int exit_code, bool begins_again) {
  log_info("launch", "the ranks of this node have ended, exit code {}", exit_code);
  if (running_.recorders.empty()) return;
  if (failed_) reader_.keep_first(static_cast<size_t>(running_.topology.here().ranks));
  tick();
  show_steps(UINT64_MAX);
  for (View* view : views_) view->ended(exit_code, begins_again);
  warn_of_losses();
}

int Observer::finish(int exit_code) {
  const double patience_s = exit_code == 0 ? 60 : 5;
  for (View* view : views_) view->finish(patience_s);
  console_.finish(patience_s);
  warn_of_losses();
  console_.finish(1);
  return exit_code == 0 && incomplete_ ? static_cast<int>(Exit::check_failed) : exit_code;
}

// Reports each loss once.
void Observer::warn_of_losses() {
  std::vector<IncompleteOutput> all;
  if (!console_.failure().empty()) all.push_back({"standard output is incomplete: " + console_.failure()});
  for (View* view : views_)
    for (IncompleteOutput& loss : view->losses()) all.push_back(std::move(loss));
  for (const IncompleteOutput& loss : all) {
    incomplete_ = incomplete_ || loss.fails;
    if (warned_of_.insert(loss.sentence).second) console_.warn(fmt::format("prun: {}\n", loss.sentence));
  }
}

}  // namespace prun
