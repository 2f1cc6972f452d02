// Progress of a running job: one live line on a terminal, and plain lines for logs (console.h).
//
// Plain lines show the first and the last step, steps with an evaluation, and of the others every K-th one
// (--log-every K), or without K at most one per second, so that the log of a fast job does not fill the disk. Before
// the first step they show what the ranks do, ever more rarely.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/terminal.h"
#include "ir/program.h"
#include "watch/steps.h"

namespace prun {

class Progress {
 public:
  // `every`: K; 0 = none.
  explicit Progress(Screen screen, int64_t every = 0) : screen_(std::move(screen)), every_(every) {}
  void begin(const Program& program, int ranks);
  void waiting(std::string_view what);  // before the first step: "joining", "initial weights"
  void step(const MergedStep& step);
  void redraw();  // after steps: draws the latest one on a live terminal
  void clear();   // before other output to the terminal; the next redraw restores the line
  void end();     // removes the live line
  std::string evaluation_text(const MergedStep& evaluation) const;  // "  evaluated 4.1000 (accuracy 0.2000)"
  bool silent() const { return silent_; }

 private:
  std::string text(const MergedStep& step, const MergedStep& evaluated) const;
  void draw(const std::string& line);

  Screen screen_;
  int64_t every_;
  int64_t steps_ = 0, tokens_per_step_ = 0;
  std::string word_;
  int ranks_ = 1;
  std::vector<std::string> named_, eval_named_;
  bool silent_ = false;  // a program without a loss prints its own output
  bool drawn_ = false, dirty_ = false;
  double last_line_ = -1e9;
  double begin_ = 0, next_waiting_line_ = 10;  // plain lines before the first step come after 10 s, 20 s, 40 s, ..
  double step_time_ = 0;                       // smoothed, for rate and remaining time
  MergedStep latest_, evaluated_;              // evaluated_: the latest with an evaluation
  std::string shown_;
};

}  // namespace prun
