// Steps are taken from the first local rank's ring; all ranks report the same global loss.
#include "observer.h"

#include <cstdio>

#include <fmt/format.h>

#include "exec/executor.h"

namespace prun {

void Observer::started(const std::vector<int>& ranks, const std::vector<int>&, const std::vector<void*>& recorders) {
  ranks_ = ranks;
  for (void* recorder : recorders) recorders_.push_back(static_cast<RecorderHeader*>(recorder));
}

void Observer::tick() {
  for (size_t r = 0; r < recorders_.size(); ++r) {
    RecorderHeader* recorder = recorders_[r];
    uint64_t written = recorder->steps_written.load(std::memory_order_acquire), read = recorder->steps_read.load();
    for (; read < written; ++read) {
      const StepRecord& step = recorder_steps(recorder)[read % kStepRing];
      if (r == 0 && step.loss == step.loss)
        fmt::print(stderr, "step {:>5}  loss {:.5f}  {:.1f} ms\n", step.step + 1, step.loss, static_cast<double>(step.end_ns - step.begin_ns) * 1e-6);
    }
    recorder->steps_read.store(read, std::memory_order_release);
  }
}

void Observer::line(int, const std::string& text) { fmt::print("{}\n", text); }

std::string Observer::where(int rank) {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r] != rank || job.classes.empty()) continue;
    RecorderHeader* recorder = recorders_[r];
    uint32_t phase = recorder->phase.load();
    if (phase == 0) return "joining";
    const Body& body = phase == 1 ? job.program(rank).init : job.program(rank).step;
    // The stream that is inside an op, else the compute stream.
    for (bool running : {true, false}) {
      for (size_t s = 0; s < body.streams.size(); ++s) {
        const StreamState& state = recorder->stream[s];
        if (running && state.running.load() != 1) continue;
        uint32_t op = state.op.load();
        if (op < body.streams[s].ops.size())
          return fmt::format("step {}: {}{}", state.step.load() + 1, running ? "" : "waiting to run ", op_words(body.streams[s].ops[op]));
      }
    }
  }
  return "";
}

void Observer::finish(int) {}

}  // namespace prun
