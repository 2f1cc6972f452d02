// Shows a running job: reads the flight recorders of the local ranks and never asks a rank.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "exec/recorder.h"
#include "ir/program.h"
#include "launch/launch.h"
#include "watch/console.h"
#include "watch/events.h"
#include "watch/memory_use.h"
#include "watch/metrics.h"
#include "watch/mirror.h"
#include "watch/progress.h"
#include "watch/rank_watch.h"
#include "watch/run_folder.h"
#include "watch/run_result.h"
#include "watch/slow_ranks.h"
#include "watch/status_publisher.h"
#include "watch/steps.h"
#include "watch/summary.h"
#include "watch/trace.h"
#include "watch/watch_spec.h"

namespace prun {

class Observer final : public LaunchObserver {
 public:
  // Throws usage_error when the trace or the metrics cannot be written. `folder` outlives this; null: nothing is kept.
  Observer(const WatchSpec& spec, double peak_flops, RunFolder* folder = nullptr);
  static uint64_t recorder_capacity(const WatchSpec& spec) { return spec.trace.empty() ? 1u << 12 : 1u << 16; }
  void job_received(std::string_view bytes) override { received_ = written_out(parse_job(bytes)); }
  void placed(const Topology& topology, bool mirror_all) override;
  void started(const std::vector<int>& ranks, const std::vector<int>& pids,
               const std::vector<void*>& recorders) override;
  void tick() override;
  void line(int rank, const std::string& text) override;
  std::vector<std::pair<int, std::string>> mirror(bool last) override;
  void mirrored(int rank, std::string_view bytes) override;
  void abandoned(int rank, int64_t step, std::string_view words) override;
  void output(int rank, bool error, std::string_view text, bool here) override;
  std::optional<Failure> hung() override;
  void ending() override;
  void failed(const Failure& failure) override;
  void message(const std::string& text) override;
  const std::vector<int64_t>& skipped_steps() const { return skipped_steps_; }
  int64_t not_finite_step() const { return not_finite_step_; }  // that ended the attempt; -1: something else did
  void stopping(int signal) override { stop_signal_ = signal; }
  int stop_signal() const { return stop_signal_; }  // signal that ended the attempt early; 0 = none
  void begin_after(int64_t step);  // before ranks start: the job goes on from there, which was not known at first
  void say(const std::string& text) { console_.say(text); }
  // The run is over: writes what has not been read yet, as long as somebody reads. Returns its exit code, 1 instead of
  // 0 where output is lost.
  int finish(int exit_code);
  std::string where(int rank) override;
  std::string result(int exit_code) const;  // run_result.h
  void ended(int exit_code, bool begins_again) override;

  std::function<void(const std::string&)> told;  // gets the lines of ranks; null: they go to standard output
  Job job;                                       // of node 0; the other nodes show nothing

 private:
  void watch();
  std::vector<WatchedRank> all_ranks(const std::vector<int>& pids);
  void keep_flight();
  void warn(const std::string& sentence);  // of what the job survives
  void publish();
  void announce();
  void announce_transports();
  std::vector<DeviceUse> device_use() const;
  void warn_of_lost_output();
  uint64_t memory_bytes();  // the most of any local rank
  void add_row(const std::string& row);
  void tell_not_finite(const MergedStep& step);
  void tell_skipped(const MergedStep& step);

  Job received_;  // of the other nodes: names the op of a failed rank
  const WatchSpec& spec_;
  Topology topology_;
  std::vector<int> ranks_;
  std::vector<RecorderHeader*> recorders_;
  std::optional<RankWatch> watch_;
  std::optional<Events> events_;
  StatusPublisher status_;
  SlowRanks slow_;
  Flight flight_;                      // when the end was decided
  std::vector<MirrorSource> sources_;  // on other nodes: of local ranks
  std::map<int, MirrorCopy> copies_;   // on node 0: of other nodes' ranks
  std::vector<std::pair<int, std::string>> last_news_;
  uint64_t next_sample_ns_ = 0;
  std::vector<int64_t> skipped_steps_;
  int64_t not_finite_step_ = -1;
  int stop_signal_ = 0;
  bool mirror_all_ = false;
  bool told_transports_ = false, failed_ = false, told_hang_ = false, told_not_finite_;
  StepReader steps_;
  double peak_flops_;  // of all devices of the job; 0 where it is not known
  StepWork work_;
  MemoryWatch memory_;
  RunFolder* folder_;
  Console console_;
  Progress progress_;
  Summary summary_;
  RunResult result_;
  std::set<std::string> said_lost_;  // files
  std::optional<Metrics> metrics_;
  std::optional<Trace> trace_;
};

}  // namespace prun
