// The content of one `prun draw`, its sources, and its three output forms.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "draw/settings.h"
#include "draw/timeline.h"

namespace prun::draw {

// Loss and throughput of a run by step, from the rows of --metrics (README.md of tools/prun lists their keys).
struct Curve {
  std::string name;                      // the run's id, or the file name
  std::vector<double> step, loss, rate;  // rate: tokens or samples per second; NaN = unknown
  std::vector<double> eval_step, eval_loss;
};

struct Drawing {
  std::string title;
  std::vector<std::string> notes;  // items that could not be drawn, with a remedy
  std::vector<Timeline> timelines;
  std::vector<Curve> curves;
  bool one_axis = false;  // text form: all timelines have the longest one's time axis
};

// Reads the operands of `prun draw`: plans, traces, rows of metrics, folders of runs. Throws usage_error for any other
// operand, and for plans like build_job.
Drawing read_inputs(DrawOptions& options);

std::string page_of(const Drawing& drawing);                // self-contained HTML
std::string picture_of(const Drawing& drawing);             // SVG of the first timeline, or of the curves
std::string text_of(const Drawing& drawing, int columns);   // for a terminal
nlohmann::ordered_json summary_of(const Drawing& drawing);  // --json

// Writes NAME.html or NAME.svg. Throws usage_error if it cannot be written.
void write_drawing(const Drawing& drawing, const std::string& out);

// Throws usage_error for an unreadable file, a malformed line, or a file without rows.
Curve read_curve(const std::string& path, const std::string& name);

}  // namespace prun::draw
