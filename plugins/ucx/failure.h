// Failures of UCX's calls.
#pragma once
#include <prun/sdk/failure.h>
#include <ucp/api/ucp.h>

namespace prun::ucx {

using sdk::Failure;

// "ucp_init: No such device".
inline void check(std::string_view call, ucs_status_t status) {
  if (status != UCS_OK)
    throw Failure(status == UCS_ERR_NO_MEMORY ? PRUN_ENOMEM : PRUN_ESYSTEM, -1, call, ": ", ucs_status_string(status));
}

}  // namespace prun::ucx
