// Every rule of runtime/verify: a small valid program passes, and each mutation of it is rejected with a given message.
#include "verify/verify.h"

#include <gtest/gtest.h>

#include <chrono>
#include <utility>

#include "tests/unit/expected_text.h"
#include "tests/unit/verify_builder.h"
#include "verify/view.h"

namespace prun {
namespace {

// compute writes x, comm reduces it, compute uses it; a second time over the same bytes.
Builder pipeline() {
  Builder b;
  const int x = b.buffer("x", 16), y = b.buffer("y", 16), z = b.buffer("z", 16, 0);
  b.op(kCompute, {}, {x});
  b.op(kAllReduce, {x}, {y}, 1, {{0, 0, 0}});
  b.op(kCompute, {y}, {z}, 0, {{1, 0, 0}});
  return b;
}

TEST(Verify, ARightProgramPasses) { EXPECT_EQ(check(pipeline()), ""); }

TEST(Verify, RequireValidThrowsWithSiteAndCount) {
  Builder b;
  const int x = b.buffer("x", 16), y = b.buffer("y", 16);
  b.op(kCompute, {x}, {});
  b.op(kCompute, {y}, {});
  try {
    require_valid(b.job(), 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::plan);
    EXPECT_STREQ(
        error.what(),
        "plan.lua:1: read before any write: add (program, compute#0, plan.lua:1) reads bytes 0..64 of buffer 'x' "
        "before anything writes them; nothing writes them\n  and 1 more finding (prun check lists them)");
  }
  EXPECT_NO_THROW(require_valid(pipeline().job(), 0));
}

// Shape.

TEST(Verify, MalformedPrograms) {
  const auto broken = [](auto mutate) {
    Builder b = pipeline();
    mutate(b.program);
    return check(b);
  };
  EXPECT_EQ(broken([](Program& p) { p.buffers[1].offset = 8; }), expected());
  EXPECT_EQ(broken([](Program& p) { p.buffers[1].offset = -1; }), expected());
  EXPECT_EQ(broken([](Program& p) { p.arena_bytes = 64; }), expected());
  EXPECT_EQ(broken([](Program& p) { p.buffers[0].bytes = 65; }), expected());
  EXPECT_EQ(broken([](Program& p) { p.tensors[0].byte_offset = 64; }), expected());
  EXPECT_EQ(broken([](Program& p) { p.tensors[0].buffer = 9; }), "malformed program: tensor 't0' names buffer 9 of 3");
  EXPECT_EQ(broken([](Program& p) { p.step().streams[0].ops[0].writes = {7}; }), expected());
  EXPECT_EQ(broken([](Program& p) { p.step().streams[1].ops[0].axis = "tp"; }), expected());
  EXPECT_EQ(broken([](Program& p) { p.step().streams[1].ops[0].waits = {{0, 9, 0}}; }), expected());
  EXPECT_EQ(broken([](Program& p) {
              p.pools.push_back({"gathered", Role::gathered, 1, 32});
              p.buffers[0].pool = 0;
              p.buffers[0].slot = 0;
              p.buffers[1].pool = 0;
              p.buffers[1].slot = 1;
            }),
            expected());
  Job job = pipeline().job();
  job.class_of_rank = {0, 0, 0};
  EXPECT_EQ(only(verify_job(job, 0)), "malformed program: mesh dp=2 has 2 ranks, the job 3");
  job.class_of_rank = {0, 1};
  EXPECT_EQ(only(verify_job(job, 0)), "malformed program: a rank is of class 1 of 1");
  job.classes.push_back(job.classes[0]);
  job.class_of_rank = {0, 0};
  EXPECT_EQ(only(verify_job(job, 0)), "malformed program: no rank is of class 1");
  job.class_of_rank = {0, 1};
  job.classes[1].mesh = Mesh({{"tp", 2}});
  EXPECT_NE(only(verify_job(job, 0)).find("malformed program: ranks disagree on the mesh: dp=2 and tp=2"),
            std::string::npos);
}

// Waits.

TEST(Verify, WaitCycleWithinARank) {
  Builder b = pipeline();
  b.program.step().streams[0].ops[0].waits = {{1, 0, 0}};
  EXPECT_EQ(check(b), expected());
}

// Two collectives on separate lanes; `swapped` selects the stream for which the compute stream waits first.
Builder two_lanes(bool swapped) {
  Builder b;
  const int x = b.buffer("x", 16), y = b.buffer("y", 16);
  b.op(kCompute, {}, {x, y});
  b.op(kAllReduce, {x}, {x}, 1, {{0, 0, 0}});
  b.op(kAllReduce, {y}, {y}, 2, {{0, 0, 0}});
  if (swapped) {
    b.program.step().streams[1].ops[0].waits.push_back({2, 0, 0});
  } else {
    b.program.step().streams[2].ops[0].waits.push_back({1, 0, 0});
  }
  return b;
}

TEST(Verify, WaitCycleAcrossRanks) {
  EXPECT_EQ(check(two_lanes(false), two_lanes(false)), "");
  const std::string expected =
      "wait cycle across ranks: these wait for each other\n"
      "  rank 0: all_reduce f32[16] sum (program, comm#0, plan.lua:2) waits for rank 1\n"
      "  rank 1: all_reduce f32[16] sum (program, comm#0, plan.lua:2) waits for all_reduce f32[16] sum (program, "
      "other#0, "
      "plan.lua:3)\n"
      "  rank 1: all_reduce f32[16] sum (program, other#0, plan.lua:3) waits for rank 0\n"
      "  rank 0: all_reduce f32[16] sum (program, other#0, plan.lua:3) waits for all_reduce f32[16] sum (program, "
      "comm#0, "
      "plan.lua:2)";
  EXPECT_EQ(check(two_lanes(false), two_lanes(true)), expected);
}

TEST(Verify, WaitCycleAcrossRanksWhoseGroupsDiffer) {
  // Groups {0,2} and {1,3} along dp: one has equal classes, one is mixed, so no rank can represent its class.
  Builder a = two_lanes(false), b = two_lanes(true);
  a.program.mesh = b.program.mesh = Mesh({{"dp", 2}, {"tp", 2}});
  EXPECT_EQ(check(a, a, {0, 0, 0, 1}), "");
  const std::string found = check(a, b, {0, 0, 0, 1});
  EXPECT_NE(found.find("wait cycle across ranks"), std::string::npos) << found;
  EXPECT_NE(found.find("rank 1: all_reduce f32[16] sum (program, comm#0, plan.lua:2) waits for rank 3"),
            std::string::npos)
      << found;
}

// Collectives.

Builder collectives(std::vector<std::pair<const OpDef*, int64_t>> list) {
  Builder b;
  const int x = b.buffer("x", 64);
  b.op(kCompute, {}, {x});
  for (const auto& [def, floats] : list) {
    const int part = b.tensor(0, 0, floats);
    b.op(*def, {part}, {part});
  }
  return b;
}

TEST(Verify, EqualCollectivesOfDifferentClassesPass) {
  Builder a = collectives({{&kAllReduce, 16}, {&kBroadcast, 16}}), b = a;
  b.op(kCompute, {0}, {0});
  EXPECT_EQ(check(a, b), "");
}

TEST(Verify, AMissingCollective) {
  EXPECT_EQ(check(collectives({{&kAllReduce, 16}, {&kAllReduce, 32}, {&kBroadcast, 16}}),
                  collectives({{&kAllReduce, 16}, {&kBroadcast, 16}})),
            expected());
}

TEST(Verify, AnExtraCollectiveAtTheEnd) {
  EXPECT_EQ(check(collectives({{&kAllReduce, 16}}), collectives({{&kAllReduce, 16}, {&kBroadcast, 16}})), expected());
}

TEST(Verify, ReorderedCollectives) {
  EXPECT_EQ(
      check(collectives({{&kAllReduce, 16}, {&kBroadcast, 16}}), collectives({{&kBroadcast, 16}, {&kAllReduce, 16}})),
      expected());
}

TEST(Verify, CollectivesThatDifferInOneThing) {
  const auto relation = [](auto mutate) {
    Builder a = collectives({{&kAllReduce, 16}, {&kBroadcast, 16}}), b = a;
    mutate(b.program, b.program.step().streams[0].ops);
    const std::string text = check(a, b);
    const size_t semicolon = text.find("; ");
    return text.substr(0, text.find('\n')).substr(semicolon == std::string::npos ? 0 : semicolon + 2);
  };
  EXPECT_EQ(relation([](Program& p, std::vector<Op>&) { p.tensors[1].shape = {8}; }), "they differ in count");
  EXPECT_EQ(relation([](Program& p, std::vector<Op>&) { p.tensors[1].dtype = Dtype::i32; }), "they differ in dtype");
  EXPECT_EQ(relation([](Program&, std::vector<Op>& ops) { ops[1].attrs.set("op", "max"); }), expected());
  EXPECT_EQ(relation([](Program&, std::vector<Op>& ops) { ops[2].attrs.set("root", 1); }), expected());
  EXPECT_EQ(relation([](Program&, std::vector<Op>& ops) { ops[2].def = &kAllReduce; }), "they differ in kind");
  EXPECT_EQ(relation([](Program&, std::vector<Op>&) {}), "");
}

TEST(Verify, CollectivesThatDoNotFitTheirGroup) {
  Builder b;
  const int x = b.buffer("x", 16), y = b.buffer("y", 16);
  b.op(kCompute, {}, {x});
  b.op(kAllGather, {x}, {y});
  Op& broadcast = b.op(kBroadcast, {x}, {x});
  broadcast.attrs.set("root", 2);
  b.op(kAllReduce, {x}, {x}).attrs.set("op", "mean");
  EXPECT_EQ(check(b), expected());
}

TEST(Verify, UnorderedCollectivesOfOneLane) {
  Builder b;
  const int x = b.buffer("x", 16), y = b.buffer("y", 16);
  b.op(kCompute, {}, {x, y});
  b.op(kAllReduce, {x}, {x}, 1, {{0, 0, 0}});
  b.op(kAllReduce, {y}, {y}, 2, {{0, 0, 0}}).lane = 1;
  EXPECT_EQ(check(b), expected());
}

// Reads and writes.

TEST(Verify, ReadBeforeAnyWrite) {
  Builder b;
  const int x = b.buffer("x", 32), low = b.tensor(0, 0, 16);
  b.op(kCompute, {}, {low});
  b.op(kCompute, {x}, {});
  b.op(kCompute, {}, {x});
  EXPECT_EQ(check(b), expected());
}

TEST(Verify, PersistentBuffersAreWrittenInInit) {
  Builder good;
  const int w = good.persistent("w", 16);
  good.op(kCompute, {}, {w}, 0, {}, true);
  good.op(kCompute, {w}, {w});
  EXPECT_EQ(check(good), "");

  Builder bad;
  const int v = bad.persistent("v", 16);
  bad.op(kCompute, {v}, {v});
  EXPECT_EQ(check(bad), expected());
}

TEST(Verify, WhatInitWroteDoesNotLastUnlessPersistent) {
  Builder b;
  const int x = b.buffer("x", 16);
  b.op(kCompute, {}, {x}, 0, {}, true);
  b.op(kCompute, {x}, {});
  EXPECT_EQ(check(b), expected());
}

TEST(Verify, OnlyTransfersTouchTheHostsMemory) {
  const auto moved = [](const OpDef& def) {
    Builder b;
    const int home = b.persistent("home", 16), here = b.buffer("here", 16);
    b.program.buffers[0].space = Space::host;
    b.program.buffers[0].offset = 0;
    b.program.buffers[1].offset = 0;  // overlaps the other arena
    b.program.host_arena_bytes = 64;
    b.program.arena_bytes = 64;
    b.op(kCompute, {}, {here}, 0, {}, true);
    b.op(kStore, {here}, {home}, 0, {}, true);
    b.op(def, {home}, {here});
    b.op(kCompute, {here}, {here});
    b.op(kStore, {here}, {home});
    return check(b);
  };
  EXPECT_EQ(moved(kLoad), "");
  EXPECT_EQ(moved(kCompute), expected());
}

TEST(Verify, UnorderedConflictingAccesses) {
  Builder b = pipeline();
  b.program.step().streams[0].ops[1].waits.clear();
  b.program.buffers[2].offset = 128;
  b.program.arena_bytes = 192;
  EXPECT_EQ(check(b), expected());
}

TEST(Verify, DisjointBytesOfOneBufferDoNotConflict) {
  Builder b;
  b.buffer("x", 32);
  const int low = b.tensor(0, 0, 16), high = b.tensor(0, 16, 16);
  b.op(kCompute, {}, {low});
  b.op(kAllReduce, {low}, {low}, 1, {{0, 0, 0}});
  b.op(kCompute, {}, {high});
  EXPECT_EQ(check(b), "");
  b.op(kCompute, {}, {0});
  EXPECT_EQ(check(b), expected());
}

TEST(Verify, UnorderedReadsDoNotConflict) {
  Builder b;
  const int x = b.buffer("x", 16), y = b.buffer("y", 16), z = b.buffer("z", 16);
  b.op(kCompute, {}, {x});
  b.op(kAllReduce, {x}, {y}, 1, {{0, 0, 0}});
  b.op(kCompute, {x}, {z});
  EXPECT_EQ(check(b), "");
  // The write waits for only one of the two reads.
  b.op(kCompute, {}, {x});
  EXPECT_NE(check(b).find("unordered conflicting accesses: "), std::string::npos);
  b.program.step().streams[0].ops.back().waits = {{1, 0, 0}};
  EXPECT_EQ(check(b), "");
}

// Lifetimes.

TEST(Verify, UseAfterFree) {
  Builder b;
  const int x = b.buffer("x", 16), y = b.buffer("y", 16, 0);
  b.op(kCompute, {}, {x});
  b.op(kCompute, {x}, {});
  b.op(kCompute, {}, {y});
  EXPECT_EQ(check(b), "");
  b.op(kCompute, {x}, {});
  EXPECT_EQ(check(b), expected());
}

TEST(Verify, OverlappingLiveBuffers) {
  Builder b;
  const int x = b.buffer("x", 32), y = b.buffer("y", 16, 64), z = b.buffer("z", 16);
  b.op(kCompute, {}, {x});
  b.op(kAllReduce, {x}, {x}, 1, {{0, 0, 0}});
  b.op(kCompute, {}, {y}, 0, {{1, 0, 0}});
  b.op(kCompute, {y}, {z});
  EXPECT_EQ(check(b), "");
  b.program.step().streams[0].ops[1].waits.clear();
  EXPECT_EQ(check(b), expected());
}

TEST(Verify, OneOpMayNotUseTwoBuffersOnTheSameBytes) {
  Builder b;
  const int x = b.buffer("x", 16), y = b.buffer("y", 16, 0);
  b.op(kCompute, {}, {x});
  b.op(kCompute, {x}, {y});
  EXPECT_EQ(check(b), expected());
}

TEST(Verify, APersistentBufferSharesItsBytesWithNone) {
  Builder b;
  const int w = b.persistent("w", 16), x = b.buffer("x", 16, 0);
  b.op(kCompute, {}, {w}, 0, {}, true);
  b.op(kCompute, {}, {x});
  EXPECT_EQ(check(b), expected());
}

TEST(Verify, ABufferBetweenTwoOthersIsStillCompared) {
  // x covers all bytes, y the low and z the high half; x is used again at the end, after both have overwritten it.
  Builder b;
  const int x = b.buffer("x", 32), y = b.buffer("y", 16, 0), z = b.buffer("z", 16, 64);
  b.op(kCompute, {}, {x});
  b.op(kCompute, {}, {y});
  b.op(kCompute, {}, {z});
  b.op(kCompute, {x}, {});
  const std::vector<Finding> findings = verify_job(b.job(), 0);
  ASSERT_EQ(findings.size(), 2u) << only(findings);
  EXPECT_EQ(findings[0].rule, "use after free");
  EXPECT_EQ(findings[1].rule, "use after free");
}

// Evaluations.

// `pipeline` with an evaluation body that has the same ops on buffers of its own.
Builder evaluated() {
  Builder b = pipeline();
  const int x = b.buffer("x", 16), y = b.buffer("y", 16), loss = b.persistent("eval_loss", 16);
  Table<StreamId, Stream> step = std::exchange(b.program.step().streams, {});
  b.op(kCompute, {}, {x});
  b.op(kAllReduce, {x}, {y}, 1, {{0, 0, 0}, {0, 1, 1}});
  b.op(kCompute, {y}, {loss}, 0, {{1, 0, 0}});
  b.program.bodies.push_back(
      {"evaluation", {1, 1}, std::exchange(b.program.step().streams, std::move(step)), {}, loss});
  return b;
}

TEST(Verify, EvaluationsAreProvedAsStepsAre) {
  EXPECT_EQ(check(evaluated()), "");
  Builder b = evaluated();
  b.program.bodies[2].streams[1].ops[0].waits.clear();
  EXPECT_NE(check(b).find("unordered conflicting accesses: in the evaluation: "), std::string::npos) << check(b);
  b = evaluated();
  b.program.bodies[2].streams[0].ops[1].waits.clear();
  EXPECT_NE(check(b).find("steps overlap: in the evaluation: "), std::string::npos) << check(b);
  b = evaluated();
  b.program.bodies[2].streams[0].ops[0].reads = {99};
  EXPECT_NE(check(b).find("malformed program: "), std::string::npos) << check(b);
}

TEST(Verify, AnEvaluationChangesNothing) {
  Builder b = evaluated();
  const int weights = b.persistent("weights", 16);
  b.program.bodies[2].streams[0].ops[0].writes.push_back(weights);
  EXPECT_EQ(check(b), expected());
}

TEST(Verify, AllRanksEvaluateAtTheSameSteps) {
  Builder a = evaluated(), b = evaluated();
  b.program.bodies[2].when.every = 2;
  EXPECT_EQ(check(a, b), expected());
}

// Memory.

TEST(Verify, MoreMemoryThanThereIs) {
  Builder b;
  const int x = b.buffer("x", 16 << 20);
  b.op(kCompute, {}, {x});
  b.program.role_bytes[static_cast<int>(Role::activation)] = 64 << 20;
  EXPECT_EQ(only(verify_job(b.job(), 64 << 20)), "");
  EXPECT_EQ(only(verify_job(b.job(), 32 << 20)), expected());
  EXPECT_EQ(only(verify_job(b.job(), 32 << 20, 8)), expected());
}

// A program of the size of a 96-layer model: activations that live from forward to backward, reused scratch, gathered
// units in two slots.
TEST(Verify, IsFast) {
  Builder b({{"dp", 1024}});
  constexpr int kLayers = 96, kOps = 50;
  std::vector<std::vector<int>> kept(kLayers);
  std::vector<int> slots = {b.buffer("slot", 16)};
  int scratch_offset = static_cast<int>(b.program.arena_bytes);
  for (int i = 0; i < 64; i++) b.buffer("reserve", 16);
  int gathers = 0;
  const auto gather = [&](int layer) {
    const int shard = b.buffer("shard" + std::to_string(layer) + "." + std::to_string(gathers), 16);
    const int full = b.buffer("full", 16 * 1024);
    b.op(kCompute, {}, {shard});
    const int at = static_cast<int>(b.program.step().streams[0].ops.size()) - 1;
    b.op(kAllGather, {shard}, {full}, 1, {{0, at, 0}});
    b.op(kCompute, {full}, {}, 0, {{1, gathers++, 0}});
  };
  for (int pass = 0; pass < 2; pass++) {
    for (int i = 0; i < kLayers; i++) {
      gather(i);
      for (int k = 0; k < kOps; k++) {
        const int scratch = b.buffer("scratch", 16, scratch_offset + k % 8 * 64);
        b.op(kCompute,
             pass == 0 ? std::vector<TensorId>{}
                       : std::vector<TensorId>{kept[static_cast<size_t>(kLayers - 1 - i)][static_cast<size_t>(k)]},
             {scratch});
        if (pass == 0) {
          kept[static_cast<size_t>(i)].push_back(b.buffer("activation", 16));
          b.program.step().streams[0].ops.back().writes.push_back(kept[static_cast<size_t>(i)].back());
        }
      }
    }
  }
  const Job job = b.job();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(only(verify_job(job, 0)), "");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  RecordProperty("milliseconds", static_cast<int>(seconds * 1000));
  EXPECT_LT(seconds, 2.0) << job.classes[0].step().op_count() << " ops, " << job.classes[0].buffers.size()
                          << " buffers";
}

}  // namespace
}  // namespace prun
