// runs/<id>/: what a run leaves behind: plan and its modules, arguments, environment, metrics, log, a link to its
// checkpoints, and what ended it. tools/prun/README.md lists the files.
//
// Surprising fact: a run that nobody asked to keep is held in memory, and gets its folder when it fails after its first
// step.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/lineage.h"
#include "ir/program.h"
#include "launch/failure.h"
#include "watch/output_file.h"
#include "watch/steps.h"
#include "watch/view.h"
#include "watch/watch_spec.h"

namespace prun {

inline constexpr const char* kRunsFolder = "runs";  // where runs go that --runs does not name a folder for
inline constexpr const char* kRunFile = "run.json";
inline constexpr const char* kRunLog = "log.txt";           // locked while the run goes on
inline constexpr const char* kFlightFile = "flight.json";   // of a run that failed: flight.h
inline constexpr const char* kProgramFile = "program.bin";  // beside it: the job that its numbers mean
inline constexpr const char* kFailureFile = "failure.json";
inline constexpr const char* kStacksFile = "stacks.txt";  // what the kernel knew of the ranks of a job that hung
inline constexpr int kRunFormat = 1;                      // raised when `prun runs` of before would misread

// A file of a run, or its last lines while there is no folder for it.
class KeptLines {
 public:
  void write(std::string_view text);
  void flush();
  void open(const std::string& path);  // throws as OutputFile
  bool empty() const { return file_ == nullptr && lines_.empty(); }
  const OutputFile* file() const { return file_.get(); }

 private:
  std::deque<std::string> lines_;
  std::unique_ptr<OutputFile> file_;
};

class RunFolder final : public View {
 public:
  explicit RunFolder(const WatchSpec& spec);  // lives as long as this
  ~RunFolder() override;
  // The job is known, and no rank has started. Makes the folder where --runs or --checkpoint asks for it. Throws
  // usage_error where --runs names one that cannot be written; without --runs that is only said.
  void begin(const Job& job, const std::map<std::string, std::string>& modules);
  // Records the lineage of the run's first checkpoint in run.json.
  void begins_with(const checkpoint::Lineage& lineage);
  void step(const MergedStep& step) override;
  void row(std::string_view row) override;
  void log(std::string_view lines);
  void flush() override;
  void event(const std::string& line);  // of events.jsonl, with its newline
  void rank_output(int rank, std::string_view text);
  void failed(const Failure& failure) override;
  // What the flight recorders showed when the run failed, and the job that they mean.
  void keep_flight(std::string flight, std::string program);
  void keep_stacks(std::string stacks) { stacks_ = std::move(stacks); }  // of a job that hung: kStacksFile
  const std::string& id() const { return id_; }
  const std::string& path() const { return path_; }  // "": there is no folder (yet)
  // Returns a line for the user, with its newline: where the folder is, where nobody named one. "": nothing.
  std::string end(int exit_code);

 private:
  void make(const std::string& folder);
  void write_plan();
  void write_about();
  std::string about_text(int exit_code) const;
  void write_failure() const;

  const WatchSpec& spec_;
  std::string id_, path_, job_text_, trouble_;
  std::map<std::string, std::string> modules_;  // of the plan, by their path from its folder
  checkpoint::Lineage lineage_;
  double started_ = 0;
  uint64_t steps_ = 0;
  MergedStep first_, last_;
  Failure failure_;
  int exit_code_ = -1;  // not yet
  std::string flight_, program_, stacks_;
  KeptLines metrics_, log_, events_;
  std::map<int, KeptLines> rank_logs_;
};

}  // namespace prun
