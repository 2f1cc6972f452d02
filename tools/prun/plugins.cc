// prun plugins: lists the transports with path and capabilities, or the reason why one cannot be loaded. --explain
// shows the transport of each group of ranks, why the others were rejected, the libraries loaded for this, and the
// network interfaces.
//
// It runs the selection code of a job, so a job on this host selects the same transports.
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/text.h"
#include "comm/comm.h"
#include "comm/transport/interfaces.h"
#include "comm/transport/job_state.h"
#include "comm/transport/transport_choice.h"
#include "environment.h"
#include "job_options.h"

namespace prun {
namespace {

// A kind of group: ranks in all, ranks per host, and the memory that they compute in.
struct GroupKind {
  const char* name;
  int ranks, local_ranks;
  prun_mem_kind memory;
};

std::vector<Candidate> weigh_for(const GroupKind& kind, const JobSpec& job) {
  WorldOptions world = job.world;
  world.ranks = kind.ranks;
  world.local_ranks = kind.local_ranks;
  std::vector<int> ranks(static_cast<size_t>(kind.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return weigh(world, ranks, kind.local_ranks < kind.ranks, kind.memory);
}

std::set<std::string> loaded_objects() {
  std::set<std::string> paths;
  auto add = [](dl_phdr_info* info, size_t, void* data) {
    if (info->dlpi_name != nullptr && info->dlpi_name[0] == '/')
      static_cast<std::set<std::string>*>(data)->insert(info->dlpi_name);
    return 0;
  };
  dl_iterate_phdr(add, &paths);
  return paths;
}

// Prints the candidates for a kind of group. `otherwise` is printed if no transport can carry the group.
void print_kind(const GroupKind& kind, const std::vector<Candidate>& candidates, const std::string& otherwise) {
  fmt::print("{}\n", kind.name);
  const int best = candidates.empty() ? 0 : candidates.front().score;
  for (const Candidate& c : candidates) {
    const bool taken = best > 0 && &c == &candidates.front();
    const std::string why = taken ? fmt::format("score {}, the highest", c.score)
                            : c.reason.empty()
                                ? fmt::format("score {}, less than {}", c.score, candidates.front().file.name)
                                : c.reason;
    fmt::print("  {} {:<10} {}\n", taken ? "*" : " ", c.file.name, why);
  }
  if (best == 0) fmt::print("    {}\n", otherwise);
}

InterfaceChoice chosen_interface(const JobSpec& job, const std::vector<Interface>& interfaces) {
  if (job.launch.nnodes == 1 && job.launch.rendezvous.empty() && job.world.network_interface.empty())
    return {"", "all ranks are on this host"};
  return choose_interface(job.world.network_interface, interface_towards(job.launch.rendezvous), interfaces);
}

void print_interfaces(const std::vector<Interface>& interfaces, const InterfaceChoice& chosen) {
  fmt::print("network interface between hosts (--interface)\n");
  for (const Interface& each : interfaces) {
    std::vector<std::string> state = each.addresses;
    if (!each.up) state.insert(state.begin(), "down");
    if (each.addresses.empty()) state.emplace_back("no address");
    fmt::print("  {} {:<10} {}\n", each.name == chosen.name ? "*" : " ", each.name, join(state, ", "));
  }
  fmt::print("  {}: {}\n", chosen.name.empty() ? "none" : chosen.name, chosen.why);
}

void print_json(const std::vector<GroupKind>& kinds, const std::vector<std::vector<Candidate>>& weighed,
                const std::vector<Interface>& interfaces, const InterfaceChoice& chosen,
                const std::set<std::string>& loaded) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array(), networks = nlohmann::ordered_json::array();
  for (size_t i = 0; i < kinds.size(); ++i) {
    nlohmann::ordered_json candidates = nlohmann::ordered_json::array();
    for (const Candidate& c : weighed[i])
      candidates.push_back({{"name", c.file.name}, {"score", c.score}, {"reason", c.reason}});
    groups.push_back({{"group", kinds[i].name}, {"candidates", candidates}});
  }
  for (const Interface& each : interfaces)
    networks.push_back({{"name", each.name}, {"up", each.up}, {"addresses", each.addresses}});
  fmt::print("{}\n", nlohmann::ordered_json{{"groups", groups},
                                            {"interfaces", networks},
                                            {"interface", {{"name", chosen.name}, {"why", chosen.why}}},
                                            {"libraries", loaded}}
                         .dump());
}

int explain_plugins(const JobSpec& job, bool json) {
  check_options(job.world.transport_options, job.world.plugin_dirs);
  const std::vector<Interface> interfaces = list_interfaces();
  const InterfaceChoice chosen = chosen_interface(job, interfaces);  // throws before any output
  const int near = std::max(job.launch.nproc, 2), all = near * std::max(job.launch.nnodes, 2);
  const std::string inside = fmt::format("ranks of one host ({}), host memory", near);
  const std::string between = fmt::format("ranks of several hosts ({} on {}), host memory", all, all / near);
  const std::vector<GroupKind> kinds = {
      {inside.c_str(), near, near, PRUN_MEM_HOST},
      {between.c_str(), all, near, PRUN_MEM_HOST},
      {"CUDA memory (--device cuda)", near, near, PRUN_MEM_CUDA},
  };
  const std::set<std::string> before = loaded_objects();
  std::vector<std::vector<Candidate>> weighed;
  weighed.reserve(kinds.size());
  for (const GroupKind& kind : kinds) weighed.push_back(weigh_for(kind, job));
  auto best = [&](size_t i) {
    return weighed[i].empty() || weighed[i].front().score == 0 ? "" : weighed[i].front().file.name;
  };
  const std::string one = best(0), several = best(1), on_device = best(2);
  const std::string over_hosts = several.empty()                 ? "-"
                                 : one.empty() || one == several ? several
                                                                 : transport_words(one + "+" + several);
  const std::string staged =
      one.empty() ? "" : fmt::format("through the host's memory: {}", several.empty() ? one : over_hosts);
  if (json) {
    std::set<std::string> loaded = loaded_objects();
    for (const std::string& path : before) loaded.erase(path);
    print_json(kinds, weighed, interfaces, chosen, loaded);
    return 0;
  }
  const char* nothing = "nothing here can carry it";
  print_kind(kinds[0], weighed[0], nothing);
  print_kind(kinds[1], weighed[1], nothing);
  print_kind(kinds[2], weighed[2], staged.empty() ? nothing : "so it goes " + staged);
  fmt::print("--transport auto\n");
  fmt::print("    {:<28}{}\n", "groups inside a host:", one.empty() ? "-" : one);
  fmt::print("    {:<28}{}\n", "groups over hosts:", over_hosts);
  fmt::print("    {:<28}{}\n", "one rank on each host:", several.empty() ? "-" : several);
  fmt::print("    {:<28}{}\n", "with --device cuda:", !on_device.empty() ? on_device : staged.empty() ? "-" : staged);
  if (!on_device.empty() && !staged.empty())
    fmt::print("    {:<28}{}\n", "with --ranks-per-device 2:", staged);  // NCCL rejects ranks that share a device
  print_interfaces(interfaces, chosen);
  fmt::print("libraries loaded for this\n");
  for (const std::string& path : loaded_objects())
    if (before.count(path) == 0) fmt::print("    {}\n", path);
  return 0;
}

class Plugins final : public Command {
 public:
  void declare(OptionTable& table) override;
  void take_operands(std::vector<std::string>& operands) override {
    refuse_operands("plugins", operands, "it lists all");
  }
  void settle() override;
  int run() override;
  JobSpec* job() override { return &job_; }

 private:
  JobSpec job_;
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

void Plugins::settle() {
  check_ranks(job_);
  check_options(job_.launch);
}

int Plugins::run() {
  warn_of_useless_variables();
  if (explain_) return explain_plugins(job_, line_.json);
  std::vector<PluginInfo> plugins = list_plugins(job_.world.plugin_dirs);
  if (line_.json) {
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
