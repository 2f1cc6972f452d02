// The one exception type of prun, and the exit codes that users' scripts may rely on.
//
// Throw for every failure that a plan's author or the environment can cause. Callers prepend context with
// Error::prefix. Failures that only a bug of prun can cause abort through PRUN_CHECK. Errors are caught in three
// places: main, the Lua thunk and the entry of a rank.
#pragma once
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "base/shared_text.h"

namespace prun {

// Exit codes are stable; README.md has the table with the reasons.
enum class Exit : int {
  ok = 0,
  check_failed = 1,
  usage = 2,
  plan = 3,
  rank_crash = 10,
  hang = 11,
  mismatch = 12,
  join = 13,
  transport = 14,
  checkpoint_write = 15,
  checkpoint_invalid = 16,
  corrupt_link = 17,
  out_of_memory = 18,
  script_limit = 19,
  non_finite = 20,
  feed = 21,
  preempted = 75,  // stopped by SIGTERM after a checkpoint: --resume auto continues
};

// A location in a plan, strategy or model, referenced by every op, tensor and message.
struct Site {
  SharedText file;  // as the user typed it, or below lua/ for prun's own; empty = unknown
  int line = 0;
  bool known() const { return !file.empty(); }
  std::string text() const;  // "plans/zero3.lua:12"; "" = unknown
  bool operator==(const Site&) const = default;
};

class Error : public std::exception {
 public:
  Error(Exit code, std::string message, std::optional<Site> site = std::nullopt);
  const char* what() const noexcept override { return text_.c_str(); }  // "file:line: message"
  Exit code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::optional<Site>& site() const { return site_; }
  // Adds "context: " in front of the message.
  Error& prefix(std::string_view context);
  // true: another rank is probably the cause, so the launcher waits briefly for that rank's error.
  bool effect = false;
  int peer = -1;      // rank whose established link was lost; -1 = none
  int64_t step = -1;  // step with a non-finite number, counted from 0; -1 = none

 private:
  void render();
  Exit code_;
  std::string message_;
  std::optional<Site> site_;
  std::string text_;
};

// Returns the error for a std::thread that could not be started, most likely because of `ulimit -u`.
Error no_thread(const std::system_error& why);
// Converts any exception to an Error, with a fitting message and code: memory, threads, files.
Error error_of(const std::exception& caught);

inline Error usage_error(std::string message) { return Error(Exit::usage, std::move(message)); }
inline Error plan_error(std::string message, std::optional<Site> site = std::nullopt) {
  return Error(Exit::plan, std::move(message), std::move(site));
}

[[noreturn]] void check_failed(const char* expression, const char* file, int line, const std::string& numbers);

}  // namespace prun

// Checks an invariant that only a bug of prun can break. The second argument is a string with the numbers involved.
#define PRUN_CHECK(condition, numbers)                                                 \
  do {                                                                                 \
    if (!(condition)) ::prun::check_failed(#condition, __FILE__, __LINE__, (numbers)); \
  } while (0)
