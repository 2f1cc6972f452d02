// Options of `prun draw` besides its operands.
#pragma once
#include <climits>
#include <string>
#include <vector>

#include "job/job_spec.h"
#include "option_table.h"

namespace prun {

struct DrawOptions {
  JobSpec job;
  std::string cluster;                // cluster on which plans are simulated; "": unit costs
  std::vector<std::string> operands;  // plans, traces, metrics or runs to draw
  bool json = false;
  std::string out;    // "": text
  std::string title;  // "": derived from the operands
  int first_step = 0, last_step = INT_MAX;
  bool text = false;
};

void declare_draw(OptionTable& table, DrawOptions& options);
// Throws usage_error if there is nothing to draw, or for an unknown form.
void check_draw_options(const DrawOptions& options);

}  // namespace prun
