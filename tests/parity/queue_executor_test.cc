// The executor for queue devices on the CPU behind prun/device.h. Tests replace functions of its table to observe
// overlap and cleanup after errors.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>

#include "device/plugin_device.h"
#include "ir/ops.h"
#include "ir/order.h"
#include "kernels/cpu_queue/cpu_queue.h"
#include "kernels/devices.h"
#include "tests/parity/one_rank.h"
#include "tests/parity/parity_job.h"

namespace prun::test {
namespace {

const Settings kSteps = {{"strategy", "zero3"}, {"steps", "4"}};

// Returns the program of one rank of two, to run alone: its staged collectives have groups of one rank.
Job alone(const Settings& settings, const std::string& plan) {
  Job job = parity_job(2, settings, "cpu", plan);
  job.classes[0].mesh = Mesh({{"dp", 1}});
  job.class_of_rank = {0};
  return job;
}

// Counts uploaded batches and steps whose loss has been read. A step ends only after the next batch has arrived.
struct Batches {
  std::mutex mutex;
  std::condition_variable changed;
  const QueueMemory* memory = nullptr;
  int come = 0, ended = 0, late = 0;
} batches;

prun_status watched_copy(prun_dev* dev, prun_stream* stream, void* to, const void* from, size_t bytes,
                         prun_result* result) {
  const prun_device& inner = cpu_queue_table();
  bool batch = false, loss = false;
  for (int slot = 0; slot < kStepSlots; ++slot) {
    batch = batch || from == batches.memory->first(slot);
    loss = loss || to == batches.memory->values(slot) + kAlignBytes;
  }
  const auto end = [](void*) {
    std::unique_lock lock(batches.mutex);
    const int wanted = std::min(++batches.ended + 1, 4);
    const auto there = [&] { return batches.come >= wanted || batches.late > 0; };
    batches.changed.wait_for(lock, std::chrono::seconds(20), there);
    batches.late += batches.come < wanted;
  };
  const auto come = [](void*) {
    std::lock_guard lock(batches.mutex);
    ++batches.come;
    batches.changed.notify_all();
  };
  if (loss && inner.host_call(dev, stream, end, nullptr, result) != PRUN_OK) return PRUN_ESYSTEM;
  const prun_status status = inner.copy(dev, stream, to, from, bytes, result);
  if (batch && inner.host_call(dev, stream, come, nullptr, result) != PRUN_OK) return PRUN_ESYSTEM;
  return status;
}

TEST(QueueExecutor, TheNextBatchComesWhileTheDeviceIsAtAStep) {
  prun_device table = cpu_queue_table();
  table.copy = watched_copy;
  const Job job = parity_job(1, kSteps, "cpu-queue");
  const std::unique_ptr<Device> device = make_table_device(table);
  OneRank rank(job.classes[0], *device);
  batches.memory = &rank.queue();
  EXPECT_EQ(rank.run(), losses_of(run_virtual_ranks(job, *open_device("cpu"), {})));
  EXPECT_EQ(batches.come, 4);
  EXPECT_EQ(batches.ended, 4);
  EXPECT_EQ(batches.late, 0);
}

// Large operands (one parameter of width 768 alone has 9 MiB) are copied in chunks on one stream. Counts first chunks
// that have reached the host and that are back, and later chunks that have waited for them.
struct FirstChunks {
  std::mutex mutex;
  std::condition_variable changed;
  std::byte *begin = nullptr, *end = nullptr;  // host memory of the chunks
  int come = 0, back = 0, waited = 0, late = 0;
} first_chunks;

template <int FirstChunks::*count>
void note(void*) {
  std::lock_guard lock(first_chunks.mutex);
  ++(first_chunks.*count);
  first_chunks.changed.notify_all();
}

prun_status chunk_copy(prun_dev* dev, prun_stream* stream, void* to, const void* from, size_t bytes,
                       prun_result* result) {
  const prun_device& inner = cpu_queue_table();
  const auto wait = [](void*) {
    std::unique_lock lock(first_chunks.mutex);
    const auto there = [] { return first_chunks.back >= first_chunks.come || first_chunks.late > 0; };
    first_chunks.changed.wait_for(lock, std::chrono::seconds(20), there);
    first_chunks.late += first_chunks.back < first_chunks.come;
    ++first_chunks.waited;
  };
  if (to > first_chunks.begin && to < first_chunks.end &&
      inner.host_call(dev, stream, wait, nullptr, result) != PRUN_OK)
    return PRUN_ESYSTEM;
  const prun_status status = inner.copy(dev, stream, to, from, bytes, result);
  const auto noted = to == first_chunks.begin     ? note<&FirstChunks::come>
                     : from == first_chunks.begin ? note<&FirstChunks::back>
                                                  : nullptr;
  return status != PRUN_OK || noted == nullptr ? status : inner.host_call(dev, stream, noted, nullptr, result);
}

TEST(QueueExecutor, AChunkIsBackBeforeTheNextHasComeToTheHost) {
  prun_device table = cpu_queue_table();
  table.copy = chunk_copy;
  const Job job =
      alone({{"layers", "1"}, {"width", "768"}, {"context", "8"}, {"batch", "2"}, {"steps", "4"}}, "plans/ddp.lua");
  const Program& program = job.classes[0];
  const std::unique_ptr<Device> device = make_table_device(table);
  OneRank rank(program, *device);
  for (size_t s = 0; s < program.step().streams.size(); ++s)
    for (const Op& op : program.step().streams[s].ops)
      if (op.is(ops::all_reduce) && staged_bytes(program, op) > (8 << 20)) {
        first_chunks.begin = rank.queue().staging(static_cast<int>(s));
        first_chunks.end = first_chunks.begin + staged_bytes(program, op);
      }
  EXPECT_EQ(rank.run(), losses_of(run_virtual_ranks(job, *open_device("cpu"), {})));
  EXPECT_GE(first_chunks.waited, 4);
  EXPECT_EQ(first_chunks.late, 0);
}

TEST(QueueExecutor, RowsOfExpertsStayOnADeviceWhoseTransportEnqueues) {
  const Job job = parity_job(2,
                             {{"layers", "2"},
                              {"width", "64"},
                              {"experts", "8"},
                              {"dropless", "true"},
                              {"capacity", "1"},
                              {"micro", "2"},
                              {"steps", "1"}},
                             "cpu-queue", "plans/moe.lua");
  const Program& program = job.classes[0];
  const auto count = [&](bool enqueues, How wanted) {
    const auto how = how_of(program, program.step(), enqueues);
    int found = 0;
    for (size_t s = 0; s < program.step().streams.size(); ++s)
      for (size_t i = 0; i < program.step().streams[s].ops.size(); ++i)
        found += program.step().streams[s].ops[i].is(ops::exchange_rows) && how[s][i] == wanted;
    return found;
  };
  const int exchanges = count(false, How::host);
  EXPECT_GT(exchanges, 2 * 2 * 4) << "two layers, two microbatches, there and back, forward and backward";
  EXPECT_EQ(count(true, How::counted), exchanges);
  const PinnedLayout pinned(program, true);
  EXPECT_EQ(pinned.counts.size(), 4u) << "counts are read once per layer and microbatch";
  const auto reads = Regions(program.step(), how_of(program, program.step(), true)).hosts;
  EXPECT_EQ(std::count_if(reads.begin(), reads.end(), [](const HostOp& host) { return host.counts >= 0; }), 4);
  EXPECT_LT(4 * pinned.total, PinnedLayout(program, false).total);
}

int open_captures = 0, captures = 0;

prun_status watched_begin(prun_dev* dev, prun_stream* stream, prun_result* result) {
  ++open_captures, ++captures;
  return cpu_queue_table().capture_begin(dev, stream, result);
}
prun_status watched_end(prun_dev* dev, prun_stream* stream, prun_graph** graph, prun_result* result) {
  --open_captures;
  return cpu_queue_table().capture_end(dev, stream, graph, result);
}
prun_status failing_run(prun_dev* dev, prun_kernel* kernel, prun_stream* stream, prun_result* result) {
  if (open_captures == 0) return cpu_queue_table().kernel_run(dev, kernel, stream, result);
  std::snprintf(result->message, sizeof result->message, "out of luck");
  return PRUN_ESYSTEM;
}

TEST(QueueExecutor, AnErrorInACaptureEndsItAndIsTheOneThatIsTold) {
  prun_device table = cpu_queue_table();
  table.capture_begin = watched_begin;
  table.capture_end = watched_end;
  table.kernel_run = failing_run;
  const Job job = parity_job(1, kSteps, "cpu-queue");
  const std::unique_ptr<Device> device = make_table_device(table);
  std::string failed;
  try {
    OneRank(job.classes[0], *device).run(&failed);
    ADD_FAILURE() << "no kernel failed";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "device cpu-queue: starting a kernel: out of luck");
    EXPECT_EQ(error.code(), Exit::rank_crash);
  }
  EXPECT_NE(failed, "");
  EXPECT_GT(captures, 0);
  EXPECT_EQ(open_captures, 0);
}

// In each step the last op of backward waits until all reductions that do not depend on it have reached the host.
struct Buckets {
  std::mutex mutex;
  std::condition_variable changed;
  int of_a_step = 0, early = 0;  // reductions per step; early: before that op
  int come = 0, late = 0, waited = 0;
} buckets;

prun_status bucket_call(prun_dev* dev, prun_stream* stream, void (*function)(void*), void* data, prun_result* result) {
  const auto come = [](void*) {
    std::lock_guard lock(buckets.mutex);
    ++buckets.come;
    buckets.changed.notify_all();
  };
  const prun_status status = cpu_queue_table().host_call(dev, stream, function, data, result);
  return status == PRUN_OK ? cpu_queue_table().host_call(dev, stream, come, nullptr, result) : status;
}

prun_kernel* last_of_backward = nullptr;

prun_status bucket_kernel(prun_dev* dev, const prun_op* op, prun_kernel** kernel, prun_result* result) {
  const prun_status status = cpu_queue_table().kernel_create(dev, op, kernel, result);
  if (status == PRUN_OK && std::string_view(op->kind) == "embedding_grad") last_of_backward = *kernel;
  return status;
}

prun_status bucket_run(prun_dev* dev, prun_kernel* kernel, prun_stream* stream, prun_result* result) {
  const auto wait = [](void*) {
    std::unique_lock lock(buckets.mutex);
    const int wanted = buckets.waited++ * buckets.of_a_step + buckets.early;
    const auto there = [&] { return buckets.come >= wanted || buckets.late > 0; };
    buckets.changed.wait_for(lock, std::chrono::seconds(20), there);
    buckets.late += buckets.come < wanted;
  };
  if (kernel == last_of_backward && cpu_queue_table().host_call(dev, stream, wait, nullptr, result) != PRUN_OK)
    return PRUN_ESYSTEM;
  return cpu_queue_table().kernel_run(dev, kernel, stream, result);
}

TEST(QueueExecutor, BucketsAreReducedWhileBackwardRunsInReplayedSteps) {
  prun_device table = cpu_queue_table();
  table.host_call = bucket_call;
  table.kernel_create = bucket_kernel;
  table.kernel_run = bucket_run;
  const Job job = alone({{"strategy", "ddp"}, {"steps", "4"}}, "tests/parity/gpt.lua");
  const std::unique_ptr<Device> device = make_table_device(table);
  OneRank rank(job.classes[0], *device);
  const Body& step = job.classes[0].step();
  const Order order(step);
  const auto op = [&](OpRef ref) { return step.streams[ref.stream].ops[ref.index]; };
  OpRef last;
  for (const OpRef ref : order.sequence())
    if (op(ref).is(ops::embedding_grad)) last = ref;
  for (const OpRef ref : order.sequence()) {
    if (!op(ref).is(ops::all_reduce)) continue;
    ++buckets.of_a_step;
    if (!order.before(last, ref)) ++buckets.early;
  }
  EXPECT_EQ(rank.run(), losses_of(run_virtual_ranks(job, *open_device("cpu"), {})));
  EXPECT_GT(buckets.early, 3);
  EXPECT_EQ(buckets.waited, 4);
  EXPECT_EQ(buckets.late, 0);
}

// A device with a logical clock: a copy and a graph launch take one unit each, a kernel takes none.
struct LogicalTime {
  std::mutex mutex;
  int64_t now = 0;
  std::map<const prun_event*, int64_t> recorded;
} logical;

// Enqueues work that advances the clock, or records an event, when the stream reaches it.
template <class F>
prun_status in_order(prun_dev* dev, prun_stream* stream, prun_result* result, F* work, void* data) {
  return cpu_queue_table().host_call(dev, stream, work, data, result);
}
void pass_unit(void*) {
  std::lock_guard lock(logical.mutex);
  ++logical.now;
}
void note_time(void* event) {
  std::lock_guard lock(logical.mutex);
  logical.recorded[static_cast<prun_event*>(event)] = logical.now;
}
prun_status slow_copy(prun_dev* dev, prun_stream* stream, void* to, const void* from, size_t bytes,
                      prun_result* result) {
  const prun_status status = in_order(dev, stream, result, pass_unit, nullptr);
  return status == PRUN_OK ? cpu_queue_table().copy(dev, stream, to, from, bytes, result) : status;
}
prun_status slow_launch(prun_dev* dev, prun_graph* graph, prun_stream* stream, prun_result* result) {
  const prun_status status = in_order(dev, stream, result, pass_unit, nullptr);
  return status == PRUN_OK ? cpu_queue_table().graph_launch(dev, graph, stream, result) : status;
}
prun_status timed_record(prun_dev* dev, prun_event* event, prun_stream* stream, int external, prun_result* result) {
  const prun_status status = in_order(dev, stream, result, note_time, event);
  return status == PRUN_OK ? cpu_queue_table().event_record(dev, event, stream, external, result) : status;
}
prun_status logical_elapsed(prun_dev*, prun_event* from, prun_event* to, double* ms, prun_result*) {
  std::lock_guard lock(logical.mutex);
  *ms = static_cast<double>(logical.recorded[to] - logical.recorded[from]);
  return PRUN_OK;
}

TEST(QueueExecutor, TheTimeBetweenStepsHasTheFirstCopiesAndTheLaunch) {
  prun_device table = cpu_queue_table();
  table.copy = slow_copy;
  table.graph_launch = slow_launch;
  table.event_record = timed_record;
  table.event_elapsed = logical_elapsed;
  const Job job = parity_job(1, kSteps, "cpu-queue");
  const std::unique_ptr<Device> device = make_table_device(table);
  OneRank rank(job.classes[0], *device);
  rank.run();
  // In order: the launch, the copy of the step table, and the copy of the batch to its buffer. The next batch may be
  // uploaded meanwhile.
  for (size_t step = 2; step < 4; ++step) {
    EXPECT_GE(rank.record(step).idle_ns, 3'000'000u) << step;
    EXPECT_LE(rank.record(step).idle_ns, 5'000'000u) << step;
  }
}

// Names of the host's calls to a queue device.
std::vector<std::string> asked;

template <auto function>
struct Counted;
template <class... Arguments, prun_status (*prun_device::*function)(Arguments...)>
struct Counted<function> {
  static inline const char* name = nullptr;
  static prun_status call(Arguments... arguments) {
    asked.emplace_back(name);
    return (cpu_queue_table().*function)(arguments...);
  }
};
template <auto function>
void count(prun_device& table, const char* name) {
  Counted<function>::name = name;
  table.*function = Counted<function>::call;
}

TEST(QueueExecutor, AReplayedStepIsOneLaunchAndTheUploadOfItsBatch) {
  prun_device table = cpu_queue_table();
  count<&prun_device::copy>(table, "copy");
  count<&prun_device::zero>(table, "zero");
  count<&prun_device::host_call>(table, "host_call");
  count<&prun_device::kernel_run>(table, "kernel_run");
  count<&prun_device::event_record>(table, "event_record");
  count<&prun_device::event_wait>(table, "event_wait");
  count<&prun_device::graph_launch>(table, "graph_launch");
  const Settings settings = {{"strategy", "zero3"}, {"steps", "8"}, {"clip", "1"}};
  const Job job = parity_job(1, settings, "cpu-queue");
  const std::unique_ptr<Device> device = make_table_device(table);
  asked.clear();
  EXPECT_EQ(OneRank(job.classes[0], *device).run(), losses_of(run_virtual_ranks(job, *open_device("cpu"), {})));
  // The first step is enqueued op by op; the next three are captured, one for each slot.
  const std::vector<std::string> step = {"copy", "event_record", "event_wait", "graph_launch", "event_record"};
  std::vector<std::string> replayed;
  for (int i = 0; i < 4; ++i) replayed.insert(replayed.end(), step.begin(), step.end());
  ASSERT_GT(asked.size(), replayed.size());
  EXPECT_EQ(std::vector<std::string>(asked.end() - std::ssize(replayed), asked.end()), replayed);
  EXPECT_EQ(std::count(asked.begin(), asked.end(), "graph_launch"), 7);
}

}  // namespace
}  // namespace prun::test
