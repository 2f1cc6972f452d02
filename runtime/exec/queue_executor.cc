#include "exec/queue_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/text.h"
#include "device/element.h"
#include "exec/recorder.h"
#include "ir/carried.h"

namespace prun {

struct QueueExecutor::Batch final : Kernel {
  void run() override { body->run_first(slot, table); }
  QueueBody* body = nullptr;
  int slot = 0;
  StepTable table;
};

QueueExecutor::QueueExecutor(const Program& program, QueueMemory& queue, World& world, const ExecutorOptions& options)
    : JobRun(program, queue, world, options),
      queue_(queue),
      copies_(queue_.device()),
      values_(queue_.device(), sizeof(prun_step_values), PRUN_PLACE_DEVICE) {
  QueueDevice& device = queue_.device();
  if (options.poison != nullptr)
    throw usage_error(fmt::format(
        "--chaos nan writes into the host's memory, and '{}' computes elsewhere: --device cpu", device.table().name));
  if (options.omission != nullptr)
    throw usage_error(fmt::format("--chaos omit leaves out what a rank calls, and '{}' is enqueued on: --device cpu",
                                  device.table().name));
  PRUN_CHECK(!goes_on(program.step()), "a queue device runs each step as a whole");
  size_t most = 1;
  for (const Body& body : program.bodies) most = std::max(most, body.streams.size());
  for (size_t s = 0; s < most; ++s) streams_.emplace_back(device, s == 0 ? 0 : -1);
  streams_[0].zero(queue_.arena(), program.arena_bytes);
  slots_.reserve(kStepSlots);  // bodies point at them
  std::vector<StepMemory> steps;
  for (int i = 0; i < kStepSlots; ++i) {
    Slot& slot = slots_.emplace_back(device);
    slot.values = reinterpret_cast<prun_step_values*>(queue_.values(i));
    slot.loss = queue_.values(i) + kAlignBytes;
    slot.norm = slot.loss + sizeof(double);
    slot.results = queue_.values(i) + 2 * kAlignBytes;
    steps.push_back({slot.values, slot.loss, slot.norm, slot.results, &slot.begin});
  }
  const QueueContext context{queue_,
                             streams_,
                             copies_,
                             memory_,
                             reinterpret_cast<prun_step_values*>(values_.get()),
                             std::move(steps),
                             world,
                             host_,
                             options.threads,
                             options.timed,
                             options.graphs,
                             cancelled_,
                             [this](const Op& op) { fail(std::current_exception(), &op); }};
  for (BodyId id : program.bodies.ids()) bodies_.push_back(std::make_unique<QueueBody>(context, id));
}

// Waits for all streams, because kernels may be freed only when no stream has work left.
QueueExecutor::~QueueExecutor() {
  const auto wait = [](DeviceStream& stream) {
    try {
      stream.wait();
    } catch (const Error&) {  // already reported
    }
  };
  std::for_each(streams_.begin(), streams_.end(), wait);
  wait(copies_);
}

// Gives kernels of an aborted transport time to end, because a process that exits while its kernels wait for a peer
// leaves them to the driver. Other work ends with the process. The launcher kills after 200 ms.
bool QueueExecutor::settle() {
  constexpr uint64_t kMoment = 100'000'000;
  const uint64_t end = now_ns() + kMoment;
  try {
    for (const DeviceStream& stream : streams_)
      for (Backoff backoff; !stream.idle() && now_ns() < end;) backoff.wait();
  } catch (const Error&) {  // a broken device does no work
  }
  return false;
}

void QueueExecutor::run_body(BodyId id, int64_t first, int64_t end) {
  if (bodies_[id]->empty()) return;
  try {
    run_steps(id, first, end);
  } catch (const QueueBody::Cancelled&) {
  } catch (...) {
    fail(std::current_exception(), nullptr);
  }
  if (failure_) std::rethrow_exception(failure_);
}

// Returns the step table of a run of a body. Consecutive runs between steps count from 0 and precede step table_.step.
StepTable QueueExecutor::table_of(BodyId id, int64_t step, int64_t first) const {
  StepTable table = table_;
  if (id == kStepBody) table.set(program_.schedule, step);
  table.eval_batch = id == kStepBody ? 0 : step - first;
  return table;
}

void QueueExecutor::run_steps(BodyId id, int64_t first, int64_t end) {
  QueueBody& work = *bodies_[id];
  Batch batch;
  batch.body = &work;
  HostJob job;
  job.kernel = &batch;
  if (work.has_first()) job.op = &work.first_op();
  HostThread thread(
      "data", cancelled_, [] {}, [this](const Op& op) { fail(std::current_exception(), &op); });
  const auto make_batch = [&](int64_t step) {
    batch.slot = static_cast<int>(step % kStepSlots);
    batch.table = table_of(id, step, first);
    thread.push(job);
  };
  if (work.has_first()) make_batch(first);
  progress_ns_ = now_ns();
  // The optimizer's step count is known only after the previous step has ended.
  const int64_t lag = id == kStepBody && looks_for_skips() ? 1 : 2;
  for (int64_t step = first; step < end; ++step) {
    if (id == kStepBody) {
      begin_step(step);
      end = std::min(end, steps());
      if (step == end) break;
    }
    // The next step's batch overwrites the slot of step - 2.
    if (step - lag >= first) finish(id, slot_of(step - lag));
    if (work.has_first()) {
      for (Backoff backoff; job.ended.load(std::memory_order_acquire) < static_cast<uint64_t>(step - first + 1);
           backoff.wait())
        check_alive();
      if (step + 1 < end) make_batch(step + 1);
    }
    slot_of(step).after_another = step > first;
    issue(id, step, table_of(id, step, first));
  }
  for (int64_t step = std::max(first, end - lag); step < end; ++step) finish(id, slot_of(step));
  if (id == kStepBody) table_.set(program_.schedule, end);
}

void QueueExecutor::issue(BodyId id, int64_t step, const StepTable& table) {
  QueueBody& work = *bodies_[id];
  Slot& slot = slot_of(step);
  const uint64_t begin = now_ns(), sent = bytes_sent();
  table_ = table;  // for host ops, which end before issue returns
  *slot.values = table;
  slot.issued_ns = begin;
  const uint64_t before = now_ns() - begin;
  work.issue(table_.step, static_cast<int>(step % kStepSlots), options_.recorder->stream, [this] { check_alive(); });
  const uint64_t after = now_ns();
  slot.end.record(streams_[0]);
  slot.step = step;
  slot.host_ns = before + work.issuing_ns() + now_ns() - after;
  // Bytes sent by init and by bodies between steps count towards the next step, as in Executor. Replayed collectives
  // count none, so the number is right only in timed runs, which report it.
  const uint64_t bytes = bytes_sent() - sent;
  if (id == kStepBody) slot.bytes = bytes + std::exchange(sent_between_, 0);
  if (id != kStepBody && program_.bodies[id].loss < 0) sent_between_ += bytes;
}

void QueueExecutor::finish(BodyId id, Slot& slot) {
  for (Backoff backoff; !slot.end.reached(); backoff.wait()) check_alive();
  progress_ns_ = now_ns();
  const auto scalar = [&](TensorId tensor, const std::byte* at) {
    return tensor < 0 ? std::numeric_limits<double>::quiet_NaN() : load_element(program_.tensors[tensor].dtype, at, 0);
  };
  const double loss = scalar(program_.bodies[id].loss, slot.loss);
  const Body& body = program_.bodies[id];
  std::vector<double> results;
  for (int64_t i = 0; body.results >= 0 && i < program_.tensors[body.results].count(); ++i)
    results.push_back(load_element(program_.tensors[body.results].dtype, slot.results, i));
  if (id != kStepBody) return add_loss(loss, std::move(results));
  StepRecord record{};
  record.step = static_cast<uint64_t>(slot.step);
  record.loss = loss;
  record.norm = scalar(program_.step().norm, slot.norm);
  store_named(body, results, record.named);
  if (looks_for_skips()) look_for_skip(record);
  record.host_ns = slot.host_ns;
  record.bytes_sent = slot.bytes;
  const Slot& previous = slot_of(slot.step + kStepSlots - 1);
  const auto ns_between = [](const DeviceEvent& from, const DeviceEvent& to) {
    return static_cast<uint64_t>(std::max(0.0, to.ms_since(from)) * 1e6);
  };
  if (slot.after_another) record.idle_ns = ns_between(previous.end, slot.begin);
  // The device's clock gives only differences. The first step of a run finds the device idle, so it begins when it is
  // enqueued.
  const uint64_t since = slot.after_another ? last_end_ns_ + ns_between(previous.end, slot.end)
                                            : slot.issued_ns + ns_between(slot.begin, slot.end);
  const uint64_t end_ns = last_end_ns_ = std::min(progress_ns_, since);
  if (options_.timed) {
    const auto ns = [&](const DeviceEvent& event) { return end_ns - ns_between(event, slot.end); };
    bodies_[id]->read_times(
        static_cast<int>(slot.step % kStepSlots), ns,
        [&](int stream, const OpEvent& event) { JobRun::record(stream, event); }, record);
  }
  options_.recorder->beat_ns.store(progress_ns_, std::memory_order_relaxed);
  close_step(record, end_ns);
}

void QueueExecutor::check_alive() {
  if (cancelled_.load(std::memory_order_relaxed)) throw QueueBody::Cancelled{};
  if (options_.aborted && options_.aborted()) throw Aborted("");
  const double waited = static_cast<double>(now_ns() - progress_ns_) / 1e9;
  const int awaited = world_.check(waited);
  if (waited < options_.deadline_s || world_.transport_name() == "none") return;
  const std::string why =
      awaited < 0
          ? "it waits for another rank, or a kernel does not end"
          : fmt::format("it waits for rank {}, which reports nothing: it is stopped, or busy with other work", awaited);
  throw Error(Exit::hang,
              fmt::format("the device {} has been at its work for {} without an end: {} (--timeout allows more)",
                          queue_.device().table().name, human_seconds(waited), why));
}

}  // namespace prun
