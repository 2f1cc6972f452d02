// Shows a running job: reads the flight recorders of its ranks, without involving them, and passes each step to the
// views.
#pragma once
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/launch.h"
#include "watch/console.h"
#include "watch/events.h"
#include "watch/metrics.h"
#include "watch/mirror.h"
#include "watch/not_finite.h"
#include "watch/run_folder.h"
#include "watch/run_result.h"
#include "watch/screen_view.h"
#include "watch/status_publisher.h"
#include "watch/trace.h"
#include "watch/view.h"
#include "watch/watch_spec.h"
#include "watch/watchdog.h"

namespace prun {

class Observer final : public LaunchObserver {
 public:
  // Throws usage_error if the trace or the metrics cannot be written. `spec` and `folder` outlive this; null `folder`:
  // nothing is kept. `peak_flops`: sum over all devices of the job; 0 = unknown.
  Observer(const WatchSpec& spec, double peak_flops, RunFolder* folder = nullptr);
  static uint64_t recorder_capacity(const WatchSpec& spec) { return spec.trace.empty() ? 1u << 12 : 1u << 16; }

  void job_received(std::string_view bytes) override { running_.job = written_out(parse_job(bytes)); }
  void placed(const Topology& topology, bool mirror_all) override;
  void started(const std::vector<int>& ranks, const std::vector<int>& pids,
               const std::vector<void*>& recorders) override;
  void tick() override;
  void line(int rank, const std::string& text) override;
  std::vector<std::pair<int, std::string>> mirror(bool last) override {
    return mirrors_.news(*watchdog_.watch(), last);
  }
  void mirrored(int rank, std::string_view bytes) override { mirrors_.put(*watchdog_.watch(), rank, bytes); }
  void abandoned(int rank, int64_t step, std::string_view words) override;
  void output(int rank, bool error, std::string_view text, bool here) override;
  std::optional<Failure> hung() override;
  void ending() override;
  void failed(const Failure& failure) override;
  void message(const std::string& text) override;
  void stopping(int signal) override { stop_signal_ = signal; }
  void ended(int exit_code, bool begins_again) override;
  std::string where(int rank) override;

  // Node 0: sets the job before its ranks start.
  void show(Job job);
  const Job& job() const { return running_.job; }
  // Call before ranks start if the job resumes after `step`, which was unknown at construction.
  void begin_after(int64_t step);
  void say(const std::string& text) { console_.say(text); }
  // Ends the run: writes queued output as long as it is read. Returns its exit code, 1 instead of 0 if output is lost.
  int finish(int exit_code);
  std::string result(int exit_code) const { return result_.text(running_.job, exit_code); }
  const NotFinite& not_finite() const { return not_finite_; }
  int stop_signal() const { return stop_signal_; }  // signal that ended the attempt early; 0 = none

  std::function<void(const MergedStep&)> evaluated;  // receives an evaluation before the first step; null: it is shown
  std::function<void(const std::string&)> told;      // receives the lines of ranks; null: they go to standard output

 private:
  void warn(const std::string& sentence);
  void keep_flight();
  bool show_steps(uint64_t most);
  void show_first(const MergedStep& evaluation);
  bool behind();
  void add_row(std::string_view row);
  void warn_of_losses();

  const WatchSpec& spec_;
  RunningJob running_;
  StepReader reader_;
  Mirrors mirrors_;
  Console console_;
  RunFolder* folder_;
  double peak_flops_;
  StepRows rows_;
  // The views.
  std::optional<Trace> trace_;
  Watchdog watchdog_;
  std::optional<Events> events_;
  StatusPublisher status_;
  ScreenView screen_;
  RunResult result_;
  std::optional<Metrics> metrics_;
  NotFinite not_finite_;
  std::vector<View*> views_;  // the enabled views, in calling order

  Flight flight_;  // at the time of the decision to end
  std::set<std::string> warned_of_;
  bool failed_ = false, incomplete_ = false;
  int stop_signal_ = 0;
};

}  // namespace prun
