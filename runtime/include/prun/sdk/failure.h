// A failure: thrown by the code of a plugin, stored in its requests, and written into a prun_result by `guarded`, which
// wraps every function of a table. No exception crosses the ABI.
#pragma once
#include <prun/transport.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace prun::sdk {

// Concatenates texts and numbers.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  [[maybe_unused]] const auto add = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>)
      text += std::to_string(part);
    else
      text += part;
  };
  (add(parts), ...);
  return text;
}

struct Failure : std::exception {
  prun_status status = PRUN_OK;  // PRUN_OK = no failure
  int culprit = -1;              // global rank, -1 = unknown; with PRUN_AGAIN the awaited rank
  std::string message;

  Failure() = default;
  Failure(prun_status status_, std::string message_) : status(status_), message(std::move(message_)) {}
  template <class... Parts>
  Failure(prun_status status_, int culprit_, const Parts&... parts)
      : status(status_), culprit(culprit_), message(concat(parts...)) {}

  explicit operator bool() const { return status != PRUN_OK; }
  const char* what() const noexcept override { return message.c_str(); }
};

// Returns PRUN_ESYSTEM with a message such as "bind: Address already in use".
inline Failure system_failure(std::string_view what, int error = errno) {
  return {PRUN_ESYSTEM, -1, what, ": ", std::strerror(error)};
}

// Copies as much as fits; `room` includes the terminating zero.
inline void copy_text(std::string_view text, char* to, size_t room) {
  if (room == 0) return;
  const size_t used = std::min(room - 1, text.size());
  std::memcpy(to, text.data(), used);
  to[used] = '\0';
}

// Writes the failure into `result`, which may be null, or smaller than prun_result is here. Returns the status.
inline prun_status report(const Failure& failure, prun_result* result) {
  if (result == nullptr || result->size <= offsetof(prun_result, message)) return failure.status;
  result->culprit = failure.culprit;
  copy_text(failure.message, result->message,
            std::min(result->size - offsetof(prun_result, message), sizeof result->message));
  return failure.status;
}

// Runs body(), which returns a prun_status, a Failure or nothing. Returns its status, or that of its exception.
template <class Body>
prun_status guarded(prun_result* result, const Body& body) {
  try {
    using Result = decltype(body());
    if constexpr (std::is_void_v<Result>) {
      body();
      return PRUN_OK;
    } else if constexpr (std::is_same_v<Result, Failure>) {
      const Failure failure = body();
      return failure.status == PRUN_OK ? PRUN_OK : report(failure, result);
    } else {
      return body();
    }
  } catch (const Failure& failure) {
    return report(failure, result);
  } catch (const std::bad_alloc&) {
    return report({PRUN_ENOMEM, "out of memory"}, result);
  } catch (const std::exception& error) {
    return report({PRUN_ESYSTEM, error.what()}, result);
  }
}

}  // namespace prun::sdk
