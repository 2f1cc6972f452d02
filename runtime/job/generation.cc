#include "job/generation.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"

namespace prun {
void check_generation_options(const GenerationSettings& s, const std::string& plan) {
  const bool folder = std::filesystem::is_directory(plan);
  if (folder && !s.checkpoint.empty())
    throw usage_error(fmt::format("{} is a folder, which has weights of its own: --checkpoint goes with a plan", plan));
  if (!folder && s.checkpoint.empty()) {
    if (plan.ends_with(".lua"))
      throw usage_error(fmt::format("which weights? prun generate PLAN needs --checkpoint DIR{}",
                                    s.has_prompt ? "" : " and --prompt TEXT"));
    if (std::filesystem::exists(plan))
      throw usage_error(fmt::format("'{}' is neither a plan nor a folder of weights", plan));
    throw usage_error(
        fmt::format("there is no folder of weights '{}'; of a plan, prun generate PLAN.lua --checkpoint DIR", plan));
  }
  if (!s.has_prompt) throw usage_error("which text is to be continued? prun generate needs --prompt TEXT");
  if (s.prompt.empty()) throw usage_error("--prompt is empty: a model continues at least one token");
}

}  // namespace prun
