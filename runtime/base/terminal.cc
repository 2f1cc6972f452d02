#include "base/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "base/text.h"

namespace prun {

Screen standard_screen() {
  Screen screen;
  const char* term = std::getenv("TERM");
  const char* no_color = std::getenv("NO_COLOR");
  screen.live = isatty(STDERR_FILENO) == 1 && term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
  screen.color = screen.live && (no_color == nullptr || *no_color == '\0');
  screen.width = [] {
    winsize size{};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? static_cast<int>(size.ws_col) : 80;
  };
  screen.write = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  };
  screen.now = [] {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  };
  return screen;
}

Bar::~Bar() {
  if (drawn_) screen_.write("\r\x1b[K");
}

void Bar::advance(int64_t done, int64_t of) {
  const auto now = std::chrono::steady_clock::now();
  if (!screen_.live || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  const double part = static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, of));
  const size_t full = static_cast<size_t>(20 * part);
  screen_.write(fmt::format("\r\x1b[K{} [{}{}] {:.0f}% of {}", what_, std::string(full, '#'),
                            std::string(20 - full, ' '), 100 * part,
                            items_.empty() ? human_bytes(of) : fmt::format("{} {}", grouped(of), items_)));
}

}  // namespace prun
