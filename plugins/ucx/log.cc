// UCX calls its handlers in last-in first-out order. Lines that ours does not consume reach UCX's own handler, which
// honours UCX_LOG_FILE.
#include "log.h"

#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include <atomic>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace prun::ucx {
namespace {

const prun_host* host_of_log = nullptr;
std::atomic<int> open_contexts{0}, left_contexts{0};
thread_local Overheard* listener = nullptr;

ucs_log_func_rc_t handle(const char*, unsigned, const char*, ucs_log_level_t level, const ucs_log_component_config_t*,
                         const char* format, va_list arguments) {
  if (level > UCS_LOG_LEVEL_INFO) return UCS_LOG_FUNC_RC_CONTINUE;
  if (open_contexts.load() == 0) return left_contexts.load() > 0 ? UCS_LOG_FUNC_RC_STOP : UCS_LOG_FUNC_RC_CONTINUE;
  char line[512] = "ucx: ";
  va_list copy;
  va_copy(copy, arguments);
  std::vsnprintf(line + 5, sizeof line - 5, format, copy);
  va_end(copy);
  if (listener != nullptr && level <= UCS_LOG_LEVEL_WARN) {
    listener->add(line + 5);
    return UCS_LOG_FUNC_RC_STOP;
  }
  if (host_of_log->log == nullptr) return UCS_LOG_FUNC_RC_CONTINUE;
  host_of_log->log(level <= UCS_LOG_LEVEL_WARN ? 2 : level == UCS_LOG_LEVEL_INFO ? 1 : 0, line);
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void take_over_log(const prun_host* host) {
  if (host_of_log == nullptr) {
    ucs_log_push_handler(handle);
    // UCX prints backtraces from its own handlers, but the core reports crashes, unless the user has enabled UCX's.
    if (std::getenv("UCX_HANDLE_ERRORS") == nullptr && std::getenv("UCX_ERROR_SIGNALS") == nullptr) {
      for (int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(signal);
    }
  }
  host_of_log = host;
}

LogOpen::LogOpen() { ++open_contexts; }
LogOpen::~LogOpen() {
  if (!left_) --open_contexts;
}
void LogOpen::leave() {
  left_ = true;
  ++left_contexts;
  --open_contexts;
}

Overheard::Overheard() { listener = this; }
Overheard::~Overheard() { listener = nullptr; }
void Overheard::add(const char* line) { text_ += (text_.empty() ? "" : "; ") + std::string(line); }

}  // namespace prun::ucx
