// Options of the views: content and destinations.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "launch/failure.h"
#include "watch/metrics_file.h"

namespace prun {

// --trace-steps A:B: the steps that a trace keeps.
struct StepWindow {
  int64_t first = 0, last = std::numeric_limits<int64_t>::max();  // from 0, both inclusive
  bool given = false;
  bool holds(int64_t step) const { return step >= first && step <= last; }
};

// Parses "100:200", "100:", ":200" or "100", from 1 as on the screen. Throws usage_error.
StepWindow parse_step_window(const std::string& text, const std::string& option = "--trace-steps");

struct WatchSpec {
  // Options from the command line.
  bool quiet = false, json = false;
  int log_every = 0;  // show every K-th step; 0 = at most one per second
  MetricsSettings metrics;
  std::string trace;  // path; "" = none
  StepWindow trace_steps;
  std::string runs;                // parent of this run's folder; "" = not given
  std::string name;                // name of this run, part of its folder's name; "" = the plan's
  std::vector<std::string> words;  // the command line

  // Values of the job, filled in before the views are created.
  std::string plan, plan_file;  // as typed; the path of the file
  std::map<std::string, std::string> settings;
  JobCommand command;
  std::string device, binding;
  int nodes = 1, node = 0, nproc = 1;
  double deadline_s = 60;                 // limit of a collective
  bool runs_graphs = false;               // the device replays steps as graphs, except under --trace
  bool explains_non_finite = false;       // a failed check names the op, so the views do not
  bool names_skipped = false;             // steps that updated nothing are reported
  std::string checkpoints, resumed_from;  // folders; "" = none
  int64_t first_step = 0;
};

}  // namespace prun
