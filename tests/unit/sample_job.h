// A job of one class in which every kind of field is set, for the tests of the binary and the text form.
#pragma once
#include "ir/program.h"

namespace prun {

inline Op sample_op(const char* kind, std::vector<TensorId> reads, std::vector<TensorId> writes, Phase phase,
                    const char* unit, int line) {
  Op op;
  op.def = &op_def(kind);
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  op.phase = phase;
  op.unit = unit;
  op.site = {"plans/mlp.lua", line};
  return op;
}

inline Job sample_job() {
  Program p;
  p.name = "plans/mlp.lua";
  p.mesh = Mesh({{"dp", 4}});
  p.buffers = {{"fc.shard", Role::param, 1344, 0, true, -1, -1, {"plans/mlp.lua", 3}},
               {"fc.full", Role::gathered, 5248, 1344, false, 0, 0, {}},
               {"x", Role::data, 128, 6592, false, -1, -1, {}},
               {"h", Role::activation, 320, 6720, false, -1, -1, {}},
               {"loss", Role::activation, 64, 7040, true, -1, -1, {}}};
  p.tensors = {{"fc.shard", 0, 0, Dtype::f32, {328}},
               {"fc.full", 1, 0, Dtype::f32, {1312}},
               {"fc.weight", 1, 0, Dtype::f32, {64, 20}},
               {"fc.bias", 1, 5120, Dtype::f32, {20}},
               {"x", 2, 0, Dtype::bf16, {1, 64}},
               {"h", 3, 0, Dtype::f32, {4, 20}},
               {"loss", 4, 0, Dtype::f32, {}}};
  p.pools = {{"fc", Role::gathered, 1, 5248}};
  Op fill = sample_op("init_params", {}, {0}, Phase::init, "fc", 3);
  fill.attrs.set("starts", std::vector<int64_t>{0, 16, 32, 48, 64, 80, 96, 112, 128});
  fill.attrs.set("scales", std::vector<double>{0.02, 0});
  fill.attrs.set("axis", std::string("dp"));
  p.init().streams = {{"compute", {fill}}};
  Op gather = sample_op("all_gather", {0}, {1}, Phase::forward, "fc", 7);
  gather.axis = "dp";
  gather.lane = 1;
  gather.waits = {{0, 2, 1}};
  Op next = sample_op("next_batch", {}, {4}, Phase::data, "", 5);
  Op linear = sample_op("linear", {4, 2, 3}, {5}, Phase::forward, "fc", 4);
  linear.attrs.set("act", std::string("relu"));
  linear.waits = {{1, 0, 0}};
  Op loss = sample_op("mean_square", {5}, {6}, Phase::forward, "", 6);
  loss.attrs.set("scale", 0.0125);
  loss.attrs.set("big", INT64_MIN);
  p.step().streams = {{"compute", {next, linear, loss}}, {"gather", {gather}}};
  p.step().data = {"tokens", {{"/home/someone/data.bin", 4096, 16, "u16", ""}}, 50257, 8, "random", 0, 2040};
  p.schedule = {.steps = 20, .seed = UINT64_MAX, .learning_rate = {.last = 3e-4}};
  p.tokens_per_step = 1024;
  p.step().loss = 6;
  p.arena_bytes = 7104;
  p.role_bytes[0] = 1344;
  p.role_bytes[3] = 5248;
  Job job;
  job.classes = {p};
  job.class_of_rank = {0, 0, 0, 0};
  return job;
}

}  // namespace prun
