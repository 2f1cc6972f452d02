// Sends and receives: each matches its partner, no cycle of waiting ranks, and which transports can carry them.
#include <gtest/gtest.h>

#include "tests/unit/expected_text.h"
#include "tests/unit/verify_builder.h"

namespace prun {
namespace {

Op& message(Builder& b, const OpDef& def, int tensor, int peer, int64_t tag, int stream, std::vector<Edge> waits = {}) {
  const bool sends = def.name == "send";
  Op& op = b.op(def, sends ? std::vector<TensorId>{tensor} : std::vector<TensorId>{},
                sends ? std::vector<TensorId>{} : std::vector<TensorId>{tensor}, stream, std::move(waits));
  op.axis = "dp";
  op.attrs.set("peer", peer);
  op.attrs.set("tag", tag);
  return op;
}

// Two stages: the first sends `count` activations, the second receives and uses them.
Builder first_stage(int count, int64_t floats = 16) {
  Builder b;
  const int x = b.buffer("x", floats);
  b.op(kCompute, {}, {x});
  for (int i = 0; i < count; i++) message(b, kSend, x, 1, i, 1, {{0, 0, 0}});
  return b;
}
Builder second_stage(int count, int64_t floats = 16) {
  Builder b;
  const int x = b.buffer("x", floats);
  b.op(kCompute, {}, {});
  for (int i = 0; i < count; i++) {
    message(b, kRecv, x, -1, i, 1, i == 0 ? std::vector<Edge>{} : std::vector<Edge>{{0, i, 0}});
    b.op(kCompute, {x}, {}, 0, {{1, i, 0}});
  }
  return b;
}

TEST(VerifyMessages, MatchingStagesPass) { EXPECT_EQ(check(first_stage(3), second_stage(3)), ""); }

TEST(VerifyMessages, AMissingReceive) {
  EXPECT_EQ(check(first_stage(2), second_stage(1)), expected());
  EXPECT_EQ(check(second_stage(1), second_stage(1)).substr(0, 78), expected());
}

TEST(VerifyMessages, SidesThatDiffer) {
  const auto differ_in = [](const Builder& a, const Builder& b) {
    const std::string text = check(a, b);
    return text.substr(0, text.find('\n'));
  };
  const std::string found =
      "messages differ: message 0 from rank 0 to rank 1 along world (lane 1): send and receive differ in ";
  EXPECT_EQ(differ_in(first_stage(1), second_stage(1, 8)), found + "count");
  Builder other = second_stage(1);
  other.program.step().streams[1].ops[0].attrs.set("tag", 7);
  EXPECT_EQ(differ_in(first_stage(1), other), found + "tag");
  other = second_stage(1);
  other.program.tensors[0].dtype = Dtype::i32;
  EXPECT_EQ(differ_in(first_stage(1), other), found + "dtype");
}

TEST(VerifyMessages, ToItself) {
  Builder b = first_stage(1);
  b.program.step().streams[1].ops[0].attrs.set("peer", 2);
  EXPECT_EQ(check(b, second_stage(0)), expected());
}

TEST(VerifyMessages, OfOneWayAreOrdered) {
  Builder b = first_stage(1);
  message(b, kSend, 0, 1, 1, 2, {{0, 0, 0}}).lane = 1;
  EXPECT_NE(check(b, second_stage(2))
                .find("unordered messages: rank 0: send f32[16] (program, comm#0, plan.lua:2) and "
                      "send f32[16] (program, other#0, plan.lua:3) go the same way"),
            std::string::npos);
}

// Every rank of a ring sends to the next and receives from the previous: one class that communicates with itself.
Builder ring(bool one_stream) {
  Builder b({{"dp", 4}});
  const int x = b.buffer("x", 16), y = b.buffer("y", 16);
  b.op(kCompute, {}, {x});
  message(b, kSend, x, 1, 0, 1, {{0, 0, 0}});
  message(b, kRecv, y, -1, 0, one_stream ? 1 : 2).lane = 1;
  b.op(kCompute, {y}, {}, 0, {{one_stream ? 1 : 2, one_stream ? 1 : 0, 0}});
  return b;
}

TEST(VerifyMessages, ARingThatSendsFirstBlocks) {
  EXPECT_EQ(check(ring(false)), "");
  EXPECT_EQ(check(ring(true)), expected());
}

TEST(VerifyMessages, EagerTransportsCarryMore) {
  const Job job = ring(true).job();
  EXPECT_FALSE(carries(TransportClass::rendezvous, job));
  EXPECT_TRUE(carries(TransportClass::eager, job, 1));
  EXPECT_FALSE(carries(TransportClass::queue_ordered, job));
}

// Textbook 1F1B with one send at a time: both stages send first.
Builder exchange(bool receives_first, bool lanes) {
  Builder b;
  const int x = b.buffer("x", 16), y = b.buffer("y", 16);
  b.op(kCompute, {}, {x});
  const int out = 1, in = lanes ? 2 : 1;
  if (receives_first) message(b, kRecv, y, 1, 0, in).lane = in;
  message(b, kSend, x, 1, 0, out, {{0, 0, 0}}).lane = out;
  if (!receives_first) message(b, kRecv, y, 1, 0, in).lane = in;
  return b;
}

TEST(VerifyMessages, OneAtATimeBothWays) {
  const std::string blocked = check(exchange(false, false), exchange(false, false));
  EXPECT_NE(blocked.find("wait cycle across ranks"), std::string::npos) << blocked;
  EXPECT_EQ(check(exchange(false, false), exchange(true, false)), "");
}

TEST(VerifyMessages, OneQueueForAPairNeedsOneOrder) {
  Builder a = exchange(false, true), b = exchange(false, true);
  Op& out = b.program.step().streams[1].ops[0];
  Op& in = b.program.step().streams[2].ops[0];
  std::swap(out.lane, in.lane);
  Job job;
  job.classes = {a.program, b.program};
  job.class_of_rank = {0, 1};
  EXPECT_TRUE(carries(TransportClass::rendezvous, job));
  EXPECT_FALSE(carries(TransportClass::queue_ordered, job)) << "timing decides which is issued first";
  job.classes[0].step().streams[2].ops[0].waits = {{1, 0, 0}};
  job.classes[1].step().streams[1].ops[0].waits = {{2, 0, 0}};
  EXPECT_TRUE(carries(TransportClass::queue_ordered, job));
}

TEST(VerifyMessages, StagesOfSeveralRanksWaitByRankWhereTheirPeersDiffer) {
  // Ranks 0 and 2 are of one class, but 0's partner receives and 2's partner sends nothing back, so no rank can
  // represent its class.
  Builder a = first_stage(1), b = second_stage(1), c = second_stage(1);
  for (Builder* one : {&a, &b, &c}) one->program.mesh = Mesh({{"tp", 2}, {"dp", 2}});
  c.op(kCompute, {}, {0});
  Job job;
  job.classes = {a.program, b.program, c.program};
  job.class_of_rank = {0, 1, 0, 2};
  EXPECT_EQ(only(verify_job(job, 0)), "");
}

}  // namespace
}  // namespace prun
