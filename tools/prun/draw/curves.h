// Loss and throughput of a run, step by step: the rows of --metrics (README.md of tools/prun names their keys).
#pragma once
#include <string>
#include <vector>

namespace prun::draw {

struct Curve {
  std::string name;                      // the run's id, or the file
  std::vector<double> step, loss, rate;  // rate: tokens or samples a second; NaN: not known
  std::vector<double> eval_step, eval_loss;
};

// Throws usage_error: not readable, a line that is no row, or no rows at all.
Curve read_curve(const std::string& path, const std::string& name);

}  // namespace prun::draw
