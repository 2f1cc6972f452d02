#include "console.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace prun {
namespace {

bool is_pipe(int descriptor) {
  struct stat info;
  return fstat(descriptor, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
}

}  // namespace

Console::Console(bool output_taken, bool quiet)
    : words_(output_taken ? stderr : stdout),
      quiet_(quiet),
      live_(!quiet && standard_screen().live && (output_taken || !is_pipe(STDOUT_FILENO))),
      terminal_(isatty(fileno(words_)) == 1) {}

void Console::write(std::string_view text) {
  if (!failure_.empty()) return;
  if (std::fwrite(text.data(), 1, text.size(), words_) != text.size() || std::fflush(words_) != 0)
    failure_ = std::strerror(errno);
}

void Console::say(std::string_view text) {
  if (!quiet_) write(text);
  if (log) log(text);
}

void Console::print(std::string_view text) {
  write(text);
  if (log) log(text);
}

void Console::warn(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  if (log) log(text);
}

void Console::step_line(std::string_view text) {
  if (!quiet_ && !(live_ && terminal_)) write(text);
  if (log) log(text);
}

Screen Console::screen() {
  Screen screen = standard_screen();
  screen.live = live_;
  screen.color = screen.color && live_;
  screen.line = [this](std::string_view text) { step_line(text); };
  return screen;
}

}  // namespace prun
