// runs/<id>/: the files of a run: plan and its modules, arguments, environment, metrics, log, a link to its
// checkpoints, and its end. tools/prun/README.md lists them.
//
// A run without --runs or --checkpoint is held in memory, and gets a folder only if it fails after its first step.
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

inline constexpr const char* kRunsFolder = "runs";  // default of --runs
inline constexpr const char* kRunFile = "run.json";
inline constexpr const char* kRunLog = "log.txt";           // locked while the run is active
inline constexpr const char* kFlightFile = "flight.json";   // flight of a failed run (flight.h)
inline constexpr const char* kProgramFile = "program.bin";  // the job to which its op numbers refer
inline constexpr const char* kFailureFile = "failure.json";
inline constexpr const char* kStacksFile = "stacks.txt";  // kernel state of the ranks of a hung job (kernel_stacks.h)
inline constexpr int kRunFormat = 1;                      // raised when an older `prun runs` would misread the file

// A file of a run, or its last lines as long as there is no folder.
class KeptLines {
 public:
  void write(std::string_view text);
  void flush();
  void open(const std::string& path);  // throws like OutputFile
  bool empty() const { return file_ == nullptr && lines_.empty(); }
  const OutputFile* file() const { return file_.get(); }

 private:
  std::deque<std::string> lines_;
  std::unique_ptr<OutputFile> file_;
};

class RunFolder final : public View {
 public:
  explicit RunFolder(const WatchSpec& spec);  // `spec` outlives this
  ~RunFolder() override;
  // Call before ranks start. Creates the folder if --runs or --checkpoint requests it. Throws usage_error if the folder
  // of --runs cannot be written; without --runs that is only reported.
  void begin(const Job& job, const std::map<std::string, std::string>& modules);
  // Records the lineage of the run's first checkpoint in run.json.
  void begins_with(const checkpoint::Lineage& lineage);
  void step(const MergedStep& step) override;
  void row(std::string_view row) override;
  void log(std::string_view lines);
  void flush() override;
  void event(const std::string& line);  // a line of events.jsonl, with its newline
  void rank_output(int rank, std::string_view text);
  void failed(const Failure& failure) override;
  // Stores the flight of the failed run, and the job to which it refers.
  void keep_flight(std::string flight, std::string program);
  void keep_stacks(std::string stacks) { stacks_ = std::move(stacks); }  // for a hung job: kStacksFile
  const std::string& id() const { return id_; }
  const std::string& path() const { return path_; }  // "": there is no folder (yet)
  // Returns a line with the folder's path, with its newline, if the run failed; "": none.
  std::string end(int exit_code);

 private:
  void make(const std::string& folder);
  void write_plan();
  void write_about();
  std::string about_text(int exit_code) const;
  void write_failure() const;

  const WatchSpec& spec_;
  std::string id_, path_, job_text_, trouble_;
  std::map<std::string, std::string> modules_;  // by path relative to the plan's folder
  checkpoint::Lineage lineage_;
  double started_ = 0;
  uint64_t steps_ = 0;
  MergedStep first_, last_;
  Failure failure_;
  int exit_code_ = -1;  // -1: still running
  std::string flight_, program_, stacks_;
  KeptLines metrics_, log_, events_;
  std::map<int, KeptLines> rank_logs_;
};

}  // namespace prun
