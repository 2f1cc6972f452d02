// Stream 0 runs on the calling thread. Its last op of a step closes the step: it records loss and times and advances
// the step table before the counter, because every stream's next step waits for that counter. Ops carried over the end
// of a step (ir/carried.h) continue on their own stream's thread. Between bodies all streams stop, because each body
// has its own streams and nothing is in flight.
#include "exec/executor.h"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "device/element.h"
#include "exec/comm_ops.h"
#include "exec/host_thread.h"
#include "exec/recorder.h"
#include "ir/carried.h"
#include "ir/ops.h"

namespace prun {
namespace {

uint64_t bytes_of(const Communicator* communicator) {
  return communicator == nullptr ? 0 : static_cast<uint64_t>(communicator->bytes_sent());
}

}  // namespace

Executor::Executor(const Program& program, const Device& device, RankDevice& memory, World& world,
                   const ExecutorOptions& options)
    : JobRun(program, memory, world, options), device_(device) {
  for (BodyId id : program.bodies.ids()) {
    memory_.body = id;
    runs_.push_back({id, program.bodies[id], make_workers(program.bodies[id])});
  }
}

Table<StreamId, Executor::Worker> Executor::make_workers(const Body& body) {
  Table<StreamId, Worker> workers;
  const bool poisons = options_.poison != nullptr && &body == &program_.step();
  const Op* const poisoned_here = poisons ? poisoned_op(program_) : nullptr;
  if (poisons && poisoned_here == nullptr)
    throw usage_error(fmt::format("--chaos nan: rank {} computes no gradients", options_.rank));
  const bool omits = options_.omission != nullptr && &body == &program_.step();
  if (omits && std::ranges::none_of(body.streams, [](const Stream& stream) {
        return std::ranges::any_of(stream.ops, [](const Op& op) { return op.communicates(); });
      }))
    throw usage_error(fmt::format("--chaos omit: rank {} calls no collective", options_.rank));
  const Table<StreamId, int> ended = ended_with(body);
  for (const StreamId s : body.streams.ids()) {
    const Stream& stream = body.streams[s];
    Worker worker;
    worker.stream = &stream;
    worker.ended = static_cast<uint32_t>(ended[s]);
    worker.done = std::make_unique<ProgressCounter>();
    for (const Op& op : stream.ops) {
      worker.kernels.push_back(op.communicates() ? make_comm_kernel(memory_, op, world_)
                                                 : make_local_kernel(device_, memory_, op, host_, options_.threads));
      const bool has_communicator = op.communicates() && put_channel_of(memory_, op, world_) == nullptr;
      worker.communicators.push_back(has_communicator ? &communicator_of(memory_, op, world_) : nullptr);
      if (&op == poisoned_here)
        worker.kernels.back() = poisoned(std::move(worker.kernels.back()), memory_, op, options_.poison);
      if (omits && op.communicates())
        worker.kernels.back() = omitting(std::move(worker.kernels.back()), options_.omission);
    }
    workers.push_back(std::move(worker));
  }
  return workers;
}

void Executor::run_body(BodyId id, int64_t first, int64_t end) {
  BodyRun& run = runs_[id];
  if (run.body.streams.empty()) return;
  // Steps before the first one of a resumed run count as done.
  for (Worker& worker : run.workers)
    if (const uint64_t before = static_cast<uint64_t>(first) * worker.stream->ops.size(); worker.done->value() < before)
      worker.done->advance(before);
  put_before_ = bytes_put();
  const uint64_t sent_before = bytes_sent() - put_before_;
  std::vector<std::thread> threads;
  try {
    for (int s = 1; s < std::ssize(run.workers); ++s)
      threads.emplace_back([&, s] {
        prctl(PR_SET_NAME, run.body.streams[s].name.c_str());
        take_short_slices();
        walk(run, s, first, end);
      });
  } catch (const std::system_error& error) {
    fail(std::make_exception_ptr(no_thread(error)), nullptr);
    for (Worker& worker : run.workers) worker.done->wake();
  }
  walk(run, 0, first, end);
  for (std::thread& thread : threads) thread.join();
  if (failure_) std::rethrow_exception(failure_);
  // Bytes sent by init and by bodies between steps (for example parameter averaging) count towards the next step;
  // evaluation traffic is not counted.
  const bool is_next_steps = id != kStepBody && run.body.loss < 0 && !runs_[kStepBody].workers.empty();
  if (is_next_steps) runs_[kStepBody].workers[0].of(table_.step, 0).bytes += bytes_sent() - bytes_put() - sent_before;
}

void Executor::walk(BodyRun& run, int s, int64_t first, int64_t end) {
  Table<StreamId, Worker>& workers = run.workers;
  Worker& worker = workers[s];
  const std::vector<Op>& ops = worker.stream->ops;
  StreamState& state = options_.recorder->stream[s];
  uint64_t ready = now_ns(), n = ops.size();
  for (int64_t step = first; step < (run.id == kStepBody ? std::min(end, steps()) : end); ++step) {
    state.step.store(static_cast<uint32_t>(run.id == kStepBody ? step : table_.step), std::memory_order_relaxed);
    state.run.store(static_cast<uint32_t>(step), std::memory_order_relaxed);
    for (uint32_t i = 0; i < n; ++i) {
      const Op& op = ops[i];
      state.op.store(i, std::memory_order_relaxed);
      state.since_ns.store(ready, std::memory_order_relaxed);
      uint64_t begin = ready;
      if (!op.waits.empty()) {
        state.running.store(0, std::memory_order_relaxed);
        if (!wait_edges(workers, s, op, step, begin)) return;
        state.since_ns.store(begin, std::memory_order_relaxed);
      }
      if (cancelled_.load(std::memory_order_relaxed) || (run.id == kStepBody && step >= steps())) return;
      state.running.store(1, std::memory_order_relaxed);
      const uint64_t bytes = bytes_of(worker.communicators[i]);
      if (op.communicates()) comm_clock_.enter(begin);
      try {
        worker.kernels[i]->run();
      } catch (...) {
        fail(std::current_exception(), &op);
        for (Worker& other : workers) other.done->wake();
        return;
      }
      uint64_t ended = now_ns();
      if (op.communicates()) {
        comm_clock_.leave(ended);
        Spent& sum = worker.of(step, i);
        sum.comm_ns += ended - begin;
        if (s == 0) sum.exposed_ns += ended - begin;
        sum.bytes += bytes_of(worker.communicators[i]) - bytes;
      }
      if (op.is(ops::next_batch)) worker.of(step, i).data_ns += ended - begin;
      if (run.id == kStepBody) record(s, {static_cast<uint32_t>(step), i, ready, begin, ended});
      if (s == 0 && i + 1 == n && run.id == kStepBody) finish_step(workers, step);
      if (s == 0 && i + 1 == n && run.id != kStepBody) {
        add_loss(scalar(run.body.loss), results(run.body));
        table_.eval_batch++;
      }
      worker.done->advance(static_cast<uint64_t>(step) * n + i + 1);
      if (s == 0 && i + 1 == n && cancelled_.load(std::memory_order_relaxed))
        for (Worker& other : workers) other.done->wake();
      ready = ended;
    }
  }
  state.running.store(2, std::memory_order_relaxed);
}

// Returns false when the job is ending. `ready`: in, the time at which waiting began; out, at which it ended.
bool Executor::wait_edges(Table<StreamId, Worker>& workers, int s, const Op& op, int64_t step, uint64_t& ready) {
  for (const Edge& edge : op.waits) {
    if (step < edge.back) continue;
    Worker& source = workers[edge.stream];
    uint64_t n = source.stream->ops.size();
    uint64_t target = static_cast<uint64_t>(step - edge.back) * n + static_cast<uint64_t>(edge.index) + 1;
    if (source.done->value() >= target) continue;
    const bool exposes = s == 0 && source.stream->ops[edge.index].communicates();
    const uint64_t before = exposes ? comm_clock_.at(now_ns()) : 0;
    if (!source.done->wait(target, cancelled_, options_.spins)) return false;
    uint64_t now = now_ns();
    if (exposes) {
      const uint64_t after = comm_clock_.at(now);
      workers[0].of(step, 0).exposed_ns += after > before ? after - before : 0;
    }
    ready = now;
  }
  return true;
}

void Executor::finish_step(Table<StreamId, Worker>& workers, int64_t step) {
  StepRecord record{};
  record.step = static_cast<uint64_t>(step);
  record.loss = scalar(program_.step().loss);
  record.norm = scalar(program_.step().norm);
  store_named(program_.step(), results(program_.step()), record.named);
  for (Worker& worker : workers) {  // its thread waits for this step's last counter before it writes here again
    const Spent sum = std::exchange(worker.of_steps[step % 2], {});
    record.comm_ns += sum.comm_ns;
    record.data_ns += sum.data_ns;
    record.exposed_ns += sum.exposed_ns;
    record.bytes_sent += sum.bytes;
  }
  const uint64_t exposed = record.exposed_ns + exposed_left_;
  record.exposed_ns = std::min(exposed, record.comm_ns);
  exposed_left_ = exposed - record.exposed_ns;
  const uint64_t put = bytes_put();
  record.bytes_sent += put - std::exchange(put_before_, put);
  if (looks_for_skips()) look_for_skip(record);
  table_.set(program_.schedule, step + 1);
  close_step(record);
  begin_step(step + 1);
}

std::vector<double> Executor::results(const Body& body) const {
  std::vector<double> values;
  if (body.results < 0) return values;
  const Tensor& tensor = program_.tensors[body.results];
  for (int64_t i = 0; i < tensor.count(); ++i)
    values.push_back(load_element(tensor.dtype, memory_.data(body.results), i));
  return values;
}

double Executor::scalar(TensorId tensor) const {
  if (tensor < 0) return std::numeric_limits<double>::quiet_NaN();
  return load_element(program_.tensors[tensor].dtype, memory_.data(tensor), 0);
}

}  // namespace prun
