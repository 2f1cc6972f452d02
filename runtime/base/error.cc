// Rendering of errors, and the abort of a broken invariant.
#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace prun {

std::string Site::text() const { return known() ? file + ":" + std::to_string(line) : std::string(); }

Error::Error(Exit code, std::string message, std::optional<Site> site)
    : code_(code), message_(std::move(message)), site_(std::move(site)) {
  render();
}

Error& Error::prefix(std::string_view context) {
  message_ = std::string(context) + ": " + message_;
  render();
  return *this;
}

void Error::render() { text_ = site_ && site_->known() ? site_->text() + ": " + message_ : message_; }

void check_failed(const char* expression, const char* file, int line, const std::string& numbers) {
  std::fprintf(stderr, "prun: internal error at %s:%d: %s does not hold (%s)\n", file, line, expression,
               numbers.c_str());
  std::abort();
}

}  // namespace prun
