// Every wait loop reads the abort flags, hence atomics instead of a lock.
#include "comm/transport/job_state.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "base/cores.h"

namespace prun {
namespace {

std::atomic<const Bootstrap*> current_bootstrap{nullptr};
std::atomic<bool> aborted_here{false};

void log_line(int level, const char* text) {
  // A plugin's text is not a format string.
  spdlog::log(level == 0   ? spdlog::level::debug
              : level == 1 ? spdlog::level::info
                           : spdlog::level::warn,
              "transport: {}", text);
}

prun_host services{.size = sizeof(prun_host),
                   .abi = PRUN_TRANSPORT_ABI,
                   .log = log_line,
                   .aborted = [] { return job_aborted() ? 1 : 0; },
                   .cores_per_rank = 1.0};

}  // namespace

const prun_host& core_services() { return services; }

void set_job(const Bootstrap* bootstrap, int local_ranks) {
  current_bootstrap.store(bootstrap);
  aborted_here.store(false);
  services.cores_per_rank = static_cast<double>(usable_cores()) / std::max(1, local_ranks);
}

void set_job_aborted() { aborted_here.store(true); }

bool job_aborted() {
  if (aborted_here.load(std::memory_order_relaxed)) return true;
  const Bootstrap* bootstrap = current_bootstrap.load(std::memory_order_acquire);
  return bootstrap != nullptr && bootstrap->aborted();
}

std::string job_abort_reason() {
  const Bootstrap* bootstrap = current_bootstrap.load();
  std::string reason = bootstrap != nullptr && bootstrap->aborted() ? bootstrap->abort_reason() : "";
  return reason.empty() ? "the job is ending" : reason;
}

void report_activity(const std::string& what) {
  if (const Bootstrap* bootstrap = current_bootstrap.load()) const_cast<Bootstrap*>(bootstrap)->doing(what);
}

void report_waiting(const std::vector<int>& ranks) {
  if (const Bootstrap* bootstrap = current_bootstrap.load()) const_cast<Bootstrap*>(bootstrap)->waits_for(ranks);
}

void Bootstrap::fatal(const Error& error) {
  std::fprintf(stderr, "prun: %s\n", error.what());
  _exit(static_cast<int>(error.code()));
}

}  // namespace prun
