// Destinations of a run's messages. Results go to standard output, for `> log` and `| tee`; warnings and the live line
// go to standard error.
//
// A terminal shows each step once: step lines are omitted if standard output is a terminal with a live line, except
// with --log-every. The live line is omitted if standard output is a pipe, which likely ends on the same terminal
// (`| tee`).
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
  // `output_taken`: rows of metrics use standard output (--metrics -), so messages go to standard error. `quiet`:
  // prints only warnings and the plan's own output.
  explicit Console(bool output_taken, bool quiet = false);
  void say(std::string_view text);                // prints whole lines
  void print(std::string_view text);              // prints whole lines of the plan
  void warn(std::string_view text);               // prints whole lines to standard error
  void relay(std::string_view text, bool error);  // a rank's own output, unchanged
  // Returns the screen of Progress; `this` must outlive it at the same address. `history`: step lines appear above the
  // live line, too.
  Screen screen(bool history = false);
  // Removes the live line; called before each write. Null: there is no live line.
  std::function<void()> before_line;
  void clear() const {
    if (before_line) before_line();
  }
  // Receives all lines, including step lines that the terminal omits.
  std::function<void(std::string_view)> log;
  bool behind() const { return words_->behind() || errors_->behind(); }
  void flush();                    // writes queued output; call regularly
  void finish(double patience_s);  // writes queued output as long as it is read
  // Returns why standard output is incomplete ("No space left on device"), or "".
  std::string failure() const;

 private:
  void step_line(std::string_view text, bool history);

  std::shared_ptr<Outlet> errors_, words_;  // the same object if both are one file
  bool quiet_;
  bool live_, terminal_;  // a live line can be drawn; messages go to a terminal
};

}  // namespace prun
