// What `prun draw` is asked for beside what it draws.
#pragma once
#include <climits>
#include <string>
#include <vector>

#include "job/job_spec.h"
#include "option_table.h"

namespace prun {

struct DrawOptions {
  JobSpec job;
  std::string cluster;                // where a plan is simulated; "": unit costs
  std::vector<std::string> operands;  // what to draw
  bool json = false;
  std::string out;    // "": text
  std::string title;  // "": the words that name what is drawn
  int first_step = 0, last_step = INT_MAX;
  bool text = false;
};

void declare_draw(OptionTable& table, DrawOptions& options);
// Throws usage_error: nothing to draw, an unknown form.
void check_draw_options(const DrawOptions& options);

}  // namespace prun
