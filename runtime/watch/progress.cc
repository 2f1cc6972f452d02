// The rate is an exponential moving average, so that the line does not flicker; the first step, which includes warm-up,
// counts only until the second.
#include "watch/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/text.h"

namespace prun {

void Progress::begin(const Program& program, int ranks) {
  steps_ = program.schedule.steps;
  tokens_per_step_ = program.tokens_per_step;
  word_ = program.sample_word;
  ranks_ = ranks;
  silent_ = program.step().loss < 0;
  named_ = step_names(program);
  eval_named_ = evaluation_names(program);
  begin_ = screen_.now();
}

void Progress::waiting(std::string_view what) {
  if (silent_ || step_time_ != 0) return;
  if (screen_.live) return draw(fmt::format("{}: {}", counted(ranks_, "rank"), what));
  const double waited = screen_.now() - begin_;
  if (waited < next_waiting_line_) return;
  next_waiting_line_ *= 2;
  screen_.line(fmt::format("{}: {}, {:.0f} s since the start\n", counted(ranks_, "rank"), what, waited));
}

std::string Progress::evaluation_text(const MergedStep& evaluation) const {
  std::string text = fmt::format("  evaluated {:.4f}", evaluation.eval_loss);
  for (size_t i = 0; i < eval_named_.size(); ++i)
    text += fmt::format("{}{} {:.4f}", i == 0 ? " (" : ", ", eval_named_[i], evaluation.eval_named[i]);
  return text + (eval_named_.empty() ? "" : ")");
}

void Progress::step(const MergedStep& step) {
  if (silent_) return;
  step_time_ = step.step < 2 || step_time_ == 0 ? step.time_s : 0.8 * step_time_ + 0.2 * step.time_s;
  latest_ = step;
  if (step.evaluated()) evaluated_ = step;
  dirty_ = true;
  const int64_t done = static_cast<int64_t>(step.step) + 1;
  const bool edge = done == 1 || done == steps_ || step.evaluated();
  if (!edge && (every_ > 0 ? done % every_ != 0 : screen_.now() - last_line_ < 1.0)) return;
  last_line_ = screen_.now();
  screen_.line(text(step, step) + "\n");
}

std::string Progress::text(const MergedStep& step, const MergedStep& evaluated) const {
  const int64_t done = static_cast<int64_t>(step.step) + 1;
  const std::string total = std::to_string(steps_);
  std::string line = fmt::format("step {:>{}}/{}  loss {:.4f}", done, total.size(), total, step.loss);
  for (size_t i = 0; i < named_.size(); ++i) line += fmt::format("  {} {:.4f}", named_[i], step.named[i]);
  if (evaluated.evaluated()) line += evaluation_text(evaluated);
  line += "  " + human_seconds(step_time_);
  if (tokens_per_step_ > 0) {
    line += fmt::format("  {} {}/s", short_number(static_cast<double>(tokens_per_step_) / std::max(step_time_, 1e-9)),
                        word_);
  }
  if (step.comm_s > 0 && ranks_ > 1)
    line += fmt::format("  {:.0f}% of communication exposed", 100 * std::min(1.0, step.exposed_s / step.comm_s));
  if (done < steps_) line += fmt::format("  ETA {}", human_seconds(static_cast<double>(steps_ - done) * step_time_));
  return line;
}

void Progress::redraw() {
  if (!screen_.live || silent_ || !(dirty_ || !drawn_) || step_time_ == 0) return;
  draw(text(latest_, evaluated_));
  dirty_ = false;
}

void Progress::draw(const std::string& line) {
  if (drawn_ && line == shown_) return;
  // The last column remains free, because writing there wraps on some terminals.
  const size_t room = static_cast<size_t>(std::max(screen_.width() - 1, 1));
  const std::string fitting = line.substr(0, room);
  screen_.write("\r\x1b[K" + (screen_.color ? "\x1b[36m" + fitting + "\x1b[0m" : fitting));
  shown_ = line;
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  screen_.write("\r\x1b[K");
  drawn_ = false;
}

void Progress::end() { clear(); }

}  // namespace prun
