// The terminal on stderr: whether it can redraw a line, and a progress bar for commands that process many bytes or
// items.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace prun {

struct Screen {
  bool live = false;  // a terminal that can redraw a line
  bool color = false;
  std::function<int()> width;                   // columns; read again for every drawing
  std::function<void(std::string_view)> write;  // writes the live line, to stderr
  std::function<void(std::string_view)> line;   // writes a plain line
  std::function<double()> now;                  // seconds
};
// Examines stderr, TERM and NO_COLOR (https://no-color.org). Does not set `line`.
Screen standard_screen();

// A progress bar; draws nothing unless stderr is a terminal.
class Bar {
 public:
  explicit Bar(std::string what, std::string items = "") : what_(std::move(what)), items_(std::move(items)) {}
  ~Bar();  // removes the bar
  Bar(const Bar&) = delete;
  Bar& operator=(const Bar&) = delete;
  void advance(int64_t done, int64_t of);  // bytes or items

 private:
  std::string what_, items_;
  Screen screen_ = standard_screen();
  std::chrono::steady_clock::time_point last_;
  bool drawn_ = false;
};

}  // namespace prun
