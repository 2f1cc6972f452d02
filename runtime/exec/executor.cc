// Stream 0 runs on the calling thread. Its last op of a step closes the step: loss and times are recorded and the step
// table moves on before the counter does, because every stream's next step waits for that counter. For an evaluation all
// streams stop: its body has streams of its own.
#include "exec/executor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <sys/prctl.h>

#include "exec/clock.h"
#include "exec/comm_ops.h"

namespace prun {

std::string op_words(const Op& op) {
  std::string words(op.def->name);
  if (!op.unit.empty()) words += " of " + op.unit;
  if (op.phase == Phase::forward || op.phase == Phase::backward) words += fmt::format(" ({})", phase_name(op.phase));
  if (op.site.known()) words += " at " + op.site.text();
  return words;
}

Executor::Executor(const Program& program, const Device& device, World& world, const ExecutorOptions& options)
    : program_(program),
      device_(device),
      world_(world),
      options_(options),
      init_{Kind::init, program.init, {}},
      step_{Kind::step, program.step, {}},
      eval_{Kind::eval, program.eval, {}},
      sync_{Kind::sync, program.sync, {}} {
  table_.set(program.schedule, 0);
  memory_ = {options.arena, options.rank, &program, &table_};
  host_ = open_host_services(program, options.print);
  make_communicators();
  for (Work* work : {&init_, &step_, &eval_, &sync_}) work->lanes = make_lanes(work->body);
  options_.recorder->streams = static_cast<uint32_t>(program.step.streams.size());
}

// Ranks whose programs differ meet their groups in different orders; making a communicator is collective, so all ranks
// make theirs in the order of members and lane.
void Executor::make_communicators() {
  std::set<std::pair<std::vector<int>, int>> wanted;
  for (const Body* body : program_.bodies())
    for (const Stream& stream : body->streams)
      for (const Op& op : stream.ops)
        if (PutChannel* channel = put_channel_of(memory_, op, world_))
          put_channels_.insert(channel);
        else if (op.communicates())
          wanted.emplace(members_of(program_.mesh, op, options_.rank), op.lane);
  for (const auto& [members, lane] : wanted) communicators_.push_back(&world_.communicator(members, lane));
}

std::vector<Executor::Lane> Executor::make_lanes(const Body& body) {
  std::vector<Lane> lanes;
  for (const Stream& stream : body.streams) {
    Lane lane;
    lane.stream = &stream;
    lane.done = std::make_unique<ProgressCounter>();
    for (const Op& op : stream.ops) {
      switch (op.def->op_class) {
        case OpClass::communication: lane.kernels.push_back(make_comm_kernel(memory_, op, world_)); break;
        case OpClass::host: lane.kernels.push_back(make_host_kernel(memory_, op, host_)); break;
        case OpClass::lowered:  // no device has a kernel: aborts
        case OpClass::compute: lane.kernels.push_back(device_.make_kernel(memory_, op, options_.threads)); break;
      }
    }
    lanes.push_back(std::move(lane));
  }
  return lanes;
}

void Executor::run() {
  options_.recorder->phase.store(1, std::memory_order_release);
  run_body(init_, 0, 1);
  init_.lanes.clear();
  const Schedule& schedule = program_.schedule;
  step_begin_ns_ = now_ns();
  for (int64_t step = 0; step < schedule.steps;) {
    const int64_t pause = schedule.next_pause(step);
    options_.recorder->phase.store(2, std::memory_order_release);
    run_body(step_, step, pause);
    if (schedule.syncs_after(pause - 1)) {
      options_.recorder->phase.store(5, std::memory_order_release);
      run_body(sync_, pause / schedule.sync_every - 1, pause / schedule.sync_every);
    }
    if (schedule.evaluates_after(pause - 1)) evaluate(pause - 1);
    step = pause;
  }
  options_.recorder->phase.store(3, std::memory_order_release);
}

// The calendar is the same on all ranks. Counters go on from one evaluation to the next.
void Executor::evaluate(int64_t step) {
  const int64_t batches = program_.schedule.eval_batches, first = step / program_.schedule.eval_every * batches;
  options_.recorder->phase.store(4, std::memory_order_release);
  eval_losses_ = 0;
  table_.eval_batch = 0;
  run_body(eval_, first, first + batches);
  StepRecord record = unpublished_;
  record.eval_loss = eval_losses_ / static_cast<double>(batches);
  record.eval_ns = std::max<uint64_t>(1, now_ns() - step_begin_ns_);
  bytes_before_ = bytes_sent();
  step_begin_ns_ = now_ns();
  publish(record);
}

// Once for each of first, ..., end - 1.
void Executor::run_body(Work& work, int64_t first, int64_t end) {
  if (work.body.streams.empty()) return;
  std::vector<std::thread> threads;
  for (int s = 1; s < static_cast<int>(work.lanes.size()); ++s) {
    threads.emplace_back([&, s] {
      prctl(PR_SET_NAME, work.body.streams[static_cast<size_t>(s)].name.c_str());
      walk(work, s, first, end);
    });
  }
  walk(work, 0, first, end);
  for (std::thread& thread : threads) thread.join();
  if (failure_) std::rethrow_exception(failure_);
}

void Executor::walk(Work& work, int s, int64_t first, int64_t end) {
  std::vector<Lane>& lanes = work.lanes;
  Lane& lane = lanes[static_cast<size_t>(s)];
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
        return fail(lanes, std::current_exception(), op);
      }
      uint64_t ended = now_ns();
      if (op.communicates()) {
        lane.comm_ns += ended - begin;
        if (s == 0) lane.exposed_ns += ended - begin;
      }
      if (work.kind == Kind::step) record(s, {static_cast<uint32_t>(step), i, ready, begin, ended});
      if (s == 0 && i + 1 == n && work.kind == Kind::step) finish_step(lanes, step);
      if (s == 0 && i + 1 == n && work.kind == Kind::eval) finish_eval_batch();
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
    Lane& source = lanes[static_cast<size_t>(edge.stream)];
    uint64_t n = source.stream->ops.size();
    uint64_t target = static_cast<uint64_t>(step - edge.back) * n + static_cast<uint64_t>(edge.index) + 1;
    if (source.done->value() >= target) continue;
    if (!source.done->wait(target, cancelled_, options_.spins)) return false;
    uint64_t now = now_ns();
    if (s == 0 && source.stream->ops[static_cast<size_t>(edge.index)].communicates()) lanes[0].exposed_ns += now - ready;
    ready = now;
  }
  return true;
}

void Executor::record(int stream, const OpEvent& event) {
  RecorderHeader* recorder = options_.recorder;
  StreamState& state = recorder->stream[stream];
  uint64_t written = state.written.load(std::memory_order_relaxed);
  recorder_ring(recorder, stream)[written & (recorder->capacity - 1)] = event;
  state.written.store(written + 1, std::memory_order_release);
  recorder->beat_ns.store(event.end_ns, std::memory_order_relaxed);
}

void Executor::finish_step(std::vector<Lane>& lanes, int64_t step) {
  StepRecord record{};
  record.step = static_cast<uint64_t>(step);
  record.begin_ns = step_begin_ns_;
  record.end_ns = now_ns();
  record.loss = loss(program_.loss_tensor);
  for (Lane& lane : lanes) {
    record.comm_ns += lane.comm_ns;
    record.exposed_ns += lane.exposed_ns;
    lane.comm_ns = lane.exposed_ns = 0;  // its thread waits for this step's last counter before it goes on
  }
  const uint64_t bytes = bytes_sent();
  record.bytes_sent = bytes - bytes_before_;
  bytes_before_ = bytes;
  step_begin_ns_ = record.end_ns;
  table_.set(program_.schedule, step + 1);
  if (program_.schedule.evaluates_after(step)) unpublished_ = record;
  else publish(record);
}

void Executor::finish_eval_batch() {
  eval_losses_ += loss(program_.eval_loss_tensor);
  table_.eval_batch++;
}

uint64_t Executor::bytes_sent() const {
  uint64_t bytes = 0;
  for (Communicator* c : communicators_) bytes += static_cast<uint64_t>(c->bytes_sent());
  for (PutChannel* c : put_channels_) bytes += static_cast<uint64_t>(c->bytes_sent());
  return bytes;
}

double Executor::loss(int tensor) const {
  if (tensor < 0) return std::numeric_limits<double>::quiet_NaN();
  const void* value = memory_.data(tensor);
  const bool wide = program_.tensors[static_cast<size_t>(tensor)].dtype == Dtype::f64;
  return wide ? *static_cast<const double*>(value) : *static_cast<const float*>(value);
}

// Waits while the launcher has not read the ring's oldest record.
void Executor::publish(const StepRecord& record) {
  RecorderHeader* recorder = options_.recorder;
  uint64_t written = recorder->steps_written.load(std::memory_order_relaxed);
  while (written - recorder->steps_read.load(std::memory_order_acquire) >= static_cast<uint64_t>(kStepRing)) {
    if (cancelled_.load() || (options_.aborted && options_.aborted())) break;
    std::this_thread::yield();
  }
  recorder_steps(recorder)[written % static_cast<uint64_t>(kStepRing)] = record;
  recorder->steps_written.store(written + 1, std::memory_order_release);
}

void Executor::fail(std::vector<Lane>& lanes, std::exception_ptr error, const Op& op) {
  {
    std::lock_guard lock(failure_mutex_);
    if (!failure_) {
      failure_ = error;
      failed_op_ = op_words(op);
    }
  }
  cancelled_.store(true, std::memory_order_release);
  world_.abort();
  for (Lane& lane : lanes) lane.done->wake();
}

}  // namespace prun
