// Stream 0 runs on the calling thread. Its last op of a step closes the step: loss and times are recorded and the step
// table moves on before the counter does, because every stream's next step waits for that counter. For an evaluation
// all streams stop: its body has streams of its own.
#include "exec/executor.h"

#include <sys/prctl.h>

#include <limits>
#include <thread>

#include "exec/clock.h"
#include "exec/comm_ops.h"
#include "exec/transfer.h"

namespace prun {

Executor::Executor(const Program& program, const Device& device, World& world, const ExecutorOptions& options)
    : JobRun(program, world, options, {.arena = options.arena, .host_arena = options.host_arena}), device_(device) {
  for (Kind kind : {Kind::init, Kind::step, Kind::eval, Kind::sync})
    works_.push_back({kind, body(kind), make_lanes(body(kind))});
}

std::vector<Executor::Lane> Executor::make_lanes(const Body& body) {
  std::vector<Lane> lanes;
  for (const Stream& stream : body.streams) {
    Lane lane;
    lane.stream = &stream;
    lane.done = std::make_unique<ProgressCounter>();
    for (const Op& op : stream.ops) {
      switch (op.def->op_class) {
        case OpClass::communication:
          lane.kernels.push_back(make_comm_kernel(memory_, op, world_));
          break;
        case OpClass::host:
          lane.kernels.push_back(make_host_kernel(memory_, op, host_));
          break;
        case OpClass::transfer:
          lane.kernels.push_back(make_transfer_kernel(memory_, op));
          break;
        case OpClass::lowered:  // no device has a kernel: aborts
        case OpClass::compute:
          lane.kernels.push_back(device_.make_kernel(memory_, op, options_.threads));
          break;
      }
    }
    lanes.push_back(std::move(lane));
  }
  return lanes;
}

void Executor::run_body(Kind kind, int64_t first, int64_t end) {
  Work& work = works_[static_cast<size_t>(kind)];
  if (work.body.streams.empty()) return;
  std::vector<std::thread> threads;
  for (int s = 1; s < std::ssize(work.lanes); ++s) {
    threads.emplace_back([&, s] {
      prctl(PR_SET_NAME, work.body.streams[s].name.c_str());
      walk(work, s, first, end);
    });
  }
  walk(work, 0, first, end);
  for (std::thread& thread : threads) thread.join();
  if (failure_) std::rethrow_exception(failure_);
}

void Executor::walk(Work& work, int s, int64_t first, int64_t end) {
  std::vector<Lane>& lanes = work.lanes;
  Lane& lane = lanes[s];
  const std::vector<Op>& ops = lane.stream->ops;
  StreamState& state = options_.recorder->stream[s];
  uint64_t ready = now_ns(), n = ops.size();
  for (int64_t step = first; step < end; ++step) {
    const int64_t shown = work.kind == Kind::step ? step : work.kind == Kind::init ? UINT32_MAX : table_.step;
    state.step.store(static_cast<uint32_t>(shown), std::memory_order_relaxed);
    for (uint32_t i = 0; i < n; ++i) {
      const Op& op = ops[i];
      state.op.store(i, std::memory_order_relaxed);
      uint64_t begin = ready;
      if (!op.waits.empty()) {
        state.running.store(0, std::memory_order_relaxed);
        if (!wait_edges(lanes, s, op, step, begin)) return;
      }
      if (cancelled_.load(std::memory_order_relaxed)) return;
      state.running.store(1, std::memory_order_relaxed);
      try {
        lane.kernels[i]->run();
      } catch (...) {
        fail(std::current_exception(), &op);
        for (Lane& other : lanes) other.done->wake();
        return;
      }
      uint64_t ended = now_ns();
      if (op.communicates()) {
        lane.comm_ns += ended - begin;
        if (s == 0) lane.exposed_ns += ended - begin;
      }
      if (work.kind == Kind::step) record(s, {static_cast<uint32_t>(step), i, ready, begin, ended});
      if (s == 0 && i + 1 == n && work.kind == Kind::step) finish_step(lanes, step);
      if (s == 0 && i + 1 == n && work.kind == Kind::eval) {
        close_eval_batch(loss(program_.eval_loss_tensor));
        table_.eval_batch++;
      }
      lane.done->advance(static_cast<uint64_t>(step) * n + i + 1);
      ready = ended;
    }
  }
  state.running.store(2, std::memory_order_relaxed);
}

// False when the job is ending. `ready` in: when waiting began; out: when it ended.
bool Executor::wait_edges(std::vector<Lane>& lanes, int s, const Op& op, int64_t step, uint64_t& ready) {
  for (const Edge& edge : op.waits) {
    if (step < edge.back) continue;
    Lane& source = lanes[edge.stream];
    uint64_t n = source.stream->ops.size();
    uint64_t target = static_cast<uint64_t>(step - edge.back) * n + static_cast<uint64_t>(edge.index) + 1;
    if (source.done->value() >= target) continue;
    if (!source.done->wait(target, cancelled_, options_.spins)) return false;
    uint64_t now = now_ns();
    if (s == 0 && source.stream->ops[edge.index].communicates()) lanes[0].exposed_ns += now - ready;
    ready = now;
  }
  return true;
}

void Executor::finish_step(std::vector<Lane>& lanes, int64_t step) {
  StepRecord record{};
  record.step = static_cast<uint64_t>(step);
  record.loss = loss(program_.loss_tensor);
  for (Lane& lane : lanes) {
    record.comm_ns += lane.comm_ns;
    record.exposed_ns += lane.exposed_ns;
    lane.comm_ns = lane.exposed_ns = 0;  // its thread waits for this step's last counter before it goes on
  }
  table_.set(program_.schedule, step + 1);
  close_step(record);
}

double Executor::loss(TensorId tensor) const {
  if (tensor < 0) return std::numeric_limits<double>::quiet_NaN();
  const void* value = memory_.data(tensor);
  const bool wide = program_.tensors[tensor].dtype == Dtype::f64;
  return wide ? *static_cast<const double*>(value) : *static_cast<const float*>(value);
}

}  // namespace prun
