// prun bench OP [options]: launches ranks that measure, shows the rows that rank 0 sends.
#include <fmt/format.h>

#include <cstdio>
#include <vector>

#include "base/text.h"
#include "bench/rows.h"
#include "bench/settings.h"
#include "bench/show.h"
#include "comm/collectives/algorithm.h"
#include "comm/transport/interfaces.h"
#include "comm/transport/transport_choice.h"
#include "commands.h"
#include "device/device.h"
#include "device_check.h"
#include "launch/launch.h"
#include "launch/room.h"
#include "plugin_path.h"

namespace prun {
namespace {

class BenchObserver final : public LaunchObserver {
 public:
  explicit BenchObserver(BenchTable& table) : table_(table) {}
  void started(const std::vector<int>& ranks, const std::vector<int>&, const std::vector<void*>& notes) override {
    ranks_ = ranks;
    notes_ = notes;
  }
  void tick() override {}
  void line(int, const std::string& text) override { table_.row(text); }
  std::string where(int rank) override {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r] != rank) continue;
      const std::string note(static_cast<const char*>(notes_[r]));
      return note.empty() ? "joining" : note;
    }
    return "";
  }

 private:
  BenchTable& table_;
  std::vector<int> ranks_;
  std::vector<void*> notes_;
};

// What can be wrong before anything starts.
void check(const BenchSettings& settings, const Places& places) {
  for (const BenchSide& side : settings.sides) {
    const NamedPlugin plugin = name_plugin(side.transport, places.plugin_dirs);
    check_transport_name(plugin.name, plugin.dirs);
    check_algorithm_name(side.algorithm);
  }
  interface_of_job(settings.network_interface, settings.nnodes, settings.rendezvous);
  for (int ranks : settings.nproc) {
    if (!settings.memory.empty()) {
      Options wanted;
      wanted.device = settings.memory;
      wanted.nproc = ranks;
      check_devices(wanted);
      if (open_device(settings.memory)->table() == nullptr)
        throw usage_error(fmt::format("--memory {}: that device computes in the host's memory, which is the default",
                                      settings.memory));
    }
    const int64_t needed = 2 * settings.most_bytes() * ranks * static_cast<int64_t>(settings.sides.size());
    if (needed > available_memory())
      throw Error(
          Exit::out_of_memory,
          fmt::format("--bytes up to {}: {} ranks need {} for their buffers, this machine has {} left",
                      human_bytes(settings.most_bytes()), ranks, human_bytes(needed), human_bytes(available_memory())));
  }
}

int bench_on(int ranks, const BenchSettings& settings, const std::vector<std::string>& words, BenchTable& table,
             const Places& places) {
  BenchObserver observer(table);
  LaunchOptions options;
  options.nproc = ranks;
  options.nnodes = settings.nnodes;
  options.node_rank = settings.node_rank;
  options.rendezvous = settings.rendezvous;
  options.secret = read_secret(settings.secret_file);
  options.join_timeout_s = settings.timeout_s;
  options.recorder_bytes = kBenchNote;
  options.command = "bench " + join(words, " ");
  return launch(
      options, [&](int) { return pack_words(words); },
      [&](const RankStart& start) { return run_bench_rank(start, places.plugin_dirs); }, observer);
}

}  // namespace

int bench_command(const Options& options, const Places& places) {
  const BenchSettings settings = parse_bench(options.items);
  if (settings.help) {
    fmt::print("{}", bench_usage());
    return 0;
  }
  check(settings, places);
  BenchTable table(settings);
  for (int ranks : settings.nproc) {
    const int code = bench_on(ranks, settings, options.items, table, places);
    if (code != 0) return code;
  }
  table.finish();
  return static_cast<int>(table.wrong() == 0 ? Exit::ok : Exit::check_failed);
}

}  // namespace prun
