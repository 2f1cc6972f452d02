// Measures links. The smallest call gives the latency of a step; the additional time of larger calls gives the
// bandwidth at their size.
#include "calibrate/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "bench/rows.h"
#include "calibrate/launch_lines.h"
#include "comm/collectives/algorithm_costs.h"
#include "comm/transport/plugin.h"
#include "launch/control.h"

namespace prun {
namespace {

using LinkJson = nlohmann::json;
using simulate::CollectiveRates;
using simulate::LinkModel;

constexpr CollKind kMeasured[] = {CollKind::all_reduce, CollKind::all_gather, CollKind::reduce_scatter,
                                  CollKind::broadcast, CollKind::all_to_all};
constexpr const char* kSizes = "4,64K,1M,4M,16M,64M";
constexpr int kSizeCount = 6;
constexpr const char* kAlgorithmSizes = "4,16K,256K,4M";  // sizes at which algorithms differ
constexpr int kAlgorithmSizeCount = 4;

std::vector<LinkJson> bench_rows(const JobSpec& job, const CalibratedTransport& transport, const std::string& ops,
                                 const char* sizes, double budget_s, const std::string& algorithm = "") {
  LaunchOptions launch = job.launch;
  launch.recorder_bytes = kBenchNote;
  std::vector<std::string> words = {"bench",       ops,
                                    "--nproc",     std::to_string(launch.nproc),
                                    "--bytes",     sizes,
                                    "--place",     "out",
                                    "--check",     "0",
                                    "--budget",    fmt::format("{:.3f}", budget_s),
                                    "--transport", transport.transport};
  if (!algorithm.empty()) words.insert(words.end(), {"--algorithm", algorithm});
  if (!transport.options.empty()) words.insert(words.end(), {"--transport-options", transport.options});
  const std::vector<std::string> lines = launch_lines(
      launch, pack(words), [&](const RankStart& start) { return run_bench_rank(start, job.world.plugin_dirs); });
  std::vector<LinkJson> rows;
  rows.reserve(lines.size());
  for (const std::string& line : lines) rows.push_back(LinkJson::parse(line));
  return rows;
}

// Returns the rates of a collective. `moved`: fraction of the full buffer that a rank sends; rows are in ascending
// order of size.
CollectiveRates rates_of(const std::vector<const LinkJson*>& rows, double steps, double moved) {
  CollectiveRates rates;
  const double latency = (*rows.front())["time_us"].get<double>() * 1e-6;
  rates.step_s = latency / steps;
  for (size_t i = 1; i < rows.size(); ++i) {
    const double seconds = (*rows[i])["time_us"].get<double>() * 1e-6, bytes = (*rows[i])["bytes"].get<double>();
    rates.bandwidth.at.emplace_back(moved * bytes, moved * bytes / std::max(seconds - latency, 0.1 * seconds));
  }
  return rates;
}

using Rows = std::map<std::string, std::vector<const LinkJson*>>;
Rows by_op(const std::vector<LinkJson>& measured) {
  Rows rows;
  for (const LinkJson& row : measured) rows[row["op"]].push_back(&row);
  return rows;
}

// Measures the core's algorithms by kind and name; skips algorithms that do not support a call.
void measure_algorithms(const JobSpec& job, const CalibratedTransport& transport, double seconds, LinkModel& link) {
  std::map<std::string, std::vector<CollKind>> kinds;
  int rows = 0;
  for (int i = 0; i < kCollKinds; ++i)
    for (const std::string& name : compared_algorithms(static_cast<CollKind>(i)))
      kinds[name].push_back(static_cast<CollKind>(i)), rows += kAlgorithmSizeCount;
  for (const auto& [name, of] : kinds) {
    std::vector<std::string> ops;
    for (const CollKind kind : of) ops.emplace_back(traits(kind).name);
    const std::vector<LinkJson> measured =
        bench_rows(job, transport, join(ops, ","), kAlgorithmSizes, seconds / rows, name);
    const Rows found = by_op(measured);
    for (const CollKind kind : of) {
      const auto& sizes = found.at(std::string(traits(kind).name));
      const std::optional<AlgorithmWork> work = algorithm_work(kind, name, job.launch.nproc);
      const bool all = std::all_of(sizes.begin(), sizes.end(), [wanted = std::string(name)](const auto* row) {
        return (*row)["algorithm"] == wanted;
      });
      if (all && work) link.algorithms[kind][name] = rates_of(sizes, work->steps, work->moved);
    }
  }
}

}  // namespace

std::vector<CalibratedTransport> calibrated_transports(const JobSpec& job) {
  const std::vector<CalibratedTransport> known = {
      {"shm", "shm", ""}, {"socket", "socket", ""}, {"socket-tcp", "socket", "unix=0"}, {"ucx", "ucx", ""}};
  const std::vector<PluginFile> files = find_plugins(job.world.plugin_dirs);
  std::vector<CalibratedTransport> here;
  for (const CalibratedTransport& each : known)
    if (std::any_of(files.begin(), files.end(), [&](const PluginFile& file) { return file.name == each.transport; }))
      here.push_back(each);
  return here;
}

LinkModel measure_link(const JobSpec& given, const CalibratedTransport& transport, double seconds) {
  JobSpec job = given;
  job.launch.nproc = std::max(2, given.launch.nproc);
  const double n = job.launch.nproc;
  std::string ops = "ping_pong";
  for (const CollKind kind : kMeasured) ops += fmt::format(",{}", traits(kind).name);
  const double rows = static_cast<double>((std::size(kMeasured) + 1) * kSizeCount);
  const std::vector<LinkJson> measured = bench_rows(job, transport, ops, kSizes, seconds / 2 / rows);
  const Rows found = by_op(measured);
  LinkModel link;
  link.name = transport.name;
  for (const CollKind kind : kMeasured) {
    const double c = kind == CollKind::all_reduce ? 2 : 1;
    const double moved = traits(kind).rooted ? 1 : c * (n - 1) / n;
    link.collectives[kind] = rates_of(found.at(std::string(traits(kind).name)), c * (n - 1), moved);
  }
  const CollectiveRates message = rates_of(found.at("ping_pong"), 1, 1);
  link.message_s = message.step_s;
  constexpr double kLarge = 8 << 20;
  link.step_s = link.tree_step_s = link.collectives[CollKind::all_gather].step_s;
  link.bandwidth = std::max(link.collectives[CollKind::all_gather].bandwidth.of(kLarge), message.bandwidth.of(kLarge));
  link.message_efficiency = message.bandwidth.of(kLarge) / link.bandwidth;
  const bool core = std::none_of(measured.begin(), measured.end(),
                                 [](const LinkJson& row) { return row.value("algorithm", "") == "native"; });
  if (core) measure_algorithms(job, transport, seconds / 2, link);
  return link;
}

}  // namespace prun
