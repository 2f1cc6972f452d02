#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace prun {
namespace {

const std::vector<std::string> kLevels = {"debug", "info", "warning", "error"};

void set_pattern(const std::string& who) { spdlog::set_pattern(fmt::format("%Y-%m-%dT%H:%M:%S.%e %^%l%$ {} %v", who)); }

}  // namespace

std::string check_log_level(const std::string& who, const std::string& level) {
  if (std::find(kLevels.begin(), kLevels.end(), level) == kLevels.end())
    throw usage_error(
        fmt::format("{} is debug, info, warning or error, not '{}'{}", who, level, if_near(level, kLevels)));
  return level;
}

void start_log(const std::string& level) {
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::stderr_color_sink_mt>()));
  set_pattern("launcher");
  spdlog::set_level(spdlog::level::warn);
  const char* variable = std::getenv("PRUN_LOG");
  if (!level.empty())
    spdlog::set_level(spdlog::level::from_str(level));
  else if (variable != nullptr && *variable != '\0')
    spdlog::set_level(spdlog::level::from_str(check_log_level("PRUN_LOG", variable)));
}

void log_as_rank(int rank) { set_pattern(fmt::format("rank {}", rank)); }

}  // namespace prun
