// prun init [FOLDER]: writes a first plan, and .luarc.json, with which the Lua language server (in VS Code, Neovim and
// others) completes prun's functions and shows their help. Existing files are kept.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "job_options.h"

namespace prun {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFirstPlan = R"(-- A small GPT on a text file, sharded over all ranks: prun plan.lua --nproc 2
local prun = require "prun"
local arg  = prun.args { width = 128, steps = { 10, "training steps", least = 1 } }

return prun.plan {
  mesh      = prun.mesh { dp = prun.world },
  model     = prun.models.gpt { vocab = 256, layers = 2, width = arg.width, heads = 4, context = 64 },
  data      = prun.data.bytes { path = "text/sample.txt", batch = 32 },
  strategy  = { prun.zero3 { axis = "dp", prefetch = 1 } },
  optimizer = prun.adamw { lr = 3e-4, clip = 1.0 },
  steps     = arg.steps,
}
)";

std::string editor_settings(const std::string& lua_dir) {
  const nlohmann::ordered_json settings = {
      {"runtime.version", "Lua 5.4"},
      {"runtime.path", {"?.lua", "?/init.lua"}},
      {"workspace.library", {lua_dir}},
      {"workspace.checkThirdParty", false},
  };
  return settings.dump(2) + "\n";
}

// Returns whether it was written; an existing file is kept.
bool write_new(const fs::path& path, const std::string& text) {
  if (fs::exists(path)) return false;
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) throw usage_error(fmt::format("cannot write {}: {}", path.string(), std::strerror(errno)));
  return true;
}

class InitFolder final : public Command {
 public:
  void declare(OptionTable& /*table*/) override {}
  int run() override;
  JobSpec* job() override { return &job_; }

 private:
  JobSpec job_;
};

int InitFolder::run() {
  fs::path folder = one_operand("init", line_.operands, "folder");
  if (folder.empty()) folder = ".";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw usage_error(fmt::format("cannot make {}: {}", folder.string(), error.message()));
  nlohmann::ordered_json written = nlohmann::ordered_json::array(), kept = written;
  const std::pair<const char*, std::string> files[] = {{"plan.lua", kFirstPlan},
                                                       {".luarc.json", editor_settings(job_.lua_dir)}};
  for (const auto& [name, text] : files) {
    const fs::path path = (folder / name).lexically_normal();
    (write_new(path, text) ? written : kept).push_back(path.string());
  }
  if (line_.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"written", written}, {"kept", kept}}.dump());
    return 0;
  }
  for (const auto& path : written) fmt::print("{}\n", path.get<std::string>());
  for (const auto& path : kept) fmt::print("{} is there already, and stays\n", path.get<std::string>());
  fmt::print("next: prun {} --nproc 2\n", (folder / "plan.lua").lexically_normal().string());
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_init() { return std::make_unique<InitFolder>(); }

}  // namespace prun
