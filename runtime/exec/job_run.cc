#include "exec/job_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "exec/comm_ops.h"
#include "exec/host_ops.h"
#include "exec/rank_device.h"
#include "exec/recorder.h"
#include "ir/calendar.h"
#include "ir/data_source.h"
#include "ir/ops.h"

namespace prun {

std::string op_words(const Op& op) {
  std::string words(op.def->name);
  if (!op.unit.empty()) words += " of " + op.unit;
  if (op.phase == Phase::forward || op.phase == Phase::backward) words += fmt::format(" ({})", phase_name(op.phase));
  if (op.site.known()) words += " at " + op.site.text();
  return words;
}

namespace {

std::string failed_op_words(const std::exception_ptr& error, const Op* op) {
  try {
    std::rethrow_exception(error);
  } catch (const NonFinite& made) {
    return made.op();
  } catch (...) {
    return op != nullptr ? op_words(*op) : "";
  }
}

bool is_aborted(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Aborted&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

JobRun::JobRun(const Program& program, RankDevice& device, World& world, const ExecutorOptions& options)
    : program_(program), rank_device_(device), world_(world), options_(options), steps_(program.schedule.steps) {
  PRUN_CHECK(!program.step().repeat.any(), "a program is written out before it runs");
  table_.skipped = program.schedule.begin.skipped_steps;
  table_.set(program.schedule, program.schedule.begin.step);
  memory_.rank = options.rank;
  memory_.program = &program;
  memory_.table = &table_;
  memory_.arena = device.arena();
  memory_.host_arena = device.host_arena();
  host_.print = options.print;
  CheckpointOptions checkpoint = options.checkpoint;
  if (!program.step().data.feed.empty()) {
    host_.cancelled = [this] { return cancelled_.load() || (options_.aborted && options_.aborted()); };
    host_.cursors = std::make_shared<FeedCursors>();
    checkpoint.cursor = [cursors = host_.cursors, &program](int64_t step) {
      return cursors->after(position_after(program, step).samples);
    };
  }
  host_.checkpoints = open_checkpoints(checkpoint, program, options.rank, options.aborted);
  host_.checkpoints->steps = [this] { return steps(); };
  if (const Watched& watched = program.schedule.watched; watched.any()) {
    progress_ = host_.checkpoints->progress;
    if (progress_.metric != watched.metric || progress_.largest != watched.largest) progress_ = {};
    progress_.metric = watched.metric;
    progress_.largest = watched.largest;
    host_.checkpoints->progress_now = [this] { return progress_; };
  }
  host_.predictions = options.predictions;
  if (!options.generation.prompt.empty())
    host_.generation = std::make_shared<GenerationServices>(options.generation, options.rank, options.print);
  make_communicators();
  options_.recorder->streams = static_cast<uint32_t>(program.step().streams.size());
}

// Making a communicator is collective, and ranks with different programs use their groups in different orders, so all
// ranks make theirs sorted by members and lane.
void JobRun::make_communicators() {
  std::set<std::pair<std::vector<int>, int>> wanted;
  for (const Body& body : program_.bodies)
    for (const Stream& stream : body.streams)
      for (const Op& op : stream.ops)
        if (PutChannel* channel = rank_device_.takes_puts() ? put_channel_of(memory_, op, world_) : nullptr)
          put_channels_.insert(channel);
        else if (op.communicates())
          wanted.emplace(members_of(program_.mesh, op, options_.rank), op.lane);
  for (const auto& [members, lane] : wanted) communicators_.push_back(&world_.communicator(members, lane));
  rank_device_.account(&DeviceUse::transports);
}

void JobRun::publish_use() {
  rank_device_.account(&DeviceUse::kernels);
  const DeviceUse& use = rank_device_.use();
  const int64_t members[] = {use.total, use.before, use.arena, use.transports, use.kernels, use.free};
  for (size_t i = 0; i < std::size(members); ++i) options_.recorder->device_use[i].store(members[i]);
}

void JobRun::run() {
  options_.recorder->phase.store(RunPhase::running, std::memory_order_release);
  const auto run = [&](BodyId id, int64_t first, int64_t end) {
    if (id == kStepBody) publish_step();
    options_.recorder->body.store(static_cast<uint32_t>(id.index()), std::memory_order_release);
    losses_.clear();
    results_.clear();
    table_.eval_batch = 0;
    run_body(id, first, end);
    if (id == kInitBody) {
      free_init();
      step_begin_ns_ = now_ns();
    } else if (id != kStepBody && program_.bodies[id].loss >= 0) {
      close_evaluation(program_.bodies[id]);
    }
    if (id == kInitBody) begin_step(program_.schedule.begin.step);
  };
  follow_calendar(program_, run, [this] { return steps(); });
  publish_step();
  if (host_.checkpoints->writer) host_.checkpoints->writer->wait();
  publish_use();
  options_.recorder->phase.store(RunPhase::finished, std::memory_order_release);
}

void JobRun::begin_step(int64_t step) {
  if (options_.before_step) options_.before_step(step);
  if (host_.generation && host_.generation->ended()) steps_.store(std::min(steps(), step), std::memory_order_release);
  if (!options_.begin_step || step >= steps()) return;
  steps_.store(std::min(steps(), options_.begin_step(step)), std::memory_order_release);
}

// All ranks decide alike, by the same norm. A rank without a norm trains nothing.
void JobRun::look_for_skip(StepRecord& record) {
  const Body& body = program_.step();
  const int64_t most = program_.schedule.most_skips;
  const bool norm = body.norm >= 0 && !std::isfinite(record.norm),
             loss = most == 1 && body.loss >= 0 && !std::isfinite(record.loss);
  record.skipped = norm ? 1 : 0;
  table_.skipped += norm ? 1 : 0;
  skips_in_a_row_ = norm || loss ? skips_in_a_row_ + 1 : 0;
  if (skips_in_a_row_ < most) return;
  const auto step = static_cast<int64_t>(record.step);
  const double value = norm ? record.norm : record.loss;
  std::string text = fmt::format("the {} is {} in step {}", norm ? "norm of all gradients" : "loss",
                                 std::isnan(value) ? "NaN" : "infinite", step + 1);
  if (most > 1)
    text = fmt::format("{} steps in a row had gradients that are not finite, the last one {}", most, step + 1);
  text += "; --check-finite names the op that makes the first one";
  std::string made;
  for (const Stream& stream : body.streams)
    for (const Op& op : stream.ops)
      if (op.is(ops::clip_coefficient)) made = op_words(op);
  if (most == 1) wait_for_commit();
  fail(std::make_exception_ptr(NonFinite(std::move(text), std::move(made), true, step)), nullptr);
}

// A job that rolls back uses the commit in progress. Rank 0 commits the files of all ranks, so the others report
// nothing until rank 0 ends the job.
void JobRun::wait_for_commit() {
  constexpr auto kMost = std::chrono::seconds(5);
  if (!host_.checkpoints->writer) return;
  host_.checkpoints->writer->wait();
  const auto end = std::chrono::steady_clock::now() + kMost;
  while (options_.rank != 0 && options_.aborted && !options_.aborted() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// Before the first step there is no record that the evaluation could follow, so that it has one of its own.
void JobRun::close_evaluation(const Body& body) {
  if (!unpublished_) {
    unpublished_.emplace();
    unpublished_->step = kBeforeSteps;
    unpublished_->loss = std::numeric_limits<double>::quiet_NaN();
    unpublished_->begin_ns = unpublished_->end_ns = step_begin_ns_;
  }
  unpublished_->eval_loss = evaluation_loss(body.data, losses_);
  if (!body.named.empty()) {
    std::vector<double> means;
    for (size_t slot = 0; slot < results_.front().size(); ++slot) {
      std::vector<double> of_batches;
      for (const std::vector<double>& batch : results_) of_batches.push_back(batch[slot]);
      means.push_back(evaluation_loss(body.data, of_batches));
    }
    store_named(body, means, unpublished_->eval_named);
  }
  unpublished_->eval_ns = std::max<uint64_t>(1, now_ns() - step_begin_ns_);
  step_begin_ns_ = now_ns();
  watch(watched_value(body), static_cast<int64_t>(unpublished_->step) + 1);
}

double JobRun::watched_value(const Body& body) const {
  for (size_t i = 0; i < body.named.size(); ++i)
    if ("eval_" + body.named[i].name == program_.schedule.watched.metric) return unpublished_->eval_named[i];
  return unpublished_->eval_loss;
}

// All ranks decide alike, because an evaluation's results are all-reduced.
void JobRun::watch(double value, int64_t step) {
  const Watched& watched = program_.schedule.watched;
  if (!watched.any()) return;
  progress_.step = std::isfinite(value) ? step : -1;
  progress_.value = std::isfinite(value) ? value : 0;
  if (std::isfinite(value) && (progress_.best_step < 0 || watched.improves(value, progress_.best))) {
    progress_.best = value;
    progress_.best_step = step;
    progress_.since = 0;
    return;
  }
  ++progress_.since;
  if (watched.patience == 0 || progress_.since < watched.patience || step >= program_.schedule.steps) return;
  progress_.ended = true;
  steps_.store(std::min(steps(), step), std::memory_order_release);
  if (options_.rank != 0 || !options_.print) return;
  const std::string best = progress_.best_step < 0 ? ""
                                                   : fmt::format(": the best was {:.6g}, after step {}", progress_.best,
                                                                 progress_.best_step);
  options_.print(fmt::format("ends after step {}, because {} has not improved in {} evaluations{}", step,
                             watched.metric, progress_.since, best));
}

void JobRun::record(int stream, const OpEvent& event) {
  RecorderHeader* recorder = options_.recorder;
  StreamState& state = recorder->stream[stream];
  uint64_t written = state.written.load(std::memory_order_relaxed);
  recorder_ring(recorder, stream)[written & (recorder->capacity - 1)] = event;
  state.written.store(written + 1, std::memory_order_release);
  recorder->beat_ns.store(event.end_ns, std::memory_order_relaxed);
}

void JobRun::close_step(StepRecord record, uint64_t end_ns) {
  try {
    if (host_.checkpoints->writer) host_.checkpoints->writer->check();
  } catch (...) {
    fail(std::current_exception(), nullptr);
  }
  record.begin_ns = step_begin_ns_;
  record.end_ns = end_ns > 0 ? std::max(end_ns, step_begin_ns_) : now_ns();
  step_begin_ns_ = record.end_ns;
  unpublished_ = record;
  for (BodyId id = kStepBody + 1; id < program_.bodies.next(); ++id)
    if (program_.bodies[id].loss >= 0 && program_.bodies[id].when.due_after(static_cast<int64_t>(record.step))) return;
  publish_step();
}

uint64_t JobRun::bytes_sent() const {
  uint64_t bytes = bytes_put();
  for (Communicator* c : communicators_) bytes += static_cast<uint64_t>(c->bytes_sent());
  return bytes;
}

uint64_t JobRun::bytes_put() const {
  uint64_t bytes = 0;
  for (PutChannel* c : put_channels_) bytes += static_cast<uint64_t>(c->bytes_sent());
  return bytes;
}

// Appends to the ring buffer of step records; waits until the launcher has read the record that it replaces.
void JobRun::publish_step() {
  if (!unpublished_) return;
  RecorderHeader* recorder = options_.recorder;
  uint64_t written = recorder->steps_written.load(std::memory_order_relaxed);
  while (written - recorder->steps_read.load(std::memory_order_acquire) >= static_cast<uint64_t>(kStepRing)) {
    if (cancelled_.load() || (options_.aborted && options_.aborted())) break;
    std::this_thread::yield();
  }
  recorder_steps(recorder)[written % static_cast<uint64_t>(kStepRing)] = *unpublished_;
  unpublished_.reset();
  recorder->steps_written.store(written + 1, std::memory_order_release);
}

void JobRun::tell(const std::exception_ptr& error) const {
  try {
    std::rethrow_exception(error);
  } catch (const Aborted&) {
  } catch (const Error& told) {
    options_.failed(told, failed_op_);
  } catch (...) {  // its handler reports it
  }
}

void JobRun::fail(std::exception_ptr error, const Op* op) {
  {
    std::lock_guard lock(failure_mutex_);
    if (!failure_ || (is_aborted(failure_) && !is_aborted(error))) {
      failure_ = error;
      failed_op_ = failed_op_words(error, op);
      if (options_.failed) tell(error);
    }
  }
  cancelled_.store(true, std::memory_order_release);
  world_.abort();
}

}  // namespace prun
