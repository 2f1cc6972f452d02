// The log: one line per event on standard error, with time, level, rank and source.
//
//     2026-03-01T09:26:53.589 debug rank 3 transport: auto takes shm inside a host
//
// Standard output carries only the output of the command. --log-level sets the level, or PRUN_LOG if that option is
// missing; ranks are forks, so they inherit it.
#pragma once
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <string>
#include <utility>

namespace prun {

// `level`: the value of --log-level; "" = missing. Throws usage_error for an invalid PRUN_LOG.
void start_log(const std::string& level);
// Returns `level`. Throws usage_error with a suggestion if it does not exist.
std::string check_log_level(const std::string& who, const std::string& level);
void log_as_rank(int rank);  // from now on, in a process forked from the launcher

// `source`: the part of prun that logs, such as launch, script or transport.
template <class... Args>
void log_info(const char* source, fmt::format_string<Args...> text, Args&&... args) {
  if (spdlog::should_log(spdlog::level::info))
    spdlog::info("{}: {}", source, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_debug(const char* source, fmt::format_string<Args...> text, Args&&... args) {
  if (spdlog::should_log(spdlog::level::debug))
    spdlog::debug("{}: {}", source, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace prun
