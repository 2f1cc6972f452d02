// prun plugins: lists the transports with path and capabilities, or why one cannot be loaded.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "comm/comm.h"
#include "explain.h"
#include "job_options.h"

namespace prun {

namespace {

class Plugins final : public Command {
 public:
  void declare(OptionTable& table) override;
  void take_operands(std::vector<std::string>& operands) override {
    refuse_operands("plugins", operands, "it lists all");
  }
  void settle(const CommandLine& line) override;
  int run() override;
  JobSpec* job() override { return &job_; }

 private:
  JobSpec job_;
  bool json_ = false;
  bool explain_ = false;
};

void Plugins::declare(OptionTable& table) {
  option::nproc(table, job_);
  option::transport_options(table, job_);
  option::nnodes(table, job_);
  option::rendezvous(table, job_);
  option::interface(table, job_);
  table.flag("--explain", explain_, "which transport auto takes for which ranks, and why");
}

void Plugins::settle(const CommandLine& line) {
  json_ = line.json;
  check_ranks(job_);
  check_options(job_.launch);
}

int Plugins::run() {
  if (explain_) return explain_plugins(job_, json_);
  std::vector<PluginInfo> plugins = list_plugins(job_.world.plugin_dirs);
  if (json_) {
    nlohmann::json rows = nlohmann::json::array();
    for (const PluginInfo& p : plugins)
      rows.push_back({{"name", p.name},
                      {"version", p.version},
                      {"summary", p.summary},
                      {"path", p.path},
                      {"capabilities", p.capabilities},
                      {"error", p.error}});
    fmt::print("{}\n", nlohmann::json{{"plugins", rows}}.dump());
    return 0;
  }
  for (const PluginInfo& p : plugins) {
    if (!p.error.empty()) {
      fmt::print("{:<10} cannot be loaded: {}\n", p.name, p.error);
      continue;
    }
    fmt::print("{:<10} {:<8} {}\n{:<10} {:<8} {}\n", p.name, p.version, p.summary, "", "", join(p.capabilities, ", "));
  }
  if (plugins.empty()) fmt::print("no plugins in {}\n", join(job_.world.plugin_dirs, ", "));
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_plugins() { return std::make_unique<Plugins>(); }

}  // namespace prun
