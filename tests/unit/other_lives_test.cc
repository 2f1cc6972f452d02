// Which buffers of several streams are in each other's way: the search by cores agrees with the happens-before order.
#include "compile/other_lives.h"

#include <gtest/gtest.h>

#include <random>

#include "compile/edge_builder.h"
#include "compile/ir_build.h"
#include "ir/ops.h"

namespace prun {
namespace {

constexpr int kBuffers = 60, kOps = 400;

// Appends ops that access buffers one after another, a few of them at a time.
void fill(Program& program, Body& body, std::mt19937& random) {
  for (int i = 0; i < kBuffers; ++i) add_tensor(program, "b", Role::activation, {Dtype::f32, {16}}, false, {});
  EdgeBuilder builder(program, body);
  for (const char* name : {"compute", "send", "gather"}) builder.stream(name);
  for (int i = 0; i < kOps; ++i) {
    const auto near = [&] { return TensorId(static_cast<int>(i * (kBuffers - 6) / kOps + random() % 6)); };
    const int stream = static_cast<int>(random() % 4);
    builder.append(stream < 3 ? stream : 0, make_op(ops::copy, {near()}, {near()}, Phase::forward, {}));
  }
}

TEST(OtherLives, SearchByCoresAgreesWithTheOrder) {
  std::mt19937 random(7);
  int with_cores = 0, apart = 0, in_the_way = 0;
  for (int round = 0; round < 40; ++round) {
    Program program;
    Body& body = program.step();
    fill(program, body, random);
    const BufferLives lives(program, body);
    for (const BufferId a : program.buffers.ids()) {
      if (!lives[a].any() || lives[a].computes_only()) continue;
      with_cores += lives[a].has_core() ? 1 : 0;
      OtherLives taken(lives);
      taken.take(lives[a], 0, 64);
      for (const BufferId b : program.buffers.ids()) {
        if (b == a || !lives[b].any()) continue;
        std::vector<const ByteRuns*> runs;
        std::deque<ByteRuns> compared;
        taken.collect(lives[b], runs, compared);
        const bool found = LowestPlace().find(runs, 64) > 0, interferes = !lives.disjoint(lives[a], lives[b]);
        EXPECT_EQ(found, interferes) << "round " << round << ", buffers " << a.index() << " and " << b.index();
        (found ? in_the_way : apart)++;
      }
    }
  }
  EXPECT_GT(with_cores, 100);
  EXPECT_GT(apart, 1000);
  EXPECT_GT(in_the_way, 1000);
}

}  // namespace
}  // namespace prun
