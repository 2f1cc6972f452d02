// Rendering of errors, and the abort of a broken invariant.
#include "base/error.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>

namespace prun {

std::string Site::text() const { return known() ? file.str() + ":" + std::to_string(line) : std::string(); }

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

Error no_thread(const std::system_error& why) {
  return Error(Exit::usage,
               std::string("cannot start a thread: ") + why.code().message() +
                   " (limit on processes, see ulimit -u and the cgroup's pids.max); use fewer ranks (--nproc)");
}

Error error_of(const std::exception& caught) {
  if (const auto* error = dynamic_cast<const Error*>(&caught)) return *error;
  if (dynamic_cast<const std::bad_alloc*>(&caught) != nullptr)
    return Error(Exit::out_of_memory, "an allocation failed: no memory, or over a limit (ulimit -v)");
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&caught))
    return usage_error(file->path1().string() + ": " + file->code().message());
  const auto* system = dynamic_cast<const std::system_error*>(&caught);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) return no_thread(*system);
  return Error(Exit::rank_crash, caught.what());
}

}  // namespace prun
