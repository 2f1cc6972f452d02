// All that one `prun draw` draws, where it comes from, and its three forms.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "draw/settings.h"
#include "draw/timeline.h"

namespace prun::draw {

// Loss and throughput of a run, step by step: the rows of --metrics (README.md of tools/prun names their keys).
struct Curve {
  std::string name;                      // the run's id, or the file
  std::vector<double> step, loss, rate;  // rate: tokens or samples a second; NaN: not known
  std::vector<double> eval_step, eval_loss;
};

struct Drawing {
  std::string title;
  std::vector<std::string> notes;  // what could not be drawn, and what would change that
  std::vector<Timeline> timelines;
  std::vector<Curve> curves;
  bool one_axis = false;  // text: all timelines have the longest one's axis
};

// From the words behind `prun draw` to what is drawn: plans, traces, rows of metrics, folders of runs. Throws
// usage_error for anything else, and as build_job for plans.
Drawing read_inputs(DrawOptions& options);

std::string page_of(const Drawing& drawing);                // self-contained HTML
std::string picture_of(const Drawing& drawing);             // SVG, of the first timeline, or of the curves
std::string text_of(const Drawing& drawing, int columns);   // for a terminal
nlohmann::ordered_json summary_of(const Drawing& drawing);  // --json

// To NAME.html or NAME.svg. Throws usage_error where that cannot be written.
void write_drawing(const Drawing& drawing, const std::string& out);

// Throws usage_error: not readable, a line that is no row, or no rows at all.
Curve read_curve(const std::string& path, const std::string& name);

}  // namespace prun::draw
