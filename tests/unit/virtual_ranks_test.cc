// The interpreter, and its collectives by definition: every collective, with small numbers that can be checked by hand.
//
// Surprising fact: transports are compared with these plain loops, so the loops are compared with literals only.
#include "exec/virtual_ranks.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/bf16.h"
#include "exec/plain_collectives.h"
#include "exec/row_exchange.h"
#include "ir/ops.h"
#include "kernels/devices.h"
#include "tests/unit/verify_builder.h"

namespace prun {
namespace {

using Floats = std::vector<float>;

// Runs one collective on `inputs`, one per member; outputs have `out` elements, initially -1.
std::vector<Floats> collective(CollKind kind, std::vector<Floats> inputs, size_t out, RedOp op = RedOp::sum,
                               int root = 0) {
  std::vector<Floats> outputs(inputs.size(), Floats(out, -1));
  std::vector<PlainMember> members;
  for (size_t i = 0; i < inputs.size(); i++) {
    members.push_back({inputs[i].data(), outputs[i].data(), static_cast<int64_t>(inputs[i].size()),
                       static_cast<int64_t>(out), nullptr, nullptr});
  }
  run_plain_collective(kind, Dtype::f32, op, root, members);
  return outputs;
}

TEST(PlainCollectives, Reductions) {
  const std::vector<Floats> in = {{1, 2}, {3, 5}, {8, -4}};
  EXPECT_EQ(collective(CollKind::all_reduce, in, 2), (std::vector<Floats>{{12, 3}, {12, 3}, {12, 3}}));
  EXPECT_EQ(collective(CollKind::all_reduce, in, 2, RedOp::avg)[1], (Floats{12 * (1.0f / 3), 3 * (1.0f / 3)}));
  EXPECT_EQ(collective(CollKind::all_reduce, in, 2, RedOp::max)[2], (Floats{8, 5}));
  EXPECT_EQ(collective(CollKind::all_reduce, in, 2, RedOp::min)[2], (Floats{1, -4}));
  EXPECT_EQ(collective(CollKind::all_reduce, in, 2, RedOp::prod)[0], (Floats{24, -40}));
  EXPECT_EQ(collective(CollKind::reduce, in, 2, RedOp::sum, 1), (std::vector<Floats>{{-1, -1}, {12, 3}, {-1, -1}}));
  EXPECT_EQ(collective(CollKind::reduce_scatter, {{1, 2}, {3, 4}}, 1), (std::vector<Floats>{{4}, {6}}));
}

TEST(PlainCollectives, SumsAreInRankOrder) {
  // (big + 1) - big is 0 in f32, and 1 in any other order.
  EXPECT_EQ(collective(CollKind::all_reduce, {{1e10f}, {1}, {-1e10f}}, 1)[0], (Floats{0}));
  EXPECT_EQ(collective(CollKind::all_reduce, {{1e10f}, {-1e10f}, {1}}, 1)[0], (Floats{1}));
}

TEST(PlainCollectives, MovesOfData) {
  const std::vector<Floats> in = {{1, 2}, {3, 4}};
  EXPECT_EQ(collective(CollKind::broadcast, in, 2, RedOp::sum, 1), (std::vector<Floats>{{3, 4}, {3, 4}}));
  EXPECT_EQ(collective(CollKind::all_gather, in, 4), (std::vector<Floats>{{1, 2, 3, 4}, {1, 2, 3, 4}}));
  EXPECT_EQ(collective(CollKind::gather, in, 4, RedOp::sum, 1), (std::vector<Floats>{{-1, -1, -1, -1}, {1, 2, 3, 4}}));
  EXPECT_EQ(collective(CollKind::scatter, in, 1, RedOp::sum, 1), (std::vector<Floats>{{3}, {4}}));
  EXPECT_EQ(collective(CollKind::all_to_all, in, 2), (std::vector<Floats>{{1, 3}, {2, 4}}));
  EXPECT_EQ(collective(CollKind::barrier, in, 2), (std::vector<Floats>{{-1, -1}, {-1, -1}}));
}

TEST(PlainCollectives, SharesOfDifferentSizesArePacked) {
  std::vector<Floats> in = {{1, 9}, {2, 3}}, out(2, Floats(4, -1));
  const int64_t share[] = {1, 2};
  int64_t shares[2][2] = {};
  run_plain_collective(CollKind::all_gather_v, Dtype::f32, RedOp::sum, 0,
                       {{in[0].data(), out[0].data(), 2, 4, &share[0], shares[0]},
                        {in[1].data(), out[1].data(), 2, 4, &share[1], shares[1]}});
  EXPECT_EQ(out[1], (Floats{1, 2, 3, -1}));
  EXPECT_EQ(shares[0][0], 1);
  EXPECT_EQ(shares[0][1], 2);
}

// Two ranks with one expert each, of two slots: choices 2 and 3 of each rank and expert are in round 1.
TEST(RowExchange, SendsTheRowsOfARoundThereAndBack) {
  const std::vector<int32_t> filled = {3, 2, 5, 0};  // [rank, expert]
  const auto counts_of = [&](const Shape& x, int64_t round, int64_t home) {
    Attrs attrs;
    attrs.set("round", round), attrs.set("home", home);
    std::vector<RowCounts> counts = {RowCounts(x, attrs, 2, 0), RowCounts(x, attrs, 2, 1)};
    for (RowCounts& one : counts) EXPECT_EQ(one.update(filled.data()), round < 3);
    return counts;
  };
  const Shape there = {1, 2, 2, 1}, back = {2, 1, 2, 1};
  using Counts = std::vector<int64_t>;
  const std::vector<RowCounts> out = counts_of(there, 1, 0), home = counts_of(back, 1, 1);
  EXPECT_EQ(out[0].sent(), (Counts{1, 0}));
  EXPECT_EQ(out[0].received(), (Counts{1, 2}));
  EXPECT_EQ(out[1].sent(), (Counts{2, 0}));
  EXPECT_EQ(home[0].sent(), out[0].received());
  EXPECT_EQ(home[1].received(), out[1].sent());
  EXPECT_EQ(counts_of(there, 2, 0)[1].sent(), (Counts{1, 0}));
  EXPECT_EQ(counts_of(there, 3, 0)[1].sent(), (Counts{0, 0}));
  std::vector<Floats> tokens = {{7, -1}, {8, 9}}, experts(2, Floats(3, -1)), again(2, Floats(2, -1));
  const auto exchange = [](const std::vector<RowCounts>& counts, std::vector<Floats>& from, std::vector<Floats>& to) {
    exchange_plainly(counts, sizeof(float), {{from[0].data(), to[0].data()}, {from[1].data(), to[1].data()}});
  };
  exchange(out, tokens, experts);
  EXPECT_EQ(experts, (std::vector<Floats>{{7, 8, 9}, {-1, -1, -1}}));
  exchange(home, experts, again);
  EXPECT_EQ(again, tokens);
}

TEST(PlainCollectives, NarrowFloatsAccumulateInF32) {
  // 256 + 1 is 256 in bf16; f32 accumulation keeps the three ones: 259 rounds to 260.
  std::vector<bf16> in = {to_bf16(256), to_bf16(1), to_bf16(1), to_bf16(1)}, out(4);
  std::vector<PlainMember> members;
  for (size_t i = 0; i < 4; i++) members.push_back({&in[i], &out[i], 1, 1, nullptr, nullptr});
  run_plain_collective(CollKind::all_reduce, Dtype::bf16, RedOp::sum, 0, members);
  EXPECT_EQ(to_float(out[0]), 260);

  // f16: 2048 + 1 + 1 + 1 = 2051, halfway between 2050 and 2052, rounds to even; 65504 + 65504 is infinite.
  const uint16_t k2048 = 0x6800, kOne = 0x3c00, k2052 = 0x6802, kMost = 0x7bff, kInfinity = 0x7c00, kTiny = 0x0001;
  std::vector<uint16_t> halves = {k2048, kOne, kOne, kOne}, sums(4);
  const auto reduce_halves = [&](RedOp op) {
    std::vector<PlainMember> all;
    for (size_t i = 0; i < halves.size(); i++) all.push_back({&halves[i], &sums[i], 1, 1, nullptr, nullptr});
    run_plain_collective(CollKind::all_reduce, Dtype::f16, op, 0, all);
    return sums[0];
  };
  EXPECT_EQ(reduce_halves(RedOp::sum), k2052);
  halves = {kMost, kMost};
  EXPECT_EQ(reduce_halves(RedOp::sum), kInfinity);
  EXPECT_EQ(reduce_halves(RedOp::avg), kMost);
  halves = {kTiny, kTiny};
  EXPECT_EQ(reduce_halves(RedOp::sum), 2 * kTiny);
  EXPECT_EQ(reduce_halves(RedOp::avg), kTiny);
}

TEST(PlainCollectives, IntegersDoNotOverflowInAnAverage) {
  std::vector<int8_t> in = {100, 100, 101}, out(3);
  std::vector<PlainMember> members;
  for (size_t i = 0; i < 3; i++) members.push_back({&in[i], &out[i], 1, 1, nullptr, nullptr});
  run_plain_collective(CollKind::all_reduce, Dtype::i8, RedOp::avg, 0, members);
  EXPECT_EQ(out[0], 100);
  run_plain_collective(CollKind::all_reduce, Dtype::i8, RedOp::sum, 0, members);
  EXPECT_EQ(out[0], static_cast<int8_t>(301 & 0xff));
}

// The interpreter. Rank r has r + 1 in x; y is the all-reduced sum.

Program summing_program(int rank, bool waits = true) {
  Builder b;
  const int x = b.buffer("x", 2), y = b.buffer("y", 2), w = b.persistent("w", 2);
  b.op(ops::fill, {}, {w}, 0, {}, true).attrs.set("value", 7.0);
  b.op(ops::values, {}, {x}).attrs.set("values", std::vector<double>{rank + 1.0, 0});
  Op& print = b.op(ops::print, {y, w}, {});
  print.attrs.set("parts", R"(["y", 0, 1])");
  if (waits) print.waits = {{1, 0, 0}};
  b.op(ops::all_reduce, {x}, {y}, 1, {{0, 0, 0}});
  return b.program;
}

Job summing_job(bool waits = true) {
  Job job;
  job.classes = {summing_program(0, waits), summing_program(1, waits)};
  job.class_of_rank = {0, 1};
  return job;
}

TEST(VirtualRanks, RunAProgramAndKeepWhatPersists) {
  const std::unique_ptr<Device> device = open_device("reference");
  for (const VirtualOrder order : {VirtualOrder::early, VirtualOrder::late, VirtualOrder::random}) {
    const VirtualRun run = run_virtual_ranks(summing_job(), *device, {.order = order});
    ASSERT_EQ(run.printed.size(), 2u);
    for (const auto& [rank, line] : run.printed) EXPECT_EQ(line, "y [3, 0] [7, 7]") << rank;
    ASSERT_EQ(run.persistent.size(), 2u);
    ASSERT_EQ(run.persistent[1].size(), 1u);
    EXPECT_EQ(run.persistent[1][0].name, "w");
    EXPECT_EQ(reinterpret_cast<const float*>(run.persistent[1][0].bytes.data())[1], 7);
    EXPECT_TRUE(run.losses.empty());
  }
}

// w starts at 7; each step subtracts the learning rate: 0, 1, 2, 2.
TEST(VirtualRanks, EachStepHasItsLearningRate) {
  Job job = summing_job();
  for (Program& program : job.classes) {
    program.schedule = {.steps = 4, .learning_rate = {.pieces = {{.end = 2, .to = 2}}, .last = 2}};
    Op gradient = program.step().streams[0].ops[0], update = program.init().streams[0].ops[0];
    gradient.attrs.set("values", std::vector<double>{1, 1});
    update.def = find_op("sgd");
    update.reads = {0, 2};
    program.step().streams = {{"compute", {gradient, update}}};
  }
  const VirtualRun run = run_virtual_ranks(job, *open_device("reference"));
  EXPECT_EQ(reinterpret_cast<const float*>(run.persistent[1][0].bytes.data())[1], 7 - 5);
}

// Each batch of an evaluation gives the rank's loss, w + x; w grows each step.
TEST(VirtualRanks, EvaluationsComeAfterTheirSteps) {
  Job job = summing_job();
  for (Program& program : job.classes) {
    program.schedule = {.steps = 5, .learning_rate = {.last = -1}};  // each step adds 1 to w
    Op gradient = program.step().streams[0].ops[0], update = program.init().streams[0].ops[0];
    gradient.attrs.set("values", std::vector<double>{1, 1});
    update.def = find_op("sgd");
    update.reads = {0, 2};
    Op x = program.step().streams[0].ops[0], sum = update;
    sum.def = find_op("add");
    sum.reads = {0, 2};
    sum.writes = {1};
    program.step().streams = {{"compute", {gradient, update}}};
    program.bodies.push_back({"evaluation", {2, 3}, {{"compute", {x, sum}}}, {}, 1});
  }
  const VirtualRun run = run_virtual_ranks(job, *open_device("reference"));
  EXPECT_EQ(run.eval_losses, (std::vector<std::vector<double>>{{10, 11}, {12, 13}}));
  EXPECT_TRUE(run.losses.empty());
}

TEST(VirtualRanks, AMissingEdgeShowsAsAnotherResult) {
  const std::unique_ptr<Device> device = open_device("reference");
  const VirtualRun run = run_virtual_ranks(summing_job(false), *device, {.order = VirtualOrder::late});
  EXPECT_NE(run.printed.at(0).second, "y [3, 0] [7, 7]");
  EXPECT_NE(run.printed.at(0).second.find("nan"), std::string::npos) << run.printed.at(0).second;
}

TEST(VirtualRanks, RanksThatWaitForEachOtherAreNamed) {
  Job job = summing_job();
  job.classes[1].step().streams[1].ops.clear();
  job.classes[1].step().streams[0].ops[1].waits.clear();
  try {
    run_virtual_ranks(job, *open_device("reference"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "plan.lua:3: the virtual ranks wait for each other:\n"
                 "  rank 0, stream compute: print plan.lua:3\n"
                 "  rank 0, stream comm: all_reduce plan.lua:4");
  }
}

TEST(VirtualRanks, CollectivesThatDifferAreNamed) {
  Job job = summing_job();
  job.classes[1].step().streams[1].ops[0].def = find_op("broadcast");
  try {
    run_virtual_ranks(job, *open_device("reference"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "plan.lua:4: rank 1 meets all_reduce with broadcast");
  }
}

// Both ranks send before they receive, which ends only if sends do not wait for their receives.
Job exchanging_job(int first) {
  Job job = summing_job();
  for (Program& program : job.classes) {
    std::vector<Op>& ops = program.step().streams[1].ops;
    Op send = ops[0], recv = ops[0];
    send.def = find_op("send");
    recv.def = find_op("recv");
    send.writes = {};
    recv.reads = {};
    recv.lane = 1;
    for (Op* op : {&send, &recv}) op->attrs.set("peer", 1);
    ops = {send, recv};
    if (&program == &job.classes[0] && first == 1) std::swap(ops[0], ops[1]);
    for (Op& op : ops) op.lane = (op.is(ops::send) == (&program == &job.classes[0])) ? 0 : 1;
    program.step().streams[0].ops[1].waits = {{1, 1, 0}};
  }
  return job;
}

TEST(VirtualRanks, SendsEndAtOnceOrWithTheirReceives) {
  const std::unique_ptr<Device> device = open_device("reference");
  for (const VirtualOrder order : {VirtualOrder::early, VirtualOrder::late, VirtualOrder::random}) {
    const VirtualRun run = run_virtual_ranks(exchanging_job(1), *device, {.order = order});
    ASSERT_EQ(run.printed.size(), 2u);
    for (const auto& [rank, line] : run.printed) EXPECT_EQ(line, rank == 0 ? "y [2, 0] [7, 7]" : "y [1, 0] [7, 7]");
  }
  EXPECT_EQ(run_virtual_ranks(exchanging_job(0), *device, {.order = VirtualOrder::early}).printed.size(), 2u);
  EXPECT_THROW(run_virtual_ranks(exchanging_job(0), *device, {.order = VirtualOrder::late}), Error);
}

}  // namespace
}  // namespace prun
