#include "bar.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace prun {

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
