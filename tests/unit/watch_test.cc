// Views of a job, from recorders that the test writes: steps, live line, metrics, summary, trace.
//
// Surprising fact: no clock or terminal takes part; both are functions of the Screen.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "ir/op_cost.h"
#include "ir/ops.h"
#include "watch/metrics.h"
#include "watch/observer.h"
#include "watch/outlet.h"
#include "watch/progress.h"
#include "watch/run_folder.h"
#include "watch/steps.h"
#include "watch/summary.h"
#include "watch/trace.h"

namespace prun {
namespace {

const OpDef kLinear{.name = "linear", .op_class = OpClass::compute};
const OpDef& kAllReduce = ops::all_reduce;

class FakeRecorder {
 public:
  explicit FakeRecorder(uint64_t capacity = 64) : memory_(recorder_bytes(capacity) / 8 + 8) {
    header()->magic = kRecorderMagic;
    header()->capacity = capacity;
  }
  RecorderHeader* header() { return reinterpret_cast<RecorderHeader*>(memory_.data()); }
  void step(uint64_t index, double loss, double seconds = 0.1, double comm = 0, double exposed = 0,
            uint64_t bytes = 0) {
    const auto ns = [](double s) { return static_cast<uint64_t>(std::llround(s * 1e9)); };
    recorder_steps(header())[index % kStepRing] = {index, loss, 1000, 1000 + ns(seconds), ns(comm), ns(exposed), bytes};
    header()->steps_written.store(index + 1);
  }
  void event(int stream, uint32_t step, uint32_t op, uint64_t ready, uint64_t begin, uint64_t end) {
    std::atomic<uint64_t>& written = header()->stream[stream].written;
    recorder_ring(header(), stream)[written % header()->capacity] = {step, op, ready, begin, end};
    written++;
  }

 private:
  std::vector<uint64_t> memory_;
};

std::string temporary(const std::string& name) {
  return testing::TempDir() + "/prun_watch_" + std::to_string(getpid()) + name;
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// linear on the compute stream, all_reduce on another stream, then a linear that waits for it.
Job small_job(int64_t steps = 3) {
  Program program;
  program.name = "plan.lua";
  program.mesh = Mesh({{"dp", 2}});
  program.schedule.steps = steps;
  program.tokens_per_step = 1000;
  program.step().loss = 0;
  program.arena_bytes = 3 << 20;
  program.buffers.push_back({.name = "x", .bytes = 64, .offset = 0});
  program.tensors.push_back({.name = "x", .buffer = 0, .shape = {16}});
  const auto op = [](const OpDef& def, std::vector<Edge> waits, int line) {
    Op o;
    o.def = &def;
    o.reads = {0};
    o.waits = std::move(waits);
    o.unit = "block0";
    o.phase = Phase::forward;
    o.site = {"plan.lua", line};
    if (o.communicates()) o.axis = "dp";
    return o;
  };
  program.step().streams.push_back({"compute", {op(kLinear, {}, 1), op(kLinear, {{1, 0, 0}}, 3)}});
  program.step().streams.push_back({"reduce", {op(kAllReduce, {{0, 0, 0}}, 2)}});
  Job job;
  job.classes.push_back(program);
  job.class_of_rank = {0, 0};
  return job;
}

MergedStep merged(uint64_t step, double loss, double time = 0.5, double comm = 0, double exposed = 0) {
  return {step, loss, time, comm, exposed, 0};
}

// A step followed by an evaluation of 0.25 s.
MergedStep evaluated(uint64_t step, double loss, double eval_loss) {
  MergedStep merged{step, loss, 0.5, 0, 0, 0};
  merged.eval_s = 0.25;
  merged.eval_loss = eval_loss;
  return merged;
}

// Steps.

TEST(StepReader, AStepIsCompleteWhenEveryRankHasWrittenIt) {
  FakeRecorder a, b;
  StepReader reader;
  reader.open({a.header(), b.header()});
  a.step(0, 5.0, 0.1, 0.02, 0.01, 100);
  a.step(1, 4.0);
  EXPECT_TRUE(reader.take().empty());
  EXPECT_EQ(a.header()->steps_read.load(), 0u);
  b.step(0, 5.0, 0.1, 0.04, 0.03, 300);
  const std::vector<MergedStep> steps = reader.take();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].step, 0u);
  EXPECT_DOUBLE_EQ(steps[0].loss, 5.0);
  EXPECT_NEAR(steps[0].time_s, 0.1, 1e-9);
  EXPECT_NEAR(steps[0].comm_s, 0.03, 1e-9);
  EXPECT_NEAR(steps[0].exposed_s, 0.02, 1e-9);
  EXPECT_DOUBLE_EQ(steps[0].bytes_sent, 200);
  EXPECT_EQ(a.header()->steps_read.load(), 1u);
  EXPECT_FALSE(steps[0].evaluated());
  recorder_steps(a.header())[1].eval_ns = 250'000'000;
  recorder_steps(a.header())[1].eval_loss = 3.5;
  b.step(1, 4.0);
  const std::vector<MergedStep> later = reader.take();
  ASSERT_EQ(later.size(), 1u);
  EXPECT_TRUE(later[0].evaluated());
  EXPECT_DOUBLE_EQ(later[0].eval_s, 0.25);
  EXPECT_DOUBLE_EQ(later[0].eval_loss, 3.5);
  EXPECT_TRUE(reader.take().empty());
}

TEST(StepReader, TakesAsManyStepsAsItsViewsCanShow) {
  FakeRecorder a;
  StepReader reader;
  reader.open({a.header()});
  for (uint64_t step = 0; step < 5; ++step) a.step(step, 5.0);
  EXPECT_EQ(reader.take(2).size(), 2u);
  EXPECT_EQ(reader.take().size(), 3u);
}

// Output.

TEST(Outlet, IsBehindWhileItsReaderTakesBytesAndLosesNothing) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  constexpr int kLines = 20'000;
  const std::string line(99, 'x');
  std::string taken, part(1 << 16, 0);
  const auto take = [&] {
    const auto size = static_cast<size_t>(std::max<ssize_t>(read(ends[0], part.data(), part.size()), 0));
    taken.append(part, 0, size);
    return size > 0;
  };
  Outlet outlet(ends[1], 100'000);
  bool was_behind = false;
  for (int i = 0; i < kLines; ++i) {
    outlet.write(line + "\n");
    was_behind = was_behind || outlet.behind();
    if (i % 2000 == 0) take();
  }
  EXPECT_TRUE(was_behind);
  for (; !outlet.idle(); outlet.flush()) take();
  while (taken.size() < kLines * 100 && take()) {
  }
  for (const int end : ends) close(end);
  EXPECT_EQ(outlet.dropped(), 0u);
  EXPECT_EQ(taken.size(), kLines * 100u);
}

// Progress.

struct FakeScreen {
  std::string shown, lines;  // lines: plain lines next to a live line
  double time = 0;
  int columns = 120;
  Screen screen(bool live, bool color = false) {
    return {live,
            color,
            [this] { return columns; },
            [this](std::string_view text) { shown += text; },
            [this, live](std::string_view text) { (live ? lines : shown) += text; },
            [this] { return time; }};
  }
};

TEST(Progress, PlainLinesAreFirstLastAndAboutOneASecond) {
  FakeScreen fake;
  Progress progress(fake.screen(false));
  progress.begin(small_job(100).classes[0], 2);
  progress.waiting("joining");
  for (uint64_t step = 0; step < 100; step++) {
    progress.step(merged(step, 5.0, 0.1));
    progress.redraw();
    fake.time += 0.1;
  }
  progress.end();
  EXPECT_EQ(fake.shown.substr(0, fake.shown.find('\n') + 1),
            "step   1/100  loss 5.0000  100.0 ms  10.0k tokens/s  ETA 9.9 s\n");
  const auto lines = std::count(fake.shown.begin(), fake.shown.end(), '\n');
  EXPECT_GE(lines, 10);
  EXPECT_LE(lines, 12);
  EXPECT_NE(fake.shown.find("step 100/100  loss 5.0000  100.0 ms  10.0k tokens/s\n"), std::string::npos);
  EXPECT_EQ(fake.shown.find('\x1b'), std::string::npos);
  EXPECT_EQ(fake.shown.find('\r'), std::string::npos);
}

TEST(Progress, PlainLinesBeforeTheFirstStepAreRare) {
  FakeScreen fake;
  Progress progress(fake.screen(false));
  progress.begin(small_job(100).classes[0], 600);
  for (; fake.time < 45; fake.time += 0.5) progress.waiting(fake.time < 15 ? "joining" : "first step");
  progress.step(merged(0, 5.0, 0.1));
  progress.waiting("first step");
  EXPECT_EQ(fake.shown,
            "600 ranks: joining, 10 s since the start\n600 ranks: first step, 20 s since the start\n"
            "600 ranks: first step, 40 s since the start\n"
            "step   1/100  loss 5.0000  100.0 ms  10.0k tokens/s  ETA 9.9 s\n");
}

TEST(Progress, StepsWithAnEvaluationAreShownWithIt) {
  FakeScreen plain;
  Progress log(plain.screen(false));
  log.begin(small_job(4).classes[0], 2);
  log.step(merged(0, 5.5));
  log.step(evaluated(1, 5.25, 5.0));
  log.step(merged(2, 5));
  EXPECT_EQ(plain.shown,
            "step 1/4  loss 5.5000  500.0 ms  2.00k tokens/s  ETA 1.5 s\n"
            "step 2/4  loss 5.2500  evaluated 5.0000  500.0 ms  2.00k tokens/s  ETA 1.0 s\n");
  FakeScreen live;
  Progress line(live.screen(true));
  line.begin(small_job(4).classes[0], 2);
  line.step(evaluated(1, 5.25, 5.0));
  line.step(merged(2, 5));
  line.redraw();
  EXPECT_EQ(live.lines, "step 2/4  loss 5.2500  evaluated 5.0000  500.0 ms  2.00k tokens/s  ETA 1.0 s\n");
  EXPECT_EQ(live.shown, "\r\x1b[Kstep 3/4  loss 5.0000  evaluated 5.0000  500.0 ms  2.00k tokens/s  ETA 500.0 ms");
}

TEST(Progress, ASlowJobShowsEveryStep) {
  FakeScreen fake;
  Progress progress(fake.screen(false));
  progress.begin(small_job(5).classes[0], 2);
  for (uint64_t step = 0; step < 5; step++) {
    progress.step(merged(step, 5.0, 2));
    fake.time += 2;
  }
  EXPECT_EQ(std::count(fake.shown.begin(), fake.shown.end(), '\n'), 5);
}

TEST(Progress, ALiveLineIsRedrawnInPlace) {
  FakeScreen fake;
  Progress progress(fake.screen(true));
  progress.begin(small_job(3).classes[0], 2);
  progress.waiting("joining");
  EXPECT_EQ(fake.shown, "\r\x1b[K2 ranks: joining");
  fake.shown.clear();
  progress.step(merged(0, 5.5, 0.5, 0.2, 0.05));
  progress.redraw();
  EXPECT_EQ(fake.shown,
            "\r\x1b[Kstep 1/3  loss 5.5000  500.0 ms  2.00k tokens/s  25% of communication exposed  ETA 1.0 s");
  fake.shown.clear();
  progress.redraw();
  EXPECT_EQ(fake.shown, "");
  progress.clear();
  EXPECT_EQ(fake.shown, "\r\x1b[K");
  progress.redraw();
  EXPECT_NE(fake.shown.find("step 1/3"), std::string::npos) << "the line comes back after somebody else has written";
  fake.shown.clear();
  progress.end();
  EXPECT_EQ(fake.shown, "\r\x1b[K");
}

TEST(Progress, ALiveLineIsNotWiderThanTheTerminal) {
  FakeScreen fake;
  fake.columns = 20;
  Progress progress(fake.screen(true));
  progress.begin(small_job(3).classes[0], 2);
  progress.step(merged(0, 5.5));
  progress.redraw();
  EXPECT_EQ(fake.shown, "\r\x1b[Kstep 1/3  loss 5.50");
}

TEST(Progress, ColorOnlyWhereItIsWanted) {
  FakeScreen fake;
  Progress progress(fake.screen(true, true));
  progress.begin(small_job(3).classes[0], 2);
  progress.step(merged(0, 5.5));
  progress.redraw();
  EXPECT_NE(fake.shown.find("\x1b[36mstep 1/3"), std::string::npos);
}

TEST(Progress, AProgramWithoutALossPrintsForItself) {
  FakeScreen fake;
  Job job = small_job();
  job.classes[0].step().loss = -1;
  Progress progress(fake.screen(false));
  progress.begin(job.classes[0], 2);
  progress.step(merged(0, NAN));
  EXPECT_TRUE(progress.silent());
  EXPECT_EQ(fake.shown, "");
}

TEST(Progress, StandardScreenHonoursTheEnvironment) {
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(standard_screen().live);
  EXPECT_FALSE(standard_screen().color);
  EXPECT_GT(standard_screen().width(), 0);
}

TEST(Progress, ShortNumbersHaveThreeDigits) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(7.25), "7.25");
  EXPECT_EQ(short_number(12), "12");
  EXPECT_EQ(short_number(999), "999");
  EXPECT_EQ(short_number(999.7), "1.00k");
  EXPECT_EQ(short_number(8192), "8.19k");
  EXPECT_EQ(short_number(123456), "123k");
  EXPECT_EQ(short_number(1.5e9), "1.50G");
}

// Files.

TEST(OutputFile, ARunThatDoesNotBeginLeavesTheDiskAsItWas) {
  const std::string path = temporary("untouched");
  { OutputFile file(path, "trace"); }
  struct stat info;
  EXPECT_NE(stat(path.c_str(), &info), 0);
  std::ofstream(path) << "of the run before";
  { OutputFile file(path, "trace"); }
  EXPECT_EQ(contents(path), "of the run before");
  {
    OutputFile file(path, "trace");
    file.begin();
    file.write("new");
  }
  EXPECT_EQ(contents(path), "new");
  std::remove(path.c_str());
}

TEST(OutputFile, AFullDiskIsNoticed) {
  OutputFile file("/dev/full", "metrics");
  file.begin();
  file.write("x");
  file.flush();
  EXPECT_EQ(file.failure(), "No space left on device");
}

TEST(Metrics, ARowOfAStep) {
  const StepWork work{.tokens = 1000, .rate = {.last = 0.5}};
  EXPECT_EQ(metrics_row(merged(0, 5.25, 0.5, 0.2, 0.05), work, 0),
            "{\"step\":1,\"loss\":5.25,\"learning_rate\":0.5,\"tokens\":1000,\"time_s\":0.5,\"wall_time\":0.000000,"
            "\"tokens_per_s\":2000.0,\"comm_s\":0.2,\"exposed_comm_s\":0.05,\"data_s\":0}\n");
  EXPECT_EQ(metrics_row(merged(1, NAN, 0.25), work, 4096),
            "{\"step\":2,\"loss\":null,\"learning_rate\":0.5,\"tokens\":2000,\"time_s\":0.25,\"wall_time\":0.000000,"
            "\"tokens_per_s\":4000.0,\"comm_s\":0,\"exposed_comm_s\":0,\"data_s\":0,\"memory_bytes\":4096}\n");
}

TEST(Metrics, ARowHasWhatThereIs) {
  const auto keys = [](const MergedStep& step, const StepWork& work) {
    return nlohmann::json::parse(metrics_row(step, work, 0));
  };
  nlohmann::json row = keys(evaluated(2, 5, 4.5), {.tokens = 1000, .flops = 1e12});
  EXPECT_EQ(row["model_flops_per_s"], 2e12);
  EXPECT_EQ(row["eval_loss"], 4.5);
  EXPECT_EQ(row["eval_s"], 0.25);
  row = keys(merged(3, 5, 0.5), {.tokens = 1000, .flops = 1e12, .peak_flops = 8e12});
  EXPECT_EQ(row["mfu"], 0.25);
  MergedStep clipped = merged(0, 5);
  clipped.norm = 1.5;
  EXPECT_EQ(keys(clipped, {.clips = true})["grad_norm"], 1.5);
  clipped.norm = NAN;
  EXPECT_TRUE(keys(clipped, {.clips = true})["grad_norm"].is_null());
  EXPECT_FALSE(keys(clipped, {}).contains("grad_norm"));
}

TEST(Summary, SaysWhatTheRunWas) {
  Summary summary;
  EXPECT_EQ(summary.text(small_job(), {0, 1}, {0, 0}), "");
  summary.add({0, 5.5, 1.0, 0.2, 0.05, 1 << 20});
  summary.add({1, 4.5, 0.5, 0.2, 0.05, 1 << 20});
  EXPECT_EQ(summary.text(small_job(), {0, 1}, {40 << 20, 42 << 20}),
            "loss       5.5000 -> 4.5000 over 2 steps\n"
            "time       1.5 s, 2.00k tokens/s\n"
            "memory     3.00 MiB a rank predicted, 40.0 MiB to 42.0 MiB taken (Pss, with code)\n"
            "sent       1.00 MiB a rank and step\n"
            "overlap    75% of 200.0 ms communication a step hidden behind compute\n");
}

// [1024, 2048] x [2048, 4096] on each of two ranks, in a step of 0.5 s.
TEST(Summary, SaysWhatPartOfThePeakTheModelTook) {
  Job job = small_job();
  Program& program = job.classes[0];
  const auto tensor = [&](Shape shape) {
    program.tensors.push_back({.name = "t", .buffer = 0, .shape = std::move(shape)});
    return static_cast<int>(program.tensors.size()) - 1;
  };
  const int x = tensor({1024, 2048}), w = tensor({2048, 4096}), y = tensor({1024, 4096});
  Op op = program.step().streams[0].ops[0];
  op.def = &ops::linear;
  op.reads = {x, w};
  op.writes = {y};
  program.step().streams[0].ops.push_back(op);
  op.phase = Phase::backward;  // recomputed activations count as executed but not as model FLOPs
  program.step().streams[0].ops.push_back(op);
  op.def = &ops::linear_dx;
  op.reads = {y, w};
  op.writes = {x};
  program.step().streams[0].ops.push_back(op);
  EXPECT_EQ(model_flops(job), 2 * 2 * 2.0 * 1024 * 2048 * 4096);

  Summary summary;
  summary.add({0, 5.5, 1.0});
  summary.add({1, 4.5, 0.5});
  const std::string unknown = summary.text(job, {0, 1}, {0, 0}), known = summary.text(job, {0, 1}, {0, 0}, 1e12);
  EXPECT_NE(unknown.find("2.00k tokens/s\ncompute    137 GFLOP/s\nmemory "), std::string::npos) << unknown;
  EXPECT_NE(known.find("\ncompute    137 GFLOP/s, 13.7% of the peak of 1.00 TFLOP/s in bf16 (MFU)\n"),
            std::string::npos)
      << known;
  EXPECT_EQ(short_number(999.4, "FLOP/s"), "999 FLOP/s");
  EXPECT_EQ(short_number(999.6, "FLOP/s"), "1.00 kFLOP/s");
  EXPECT_EQ(short_number(7.912e15, "FLOP/s"), "7.91 PFLOP/s");
}

TEST(Summary, SaysWhatTheEvaluationsWere) {
  Summary summary;
  summary.add(evaluated(0, 5.5, 5.25));
  summary.add(evaluated(1, 4.5, 4.75));
  const std::string text = summary.text(small_job(), {0, 1}, {0, 0});
  EXPECT_TRUE(
      text.starts_with("loss       5.5000 -> 4.5000 over 2 steps\n"
                       "evaluated  5.2500 -> 4.7500, 2 times, 500.0 ms in all\n"
                       "time       1.0 s, 2.00k tokens/s\n"))
      << text;
}

// Trace.

struct Traced {
  nlohmann::json json;
  std::vector<nlohmann::json> of(const std::string& phase, const std::string& name = "") const {
    std::vector<nlohmann::json> found;
    for (const auto& event : json["traceEvents"])
      if (event["ph"] == phase && (name.empty() || event["name"] == name)) found.push_back(event);
    return found;
  }
};

Traced trace_of(const Job& job, std::vector<FakeRecorder*> ranks, size_t most = Trace::kMostEvents) {
  const std::string path = temporary("trace.json");
  Trace trace(path, {}, false, most);
  std::vector<RecorderHeader*> headers;
  std::vector<int> ids;
  for (FakeRecorder* rank : ranks) {
    ids.push_back(static_cast<int>(ids.size()));
    headers.push_back(rank->header());
  }
  trace.begin(job, ids, headers);
  trace.collect();
  trace.finish();
  Traced traced{nlohmann::json::parse(contents(path))};
  std::remove(path.c_str());
  return traced;
}

// Records one step of small_job; rank 1 is `late` ns late at the all_reduce.
void record_step(FakeRecorder& rank, uint32_t step, uint64_t at, uint64_t late) {
  rank.event(0, step, 0, at, at, at + 1000 + late);
  rank.event(1, step, 0, at, at + 1000 + late, at + 5000);
  rank.event(0, step, 1, at + 1000 + late, at + 5000, at + 6000);
}

TEST(Trace, SlicesNamesAndArrows) {
  FakeRecorder a, b;
  record_step(a, 0, 10000, 0);
  record_step(b, 0, 10000, 500);
  const Traced traced = trace_of(small_job(), {&a, &b});

  const auto processes = traced.of("M", "process_name");
  ASSERT_EQ(processes.size(), 2u);
  EXPECT_EQ(processes[1]["args"]["name"], "rank 1");
  const auto threads = traced.of("M", "thread_name");
  ASSERT_EQ(threads.size(), 4u);
  EXPECT_EQ(threads[1]["args"]["name"], "reduce");

  const auto reduces = traced.of("X", "all_reduce block0");
  ASSERT_EQ(reduces.size(), 2u);
  EXPECT_EQ(reduces[0]["cat"], "communication");
  EXPECT_DOUBLE_EQ(reduces[0]["ts"].get<double>(), 1.0);
  EXPECT_DOUBLE_EQ(reduces[0]["dur"].get<double>(), 4.0);
  EXPECT_EQ(reduces[0]["args"], nlohmann::json({{"at", "plan.lua:2"},
                                                {"unit", "block0"},
                                                {"phase", "forward"},
                                                {"bytes", 64},
                                                {"op", 0},
                                                {"role", "activation"},
                                                {"group", "dp"},
                                                {"lane", 0},
                                                {"sequence", 0},
                                                {"step", 0}}));
  // Waiting for an edge is a separate kind of slice; so is waiting inside the collective for the last rank.
  EXPECT_EQ(traced.of("X", "(wait for edge)").size(), 4u);
  const auto waits = traced.of("X", "(wait for rank 1)");
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0]["pid"], 0);
  EXPECT_DOUBLE_EQ(waits[0]["dur"].get<double>(), 0.5);

  // Two edges per rank, one arrow between streams; each arrow starts and ends inside a slice, and ends after it starts.
  EXPECT_EQ(traced.of("s", "edge").size(), 4u);
  EXPECT_EQ(traced.of("s", "collective").size(), 1u);
  for (const auto& end : {"s", "f"}) {
    for (const auto& flow : traced.of(end)) {
      bool inside = false;
      for (const auto& slice : traced.of("X")) {
        const double from = slice["ts"], to = from + slice["dur"].get<double>(), at = flow["ts"];
        inside = inside || (slice["cat"] != "wait" && slice["pid"] == flow["pid"] && slice["tid"] == flow["tid"] &&
                            from <= at && at < to);
      }
      EXPECT_TRUE(inside) << flow;
    }
  }
  for (const auto& start : traced.of("s")) {
    int ends = 0;
    for (const auto& finish : traced.of("f")) {
      if (finish["id"] != start["id"]) continue;
      ends++;
      EXPECT_GE(finish["ts"].get<double>(), start["ts"].get<double>());
    }
    EXPECT_EQ(ends, 1);
  }
}

TEST(Trace, ARingThatWentRoundIsCountedAndStillValid) {
  FakeRecorder a(4);
  for (uint32_t step = 0; step < 10; step++) record_step(a, step, 10000 + step * 10000, 0);
  Job job = small_job();
  job.classes[0].mesh = Mesh({{"dp", 1}});
  job.class_of_rank = {0};
  const std::string path = temporary("lost.json");
  Trace trace(path);
  trace.begin(job, {0}, {a.header()});
  trace.collect();
  trace.finish();
  EXPECT_GT(trace.lost(), 0u);
  EXPECT_TRUE(nlohmann::json::accept(contents(path)));
  std::remove(path.c_str());
}

TEST(Trace, AFullTraceHoldsWholeSteps) {
  FakeRecorder a, b;
  for (uint32_t step = 0; step < 4; step++) {
    record_step(a, step, 10000 + step * 10000, 0);
    record_step(b, step, 10000 + step * 10000, 0);
  }
  a.event(0, 4, 0, 90000, 90000, 91000);
  const Traced traced = trace_of(small_job(), {&a, &b}, 10);
  EXPECT_EQ(traced.of("X", "linear block0").size(), 16u);
}

TEST(Trace, AJobWithoutEventsIsAnEmptyTrace) {
  FakeRecorder a, b;
  EXPECT_TRUE(trace_of(small_job(), {&a, &b}).of("X").empty());
  EXPECT_TRUE(trace_of(Job(), {}).json["traceEvents"].empty());
}

// The launcher calls these functions when forking the first rank fails.
TEST(Observer, StandsAJobWhoseRanksCouldNotBeStarted) {
  WatchSpec spec;
  spec.runs = temporary("_runs");
  std::filesystem::create_directory(spec.runs);
  RunFolder folder(spec);
  Observer observer(spec, 1e9, &folder);
  folder.begin(small_job(), {});
  observer.show(small_job());
  observer.tick();
  EXPECT_FALSE(observer.hung());
  observer.ending();
  observer.failed({.code = 2, .what = "cannot start local rank 0 of 2"});
  observer.tick();
  observer.ended(2, false);
  EXPECT_EQ(observer.finish(2), 2);
  folder.end(2);
  EXPECT_NE(contents(folder.path() + "/" + kFailureFile).find("cannot start local rank 0 of 2"), std::string::npos);
  std::filesystem::remove_all(spec.runs);
}

}  // namespace
}  // namespace prun
