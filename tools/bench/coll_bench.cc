// Collectives by size and ranks over a named transport, ranks forked here: the columns of nccl-tests, the timing rule
// of most MPI benchmarks: a sample is k calls between two barriers, its time that of the slowest rank; median of
// samples.
//
//   coll_bench --transport socket --ranks 2,4,8 --ops all_reduce,all_gather
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>

#include "base/text.h"
#include "comm/call.h"
#include "tests/conformance/local_bootstrap.h"

namespace prun {
namespace {

using testing::LocalBootstrap;

struct Settings {
  std::string transport = "auto", transport_options, algorithm, dtype = "f32";
  std::vector<int> ranks = {2, 4, 8};
  std::vector<std::string> ops = {"all_reduce", "all_gather", "reduce_scatter", "broadcast"};
  std::vector<int64_t> sizes = {4, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20};
  double budget_s = 0.5;
  bool rank_order = false, foreign_memory = false;
};

CollKind kind_of(const std::string& name) {
  std::vector<std::string> names;
  for (int k = 0; k <= static_cast<int>(CollKind::barrier); ++k) {
    names.emplace_back(coll_name(static_cast<CollKind>(k)));
    if (names.back() == name) return static_cast<CollKind>(k);
  }
  throw usage_error(fmt::format("unknown collective '{}'{}", name, did_you_mean(name, names)));
}

// Bus bandwidth over algorithm bandwidth, as nccl-tests define them.
double bus_factor(CollKind kind, int n) {
  double part = static_cast<double>(n - 1) / n;
  if (kind == CollKind::all_reduce) return 2 * part;
  return kind == CollKind::broadcast || kind == CollKind::reduce ? 1 : part;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Bench {
 public:
  Bench(Communicator& group, const Settings& settings) : group_(group), settings_(settings) {}

  // `bytes` is the larger of a rank's two buffers.
  void run(CollKind kind, int64_t bytes, char* send, char* recv) {
    CollCall call;
    call.kind = kind;
    call.dtype = *parse_dtype(settings_.dtype);
    call.rank_order = settings_.rank_order && is_reduction(kind);
    call.count = bytes / dtype_bytes(call.dtype);
    bool in_parts = kind != CollKind::all_reduce && kind != CollKind::broadcast && kind != CollKind::reduce;
    if (in_parts) call.count = std::max<int64_t>(1, call.count / group_.size());
    call.send = send;
    call.recv = recv;
    std::vector<double> samples = time(call);
    double median = samples[samples.size() / 2];
    int64_t moved = call_bytes(call, group_.size());
    if (group_.index() != 0) return;
    double bandwidth = static_cast<double>(moved) / median / 1e9;
    fmt::print("{:<15} {:>2} {:>11} {:>10} {:>5} {:>5} {:>11.1f} {:>11.1f} {:>8.2f} {:>8.2f}\n", coll_name(kind),
               group_.size(), moved, call.count, settings_.dtype, is_reduction(kind) ? "sum" : "-", samples[0] * 1e6,
               median * 1e6, bandwidth, bandwidth * bus_factor(kind, group_.size()));
    fflush(stdout);
  }

 private:
  double agree(double value, bool slowest) {
    double agreed = value;
    CollCall call;
    call.kind = slowest ? CollKind::all_reduce : CollKind::broadcast;
    call.redop = slowest ? RedOp::max : RedOp::sum;
    call.dtype = Dtype::f64;
    call.send = &value;
    call.recv = &agreed;
    call.count = 1;
    group_.run(call);
    return agreed;
  }

  std::vector<double> time(const CollCall& call) {
    constexpr double kSamples = 15;
    CollCall barrier;
    group_.run(call);
    double start = now();
    int calls = 0;
    do {
      group_.run(call);
      ++calls;
    } while (agree(now() - start, false) < settings_.budget_s * 0.05 && calls < 1000);
    double one = agree((now() - start) / calls, false);
    int repeat = static_cast<int>(std::clamp(settings_.budget_s / kSamples / one, 1.0, 20000.0));
    int samples = static_cast<int>(std::clamp(settings_.budget_s / (repeat * one), 3.0, kSamples));
    std::vector<double> times;
    for (int s = 0; s < samples; ++s) {
      group_.run(barrier);
      start = now();
      for (int i = 0; i < repeat; ++i) group_.run(call);
      times.push_back(agree((now() - start) / repeat, true));
    }
    std::sort(times.begin(), times.end());
    return times;
  }

  Communicator& group_;
  const Settings& settings_;
};

std::string run_rank(LocalBootstrap& bootstrap, const Settings& settings, const std::string& program) {
  WorldOptions options;
  options.rank = options.local_rank = bootstrap.rank();
  options.ranks = options.local_ranks = bootstrap.ranks();
  options.transport = settings.transport;
  options.transport_options = settings.transport_options;
  options.algorithm = settings.algorithm;
  options.plugin_dirs = plugin_directories(program);
  options.job_id = fmt::format("bench{}", getppid());
  options.job_secret.assign(32, 'b');
  std::unique_ptr<World> world = World::open(options, bootstrap);
  int64_t largest = round_up(*std::max_element(settings.sizes.begin(), settings.sizes.end()), 4096);
  std::vector<char> own(settings.foreign_memory ? static_cast<size_t>(2 * largest) : 0, 1);
  char* send = settings.foreign_memory ? own.data() : static_cast<char*>(world->allocate(largest));
  char* recv = settings.foreign_memory ? own.data() + largest : static_cast<char*>(world->allocate(largest));
  std::fill(send, send + largest, 1);
  world->connect();
  std::vector<int> ranks(static_cast<size_t>(bootstrap.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  Communicator& group = world->communicator(ranks, 0);
  if (bootstrap.rank() == 0) {
    fmt::print("# {} over {}{}\n", fmt::format("{} ranks", ranks.size()), world->transport_name(),
               settings.foreign_memory ? ", memory not the transport's" : "");
    fmt::print("# {:<13} {:>2} {:>11} {:>10} {:>5} {:>5} {:>11} {:>11} {:>8} {:>8}\n", "op", "n", "bytes", "count",
               "type", "redop", "min us", "median us", "algbw", "busbw");
  }
  Bench bench(group, settings);
  for (const std::string& op : settings.ops) {
    for (int64_t bytes : settings.sizes) bench.run(kind_of(op), bytes, send, recv);
  }
  bootstrap.barrier();
  return "";
}

int run(int argc, char** argv) {
  Settings settings;
  CLI::App app{"collectives by size and ranks over a transport; GB/s as nccl-tests print them"};
  app.add_option("--transport", settings.transport, "auto or a plugin's name")->capture_default_str();
  app.add_option("--options", settings.transport_options, "key=value,... of the plugin");
  app.add_option("--algorithm", settings.algorithm, "comm.algorithm; empty: the core's choice");
  app.add_option("--ranks", settings.ranks, "numbers of ranks")->delimiter(',');
  app.add_option("--ops", settings.ops, "collectives")->delimiter(',');
  app.add_option("--sizes", settings.sizes, "bytes of the larger buffer")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--dtype", settings.dtype, "element type");
  app.add_option("--budget", settings.budget_s, "seconds a line")->capture_default_str();
  app.add_flag("--rank-order", settings.rank_order, "sums in the order of the ranks");
  app.add_flag("--foreign-memory", settings.foreign_memory, "buffers that are not the transport's own");
  CLI11_PARSE(app, argc, argv);
  for (const std::string& op : settings.ops) kind_of(op);
  if (!parse_dtype(settings.dtype)) throw usage_error(fmt::format("unknown dtype '{}'", settings.dtype));
  for (int ranks : settings.ranks) {
    testing::LocalJob job;
    job.ranks = ranks;
    job.timeout_s = 600;
    std::string failed =
        testing::failures(testing::run_ranks(job, [&](LocalBootstrap& b) { return run_rank(b, settings, argv[0]); }));
    if (!failed.empty()) return fmt::print(stderr, "{}", failed), 1;
  }
  return 0;
}

}  // namespace
}  // namespace prun

int main(int argc, char** argv) {
  try {
    return prun::run(argc, argv);
  } catch (const prun::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
