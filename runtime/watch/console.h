// Where the words of a run go. What it found goes to standard output, so that `> log` and `| tee` have it; warnings and
// the live line go to standard error.
//
// On a terminal nothing stands twice: lines of steps are left to the live line where standard output is a terminal, and
// the live line to the lines where standard output is a pipe, which likely ends on the same terminal (`| tee`).
#pragma once
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "watch/outlet.h"
#include "watch/progress.h"

namespace prun {

class Console {
 public:
  // `output_taken`: rows of metrics have standard output (--metrics -); then words go to standard error.
  // `quiet`: nothing is said or drawn but warnings and what the plan prints.
  explicit Console(bool output_taken, bool quiet = false);
  void say(std::string_view text);                // whole lines
  void print(std::string_view text);              // whole lines that the plan printed
  void warn(std::string_view text);               // whole lines, to standard error
  void relay(std::string_view text, bool error);  // what a rank wrote by itself, as it is
  Screen screen();                                // for Progress; `this` must stay where it is
  // Removes a live line, if one is drawn; called before each write. Null: nothing draws one.
  std::function<void()> before_line;
  void clear() const {
    if (before_line) before_line();
  }
  // Gets all lines, those of steps too, whatever the terminal shows.
  std::function<void(std::string_view)> log;
  void flush();                    // what could not be written at once, now and then
  void finish(double patience_s);  // the rest, as long as somebody reads
  // Why standard output is incomplete ("No space left on device"), else "".
  std::string failure() const;

 private:
  void step_line(std::string_view text);

  std::shared_ptr<Outlet> errors_, words_;  // the same one where both are one file
  bool quiet_;
  bool live_, terminal_;  // a live line can be drawn; words go to a terminal
};

}  // namespace prun
