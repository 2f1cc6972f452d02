// The executor's overhead: steps of empty ops, on one stream and on two that wait for each other.
//     build/bench/bin/exec_bench
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <vector>

#include "comm/comm.h"
#include "exec/rank_device.h"
#include "ir/ops.h"

namespace prun {
namespace {

class NoOp final : public Kernel {
 public:
  void run() override {}
};

class NoOpDevice final : public Device {
 public:
  std::string_view name() const override { return "none"; }
  int64_t workspace_bytes(const Program&, const Op&, int) const override { return 0; }
  std::unique_ptr<Kernel> make_kernel(const RankMemory&, const Op&, int) const override {
    return std::make_unique<NoOp>();
  }
  bool supports(const Op&, const Program&) const override { return true; }
};

class Alone final : public Bootstrap {
 public:
  std::vector<std::string> all_gather(const std::string& blob) override { return {blob}; }
  bool aborted() const override { return false; }
};

// `edges`: every 8th op of stream 0 waits for stream 1 and vice versa.
Program make_program(int64_t steps, int ops, bool edges) {
  Program program;
  program.mesh = Mesh({{"dp", 1}});
  program.schedule.steps = steps;
  Op op;
  op.def = &ops::fill;
  Stream a{"compute", std::vector<Op>(static_cast<size_t>(ops), op)}, b{"other", {}};
  if (edges) {
    b.ops = a.ops;
    for (int i = 0; i < ops; i += 8) a.ops[static_cast<size_t>(i)].waits = {{1, std::max(0, i - 4), i == 0 ? 1 : 0}};
    for (int i = 0; i < ops; i += 8) b.ops[static_cast<size_t>(i)].waits = {{0, std::max(0, i - 4), i == 0 ? 1 : 0}};
  }
  program.step().streams.push_back(std::move(a));
  if (edges) program.step().streams.push_back(std::move(b));
  return program;
}

void run(benchmark::State& state, bool edges) {
  constexpr int64_t kSteps = kStepRing / 2;
  constexpr int kOps = 200;
  Program program = make_program(kSteps, kOps, edges);
  NoOpDevice device;
  Alone bootstrap;
  std::unique_ptr<World> world = World::open({}, bootstrap);
  world->connect();
  std::vector<std::byte> memory(recorder_bytes(4096));
  for (auto _ : state) {
    RecorderHeader* recorder = reinterpret_cast<RecorderHeader*>(memory.data());
    recorder->steps_written = 0;  // no reader, and the steps fit into their ring buffer
    recorder->capacity = 4096;
    ExecutorOptions options;
    options.recorder = recorder;
    open_rank_device(device, program, *world)->make_executor(*world, options)->run();
  }
  double ops =
      static_cast<double>(state.iterations()) * kSteps * kOps * static_cast<double>(program.step().streams.size());
  state.counters["time_per_op"] = benchmark::Counter(ops, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK_CAPTURE(run, one_stream, false)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run, two_streams_with_edges, true)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace prun

BENCHMARK_MAIN();
