// A UCP context with its single worker. Not locked: the Context's lock guards it.
#pragma once
#include <prun/sdk/failure.h>
#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <vector>

#include "options.h"

namespace prun::ucx {

using sdk::Failure;

// Throws Failure with a message such as "ucp_init: No such device".
inline void check(std::string_view call, ucs_status_t status) {
  if (status != UCS_OK)
    throw Failure(status == UCS_ERR_NO_MEMORY ? PRUN_ENOMEM : PRUN_ESYSTEM, -1, call, ": ", ucs_status_string(status));
}

class Worker {
 public:
  // Throws Failure, with PRUN_EINVAL if UCX rejects the value of a setting.
  Worker(const prun_open_params& params, const std::vector<Setting>& settings, uint64_t tag_sender_mask,
         const prun_host& host);

  ucp_worker_h get() const { return worker_.get(); }
  ucp_context_h context() const { return context_.get(); }
  std::string address() const;  // throws Failure
  bool progress() { return ucp_worker_progress(get()) != 0; }

  // Sleeping: arm the worker, then poll fd() without the lock. arm() returns false if there is progress to make first.
  // wake() ends the poll from any thread.
  bool arm() { return ucp_worker_arm(get()) == UCS_OK; }
  void wake() { ucp_worker_signal(get()); }
  int fd() const { return fd_; }

 private:
  template <auto function>
  struct Release {
    void operator()(auto* object) const { function(object); }
  };
  std::unique_ptr<ucp_context, Release<ucp_cleanup>> context_;
  std::unique_ptr<ucp_worker, Release<ucp_worker_destroy>> worker_;
  int fd_ = -1;
};

}  // namespace prun::ucx
