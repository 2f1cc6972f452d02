// What the views of a running job show, and where they write it.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "watch/metrics_file.h"
#include "watch/step_window.h"

namespace prun {

struct WatchSpec {
  // The command line's.
  bool quiet = false, json = false;
  MetricsSettings metrics;
  std::string trace;  // path; "" = none
  StepWindow trace_steps;
  std::string runs;                // folder for the folder of this run; "" = none was named
  std::string name;                // of this run, in the name of its folder; "" = that of the plan
  std::vector<std::string> words;  // the command line

  // The job's, filled in before the views are made.
  std::string plan, plan_file;  // as typed; the path of the file
  std::map<std::string, std::string> settings;
  std::string command;  // to run the job again
  std::string device, binding;
  int nodes = 1, node = 0, nproc = 1;
  double deadline_s = 60;                 // of a collective
  bool explains_non_finite = false;       // a failed check names the op, so the views do not
  bool names_skipped = false;             // steps that updated nothing are reported
  std::string checkpoints, resumed_from;  // folders; "" = none
  int64_t first_step = 0;
};

}  // namespace prun
