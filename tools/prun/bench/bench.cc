// prun bench OP [options]: launches ranks that measure, and prints the rows that rank 0 sends.
#include <fmt/format.h>

#include <cstdio>
#include <vector>

#include "base/text.h"
#include "bench/rows.h"
#include "bench/settings.h"
#include "calibrate/algorithm_costs.h"
#include "comm/collectives/algorithm.h"
#include "comm/transport/interfaces.h"
#include "comm/transport/transport_choice.h"
#include "command_line.h"
#include "environment.h"
#include "foreign_launch.h"
#include "job/device_check.h"
#include "job/node_settings.h"
#include "job/secret.h"
#include "job_options.h"
#include "kernels/devices.h"
#include "launch/await_name.h"
#include "launch/control.h"
#include "launch/launch.h"
#include "launch/preflight.h"
#include "plugin_path.h"
#include "shared_devices.h"

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

// Throws for invalid options before anything starts.
void check(const BenchOptions& options) {
  const BenchSettings& bench = options.bench;
  for (const WorldOptions& side : bench.sides) {
    const NamedPlugin plugin = name_plugin(side.transport, side.plugin_dirs);
    check_transport_name(plugin.name, plugin.dirs);
    WorldOptions named = side;
    named.transport = plugin.name;
    named.plugin_dirs = plugin.dirs;
    check_options(side.transport_options, plugin.dirs);
    check_encryption(named, options.job.launch.nnodes);
    check_algorithm_name(side.algorithm);
    JobSpec of_side = options.job;
    of_side.world = named;
    check_nccl_share(of_side);
    if (options.job.ranks_per_device > 1 && !bench.memory.empty() &&
        transport_of_sharing_ranks(of_side) != named.transport)
      throw usage_error(
          fmt::format("--ranks-per-device {}: --memory {} of ranks that share a device needs --transport "
                      "nccl --transport-options nccl.share=1",
                      options.job.ranks_per_device, bench.memory));
  }
  if (options.job.launch.nnodes > 1) await_name(options.job.launch);
  interface_of_job(options.job.world.network_interface, options.job.launch.nnodes, options.job.launch.rendezvous);
  for (int ranks : bench.nproc) {
    if (!bench.memory.empty()) {
      JobSpec wanted;
      wanted.device = bench.memory;
      wanted.launch.nproc = ranks;
      wanted.ranks_per_device = options.job.ranks_per_device;
      check_devices(wanted);
      if (open_device(bench.memory)->queue() == nullptr)
        throw usage_error(
            fmt::format("--memory {}: that device computes in the host's memory, which is the default", bench.memory));
    }
    const int64_t needed = 2 * bench.most_bytes() * ranks * std::ssize(bench.sides);
    if (needed > available_memory())
      throw Error(
          Exit::out_of_memory,
          fmt::format("--bytes up to {}: {} ranks need {} for their buffers, this machine has {} left",
                      human_bytes(bench.most_bytes()), ranks, human_bytes(needed), human_bytes(available_memory())));
  }
}

class Bench final : public Command {
 public:
  void declare(OptionTable& table) override;
  void settle() override;
  int run() override;
  JobSpec* job() override { return &options_.job; }
  const char* json_help() const override { return "one JSON object a row"; }
  std::string help_before() const override { return bench_operations(); }
  std::string help_after() const override { return bench_terms(); }
  const BenchOptions& options() const { return options_; }

 private:
  BenchOptions options_;
  std::string launcher_;
};

void Bench::declare(OptionTable& table) {
  JobSpec& job = options_.job;
  table.group("transport");
  table.text("--transport", "NAME", job.world.transport,
             "auto (default), a plugin's name (`prun plugins`) or the path of a .so");
  option::transport_options(table, job);
  table.text("--algorithm", "NAME", job.world.algorithm,
             "the core's algorithm of this name (default: by size and ranks)");
  table.group("measurement");
  declare_bench(table, options_.bench);
  table.group("ranks and devices");
  option::ranks_per_device(table, job);
  option::bind(table, job);
  table.group("nodes and network");
  option::nnodes(table, job);
  option::node_rank(table, job);
  option::launcher(table, launcher_);
  option::rendezvous(table, job);
  option::secret_file(table, job);
  option::port_range(table, job);
  option::encrypt(table, job);
  option::link_timeout(table, job);
  option::interface(table, job);
  option::timeout(table, job);
}

void Bench::settle() {
  JobSpec& job = options_.job;
  options_.json = line_.json;
  if (!line_.given("--nnodes") && !line_.given("--node-rank")) take_place_of_launcher(job, launcher_);
  if (job.launch.host_ranks > 0 && !line_.given("--nproc")) options_.bench.nproc = {1};
  require_nodes(line_, job.launch, launcher_);
  pass_to_transports(job);
  check_ranks(job);
  check_options(job.launch);
  finish_bench(options_, line_.operands);
}

int Bench::run() {
  if (!options_.job.launch.silent) warn_of_useless_variables();
  check_transport_hint(options_.job);
  for (WorldOptions& side : options_.bench.sides) side.plugin_dirs = options_.job.world.plugin_dirs;
  check(options_);
  options_.job.launch.secret = read_secret(options_.job.launch.secret_file);
  options_.job.launch.settings = node_settings(options_.job);
  options_.job.launch.recorder_bytes = kBenchNote;
  options_.job.launch.command = join(options_.job.watch.words, " ");
  const std::string costs =
      options_.job.launch.nnodes == 1 ? calibrated_algorithm_costs(options_.job.world.transport_options) : "";
  BenchTable table(options_);
  for (int ranks : options_.bench.nproc) {
    options_.job.launch.nproc = ranks;
    options_.job.binding = Binding(options_.job.bind, ranks);
    BenchObserver observer(table);
    Launch launch(options_.job.launch, observer);
    const int code = launch.run(pack(options_.job.watch.words), [&](const RankStart& start) {
      options_.job.binding.apply(start.local_rank);
      return run_bench_rank(start, options_.job.world.plugin_dirs, costs);
    });
    if (code != 0) return code;
  }
  table.finish();
  return static_cast<int>(table.wrong() == 0 ? Exit::ok : Exit::check_failed);
}

}  // namespace

BenchOptions read_bench_words(const std::vector<std::string>& words) {
  const ParsedCommand parsed = parse_words(words);
  parsed.command->settle();
  return dynamic_cast<const Bench&>(*parsed.command).options();
}

std::unique_ptr<Command> make_bench() { return std::make_unique<Bench>(); }

}  // namespace prun
