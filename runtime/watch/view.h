// A view shows or stores a running job: the screen, the metrics, a trace, the folder of the run.
//
//   recorders of the ranks --> StepReader --> Observer --> step(), tick(), failed(), ... of each view
//
// The Observer calls all views in the order of its list, in the launcher's single thread. warning() and failed() may
// come before started(), the others come after it; finish() and losses() come even if no rank was started.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "exec/recorder.h"
#include "ir/program.h"
#include "launch/failure.h"
#include "launch/launch.h"
#include "watch/steps.h"

namespace prun {

// The job from its launcher's perspective: node 0 has all ranks, the other nodes only their own.
struct RunningJob {
  Topology topology;
  Job job;                                 // unrolled; node 0's, or as another node received it
  bool shown = false;                      // this is node 0, whose views show the job
  std::vector<int> ranks;                  // local ranks first
  std::vector<RecorderHeader*> recorders;  // by index in `ranks`
  std::vector<int> pids;                   // pids of local ranks

  const Program& program() const { return job.classes.front(); }
  // Returns the recorder of `rank`; null: unknown rank.
  RecorderHeader* recorder_of(int rank) const;
};

// An output that is incomplete.
struct IncompleteOutput {
  std::string sentence;
  bool fails = true;  // ends the run with Exit::check_failed
};

class OutputFile;
// Returns the loss of a file, or none if it is complete.
std::vector<IncompleteOutput> losses_of(const OutputFile& file);

class View {
 public:
  View() = default;
  virtual ~View() = default;
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  virtual void started(const RunningJob& /*job*/) {}        // the ranks run; `job` outlives the view's other calls
  virtual void tick() {}                                    // about every 50 ms
  virtual void step(const MergedStep& /*step*/) {}          // node 0: all ranks have completed it
  virtual void before_steps(const MergedStep& /*e*/) {}     // node 0: an evaluation before the first step
  virtual void row(std::string_view /*row*/) {}             // node 0: a row of metrics, with its newline
  virtual void flush() {}                                   // after the steps of a tick
  virtual bool behind() { return false; }                   // its reader is slow, so that further steps must wait
  virtual void warning(const std::string& /*sentence*/) {}  // the user is warned
  virtual void failed(const Failure& /*failure*/) {}        // the failure that ended the job
  virtual void ended(int /*exit_code*/, bool /*begins_again*/) {}  // the recorders are unmapped afterwards
  virtual void finish(double /*patience_s*/) {}                    // writes queued output as long as it is read
  virtual std::vector<IncompleteOutput> losses() const { return {}; }
};

}  // namespace prun
