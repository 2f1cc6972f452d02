// The complete text form of a small job.
#include <gtest/gtest.h>

#include "tests/unit/sample_job.h"

namespace prun {
namespace {

TEST(Dump, WholeText) {
  EXPECT_EQ(dump_job(sample_job()), R"(program  plans/mlp.lua
mesh     dp=4
ranks    0-3
device   cpu
steps    20, seed 18446744073709551615, learning rate 0.0003
data     tokens data.bin, 8 samples a step (1,024 tokens)
loss     loss

arena    7,104 bytes
  param                 1,344
  gathered              5,248

pools
  gathered     1 x         5,248 bytes  fc

buffers  offset          bytes  role
              0          1,344  param       fc.shard  persistent
          1,344          5,248  gathered    fc.full  in fc slot 0
          6,592            128  data        x
          6,720            320  activation  h
          7,040             64  activation  loss  persistent

init

  stream compute
    init fc
      0  init_params  -> fc.shard:f32[328]  {axis="dp" scales=[0.02, 0] starts=[0, 16, 32, 48, ... 9 in all]}  [plans/mlp.lua:3]

step

  stream compute
    data
      0  next_batch   -> x:bf16[1,64]  [plans/mlp.lua:5]
    forward fc
      1  linear       x:bf16[1,64], fc.weight:f32[64,20], fc.bias:f32[20] -> h:f32[4,20]  {act="relu"}  after gather@0  [plans/mlp.lua:4]
    forward
      2  mean_square  h:f32[4,20] -> loss:f32[]  {big=-9223372036854775808 scale=0.0125}  [plans/mlp.lua:6]

  stream gather
    forward fc
      0  all_gather  fc.shard:f32[328] -> fc.full:f32[1312]  over dp lane 1  after compute@2 of the step before  [plans/mlp.lua:7]
)");
}

TEST(Dump, ClassesNameTheirRanks) {
  Job job = sample_job();
  job.classes.push_back(job.classes[0]);
  job.class_of_rank = {0, 1, 0, 0};
  std::string text = dump_job(job);
  EXPECT_NE(text.find("ranks    0, 2-3 of 4\n"), std::string::npos);
  EXPECT_NE(text.find("ranks    1 of 4\n"), std::string::npos);
}

TEST(Dump, Evaluations) {
  Job job = sample_job();
  Program& program = job.classes[0];
  program.bodies.push_back({"evaluation",
                            {50, 4},
                            {{"compute", {sample_op("mean_square", {5}, {6}, Phase::forward, "", 8)}}},
                            program.step().data,
                            {}});
  const std::string text = dump_job(job);
  EXPECT_NE(text.find("\nevaluation 4 times after every 50 steps, tokens data.bin\n"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with(R"(
evaluation

  stream compute
    forward
      0  mean_square  h:f32[4,20] -> loss:f32[]  [plans/mlp.lua:8]
)")) << text;
}

TEST(Dump, ScheduledLearningRates) {
  Job job = sample_job();
  LearningRate& rate = job.classes[0].schedule.learning_rate;
  rate = {.curve = "cosine, peak 0.0003, warmup 5, over 20 steps, least 0", .last = 1e-4};
  EXPECT_NE(dump_job(job).find(", learning rate cosine, peak 0.0003, warmup 5, over 20 steps, least 0\n"),
            std::string::npos);
  rate = {.last = 1e-4};
  EXPECT_NE(dump_job(job).find(", learning rate 0.0001\n"), std::string::npos);
}

TEST(Dump, AnOpAlone) {
  Job job = sample_job();
  const Program& program = job.classes[0];
  EXPECT_EQ(dump_op(program, program.step().streams[1].ops[0]),
            "all_gather  fc.shard:f32[328] -> fc.full:f32[1312]  over dp lane 1");
  Op update = sample_op("sgd", {1, 0}, {0}, Phase::step, "", 1);
  EXPECT_EQ(dump_op(program, update), "sgd  fc.full:f32[1312], fc.shard:f32[328] -> fc.shard");
}

}  // namespace
}  // namespace prun
