// What went wrong, on its way to a prun_result: thrown where a call fails at once, kept by the context otherwise.
#pragma once
#include <prun/transport.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace prun_ucx {

struct Failure {
  prun_status status = PRUN_OK;
  int culprit = -1;  // global rank
  std::string message;

  explicit operator bool() const { return status != PRUN_OK; }
};

// "ucp_init: No such device".
inline Failure ucx_failure(std::string_view call, ucs_status_t status) {
  return {status == UCS_ERR_NO_MEMORY ? PRUN_ENOMEM : PRUN_ESYSTEM, -1,
          std::string(call) + ": " + ucs_status_string(status)};
}
inline void check(std::string_view call, ucs_status_t status) {
  if (status != UCS_OK) throw ucx_failure(call, status);
}

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

}  // namespace prun_ucx
