// What went wrong, on its way to a prun_result: thrown where a call can fail at once, stored in requests otherwise.
#pragma once
#include <prun/transport.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

namespace prun_nccl {

struct Failure {
  prun_status status = PRUN_OK;
  int culprit = -1;  // global rank
  std::string message;

  explicit operator bool() const { return status != PRUN_OK; }
};

// Writes into a result of the caller's, which may be null or older and shorter than ours. Returns the status.
inline prun_status report(const Failure& failure, prun_result* result) {
  if (result == nullptr || result->size <= offsetof(prun_result, message)) return failure.status;
  result->culprit = failure.culprit;
  const size_t room = std::min(result->size - offsetof(prun_result, message), sizeof result->message);
  const size_t used = std::min(room - 1, failure.message.size());
  std::memcpy(result->message, failure.message.data(), used);
  result->message[used] = '\0';
  return failure.status;
}

}  // namespace prun_nccl
