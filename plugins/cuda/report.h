// Where exceptions of the plugin end: as a status, and a message in the caller's prun_result.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <string_view>

#include "failure.h"

namespace prun_cuda {

// Copies what fits; `room` includes the terminating zero.
inline void copy_text(std::string_view text, char* to, size_t room) {
  if (room == 0) return;
  const size_t used = std::min(room - 1, text.size());
  std::memcpy(to, text.data(), used);
  to[used] = '\0';
}

// Into a result of the caller's, which may be null or older and shorter than ours. Returns the status.
inline prun_status report(prun_status status, std::string_view message, prun_result* result) {
  if (result == nullptr || result->size <= offsetof(prun_result, message)) return status;
  result->culprit = -1;
  copy_text(message, result->message, std::min(result->size - offsetof(prun_result, message), sizeof result->message));
  return status;
}

// The status of body(), or of what it throws.
template <class Body>
prun_status guarded(prun_result* result, const Body& body) {
  try {
    return body();
  } catch (const Failure& failure) {
    return report(failure.status(), failure.what(), result);
  } catch (const std::bad_alloc&) {
    return report(PRUN_ENOMEM, "out of host memory", result);
  } catch (const std::exception& error) {
    return report(PRUN_ESYSTEM, error.what(), result);
  }
}

}  // namespace prun_cuda
