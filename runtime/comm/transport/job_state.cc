// The host struct. Its state is process-wide and read in every wait loop, hence atomics and no lock.
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
  // A plugin's texts are not format strings.
  spdlog::log(level == 0 ? spdlog::level::debug : level == 1 ? spdlog::level::info : spdlog::level::warn, "{}", text);
}

int aborted_callback() { return host_aborted() ? 1 : 0; }

prun_host& table() {
  static prun_host host{.size = sizeof(prun_host),
                        .abi = PRUN_TRANSPORT_ABI,
                        .log = log_line,
                        .aborted = aborted_callback,
                        .cores_per_rank = 1.0};
  return host;
}

}  // namespace

const prun_host& host_table() { return table(); }

void set_host(const Bootstrap* bootstrap, int local_ranks) {
  current_bootstrap.store(bootstrap);
  aborted_here.store(false);
  table().cores_per_rank = static_cast<double>(usable_cores()) / std::max(1, local_ranks);
}

void set_aborted() { aborted_here.store(true); }

bool host_aborted() {
  if (aborted_here.load(std::memory_order_relaxed)) return true;
  const Bootstrap* bootstrap = current_bootstrap.load(std::memory_order_acquire);
  return bootstrap != nullptr && bootstrap->aborted();
}

std::string host_abort_reason() {
  const Bootstrap* bootstrap = current_bootstrap.load();
  std::string reason = bootstrap != nullptr && bootstrap->aborted() ? bootstrap->abort_reason() : "";
  return reason.empty() ? "the job is ending" : reason;
}

void Bootstrap::fatal(const Error& error) {
  std::fprintf(stderr, "prun: %s\n", error.what());
  _exit(static_cast<int>(error.code()));
}

void host_doing(const std::string& what) {
  if (const Bootstrap* bootstrap = current_bootstrap.load()) const_cast<Bootstrap*>(bootstrap)->doing(what);
}

}  // namespace prun
