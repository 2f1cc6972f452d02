#include "watch/console.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "base/text.h"

namespace prun {
namespace {

bool is_pipe(int descriptor) {
  struct stat info;
  return fstat(descriptor, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
}

bool same_file(int a, int b) {
  struct stat of_a, of_b;
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

}  // namespace

Console::Console(bool output_taken, bool quiet)
    : errors_(std::make_shared<Outlet>(STDERR_FILENO)),
      words_(output_taken || same_file(STDOUT_FILENO, STDERR_FILENO) ? errors_
                                                                     : std::make_shared<Outlet>(STDOUT_FILENO)),
      quiet_(quiet),
      live_(!quiet && standard_screen().live && (output_taken || !is_pipe(STDOUT_FILENO))),
      terminal_(isatty(output_taken ? STDERR_FILENO : STDOUT_FILENO) == 1) {
  std::fflush(stdout);  // keeps the order with earlier output
}

void Console::say(std::string_view text) {
  clear();
  const std::string shown = printable(text);
  if (!quiet_) words_->write(shown);
  if (log) log(shown);
}

void Console::print(std::string_view text) {
  clear();
  const std::string shown = printable(text);
  words_->write(shown);
  if (log) log(shown);
}

void Console::relay(std::string_view text, bool error) {
  clear();
  (error ? errors_ : words_)->write(text);
}

void Console::warn(std::string_view text) {
  clear();
  const std::string shown = printable(text);
  errors_->write(shown);
  if (log) log(shown);
}

void Console::step_line(std::string_view text, bool history) {
  if (history) clear();
  if (!quiet_ && (history || !(live_ && terminal_))) words_->write(text);
  if (log) log(text);
}

void Console::flush() {
  errors_->flush();
  words_->flush();
}

void Console::finish(double patience_s) {
  words_->finish(patience_s);
  errors_->finish(patience_s);
}

std::string Console::failure() const {
  if (!words_->failure().empty()) return words_->failure();
  return words_->dropped() > 0
             ? fmt::format("{} were not read in time", counted(static_cast<int64_t>(words_->dropped()), "line"))
             : "";
}

Screen Console::screen(bool history) {
  Screen screen = standard_screen();
  screen.live = live_;
  screen.color = screen.color && live_;
  // A picture is dropped while output is queued, because it would be outdated.
  screen.write = [this](std::string_view text) {
    if (errors_->idle()) errors_->write(text);
  };
  screen.line = [this, history](std::string_view text) { step_line(text, history); };
  return screen;
}

}  // namespace prun
