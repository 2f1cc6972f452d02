// Further rules of a training step: every result is used, it starts from parameters and optimizer state only, its
// streams are joined, and operands have fitting shapes.
#include <gtest/gtest.h>

#include "ir/ops.h"
#include "tests/unit/expected_text.h"
#include "tests/unit/verify_builder.h"

namespace prun {
namespace {

const OpDef& kUpdate = ops::sgd;
const OpDef& kInit = ops::init_params;

// One weight of 16 elements: y = f(w), the loss of y, the gradient, the update.
struct Training : Builder {
  int w, g, loss, y;
  explicit Training(std::vector<Axis> axes = {{"dp", 1}}) : Builder(std::move(axes)) {
    w = persistent("w", 16);
    program.buffers.back().role = Role::param;
    g = persistent("g", 16);
    program.buffers.back().role = Role::grad;
    loss = persistent("loss", 1);
    program.tensors[static_cast<size_t>(loss)].shape = {};
    program.buffers.back().role = Role::data;
    program.step().loss = loss;
    y = buffer("y", 16);
    op(kInit, {}, {w}, 0, {}, true).attrs.set("counts", std::vector<int64_t>{16});
    program.init().streams[0].ops[0].attrs.set("starts", std::vector<int64_t>{0});
    op(ops::fill, {}, {g}, 0, {}, true);
    op(kCompute, {w}, {y}).phase = Phase::forward;
    op(kCompute, {y}, {loss}).phase = Phase::forward;
    op(kCompute, {y, w}, {g}).phase = Phase::backward;
    op(kUpdate, {g, w}, {w}).phase = Phase::step;
  }
  std::vector<Op>& step() { return program.step().streams[0].ops; }
};

TEST(VerifyTraining, ARightStepPasses) { EXPECT_EQ(check(Training()), ""); }

TEST(VerifyTraining, AValueThatNobodyReads) {
  Training t;
  t.step()[1].reads = {t.w};
  t.step()[2].reads = {t.w};
  EXPECT_EQ(check(t), expected());
}

TEST(VerifyTraining, AValueThatIsOverwritten) {
  Training t;
  t.op(kCompute, {t.w}, {t.y});
  std::rotate(t.step().begin() + 1, t.step().end() - 1, t.step().end());
  EXPECT_EQ(check(t), expected());
}

TEST(VerifyTraining, StatisticsMayGoUnread) {
  const OpDef norm = without_shapes(ops::layernorm);
  Training t;
  const int statistics = t.buffer("statistics", 16);
  t.step()[0].writes.push_back(statistics);
  EXPECT_EQ(check(t).substr(0, 76), "lost value: add (forward, compute#0, plan.lua:3) writes bytes 0..64 of buffe");
  t.step()[0].def = &norm;
  EXPECT_EQ(check(t), "");
}

TEST(VerifyTraining, AStepWithoutALoss) {
  Training t;
  t.step().erase(t.step().begin() + 1);
  EXPECT_EQ(check(t), "lost value: a step ends without a loss: nothing in it writes one");
}

TEST(VerifyTraining, HalfOfAResultIsNotEnough) {
  Training t;
  t.step()[1].reads = {t.tensor(3, 0, 8)};
  t.step()[2].reads = {t.w};
  EXPECT_EQ(check(t), expected());
}

TEST(VerifyTraining, ProgramsWithoutALossMayPrintOnly) {
  Training t;
  t.program.step().loss = -1;
  t.step()[2].reads = {t.w};
  t.step()[1].reads = {t.w};
  EXPECT_EQ(check(t), "");
}

TEST(VerifyTraining, GradientsOfTheStepBeforeAreNotThisSteps) {
  Training t;
  t.step()[2].writes = {t.y};
  EXPECT_NE(check(t).find("read before any write: sgd (step, compute#3, plan.lua:6) reads bytes 0..64 of buffer 'g' "
                          "before anything in the step writes them; nothing writes them"),
            std::string::npos)
      << check(t);
}

TEST(VerifyTraining, PaddingBetweenParametersStaysZero) {
  Training t;
  t.program.init().streams[0].ops[0].attrs.set("counts", std::vector<int64_t>{8});
  t.step()[2].writes = {t.tensor(1, 0, 8)};
  EXPECT_EQ(check(t), "");
}

// Two microbatches: the first writes the gradient, and the second adds to `added` in place.
Training with_two_microbatches(int64_t first, int64_t floats) {
  Training t;
  const int added = t.tensor(1, first, floats);
  t.step()[2].microbatch = 0;
  Op add = t.step()[2];
  add.reads = {t.y, t.w, added};
  add.writes = {added};
  add.microbatch = 1;
  t.step().insert(t.step().begin() + 3, add);
  return t;
}

TEST(VerifyTraining, EachMicrobatchAddsToEachGradient) {
  EXPECT_EQ(check(with_two_microbatches(0, 16)), "");
  EXPECT_EQ(
      check(with_two_microbatches(0, 8)),
      "lost gradient: no op adds the gradient of microbatch 1 to bytes 32..64 of buffer 'g', which add (backward, "
      "compute#2, plan.lua:5) writes last");
}

TEST(VerifyTraining, AnAdditionMayCoverPadding) {
  Training t = with_two_microbatches(0, 16);
  t.program.init().streams[0].ops[0].attrs.set("counts", std::vector<int64_t>{8});
  t.step()[2].writes = {t.tensor(1, 0, 8)};
  EXPECT_EQ(check(t), "");
}

// The state of two parameters of 8 elements in w, which `shards` ranks of dp share.
void list_parameters(Training& t, const std::string& shard_axis = "") {
  for (int i = 0; i < 2; i++) {
    StateTensor state;
    state.name = i == 0 ? "first" : "second";
    state.tensor = t.w;
    state.begin = int64_t{8} * i;
    state.shape = {8};
    state.shard_axis = shard_axis;
    state.lr_factor = 1 + i;
    t.program.state.push_back(state);
  }
}

TEST(VerifyTraining, ParametersAreUpdatedWithTheSettingsOfTheirGroups) {
  Training t;
  list_parameters(t);
  EXPECT_EQ(check(t),
            "parameter groups: sgd (step, compute#3, plan.lua:6) updates 'second' with lr factor 1 and weight decay 0, "
            "where the plan has lr factor 2 and weight decay 0; it is from before the step");
  Attrs& attrs = t.step()[3].attrs;
  attrs.set("piece_starts", std::vector<int64_t>{0, 8});
  attrs.set("piece_lr_factors", std::vector<double>{1, 2});
  attrs.set("piece_weight_decays", std::vector<double>{0, 0});
  EXPECT_EQ(check(t), "");
  attrs.set("piece_starts", std::vector<int64_t>{0, 7});
  EXPECT_NE(check(t).find("updates 'first' with lr factor 2"), std::string::npos) << check(t);
  attrs.set("piece_starts", std::vector<int64_t>{1, 8});
  EXPECT_NE(check(t).find("updates 'first' with no settings"), std::string::npos) << check(t);
  attrs.set("piece_starts", std::vector<int64_t>{0});
  EXPECT_NE(check(t).find("lists pieces without settings for each"), std::string::npos) << check(t);
}

// w is a shard: the parameters span the shards of two ranks, 8 elements on each.
TEST(VerifyTraining, PiecesOfAShardCountInTheWholeVector) {
  Training t({{"dp", 2}});
  list_parameters(t, "dp");
  t.program.state[1].begin = 20;  // second: the last 8 of 32 elements, on rank 1; first: the first 8, on rank 0
  Attrs& attrs = t.step()[3].attrs;
  attrs.set("piece_starts", std::vector<int64_t>{0, 20});
  attrs.set("piece_lr_factors", std::vector<double>{1, 2});
  attrs.set("piece_weight_decays", std::vector<double>{0, 0});
  attrs.set("axis", std::string("dp"));
  attrs.set("shard", int64_t{16});
  EXPECT_EQ(check(t).find("parameter groups"), std::string::npos) << check(t);
  attrs.set("shard", int64_t{0});
  EXPECT_NE(check(t).find("updates 'second' with lr factor 1"), std::string::npos) << check(t);
  attrs.set("shard", int64_t{16});
  attrs.set("axis", std::string());
  EXPECT_NE(check(t).find("lists the pieces of a shard over no axis for one over dp"), std::string::npos) << check(t);
}

TEST(VerifyTraining, FrozenWeightsAreNotWritten) {
  Training t;
  const int frozen = t.persistent("frozen", 16);
  t.program.buffers.back().role = Role::frozen;
  t.op(kInit, {}, {frozen}, 0, {}, true).attrs.set("counts", std::vector<int64_t>{16});
  t.program.init().streams[0].ops.back().attrs.set("starts", std::vector<int64_t>{0});
  t.step()[0].reads.push_back(frozen);
  EXPECT_EQ(check(t), "");
  t.op(kCompute, {frozen}, {frozen}).phase = Phase::step;
  EXPECT_NE(check(t).find("frozen weights: add (step, compute#4, plan.lua:8) writes 't4', weights that the plan has "
                          "frozen"),
            std::string::npos)
      << check(t);
}

TEST(VerifyTraining, StreamsMeetAtTheEndOfAStep) {
  Training t({{"dp", 2}});
  t.program.schedule.steps = 2;
  Op& broadcast = t.op(kBroadcast, {t.g}, {t.g}, 1, {{0, 2, 0}, {0, 3, 1}});
  t.step()[3].waits = {{1, 0, 0}};
  EXPECT_EQ(check(t), "");
  // The first wait already orders it after the previous step.
  broadcast.waits.pop_back();
  EXPECT_EQ(check(t), "");

  Training gather({{"dp", 2}});
  gather.program.schedule.steps = 2;
  gather.op(ops::fill, {}, {gather.buffer("z", 16)}, 1, {{0, 3, 1}});
  gather.step()[3].reads.push_back(4);
  gather.step()[3].waits = {{1, 0, 0}};
  gather.program.step().streams[1].ops[0].waits.clear();
  EXPECT_NE(
      check(gather).find("steps overlap: fill (program, comm#0, plan.lua:7) may begin before sgd (step, compute#3, "
                         "plan.lua:6) has ended the step before"),
      std::string::npos)
      << check(gather);
  gather.program.step().streams[1].ops[0].waits = {{0, 3, 1}};
  gather.step()[3].waits.clear();
  EXPECT_NE(
      check(gather).find("steps overlap: sgd (step, compute#3, plan.lua:6) ends the step without waiting for fill "
                         "(program, comm#0, plan.lua:7)"),
      std::string::npos)
      << check(gather);
}

// Shapes: one op on tensors of given sizes, in a program that trains.

std::string shapes(const char* kind, std::vector<Shape> reads, std::vector<Shape> writes, Attrs attrs = {}) {
  Training t;
  const auto tensors = [&](const std::vector<Shape>& list) {
    std::vector<TensorId> ids;
    for (const Shape& shape : list) {
      ids.push_back(t.buffer("b", element_count(shape)));
      t.program.tensors.back().shape = shape;
    }
    return ids;
  };
  t.op(op_def(kind), tensors(reads), tensors(writes)).attrs = std::move(attrs);
  for (const Finding& finding : verify_job(t.job(), 0)) {
    if (finding.rule == "shapes do not fit") return finding.message.substr(finding.message.find(": ") + 2);
  }
  return "";
}

TEST(VerifyTraining, OpsOfModelsInferTheirShapes) {
  EXPECT_EQ(shapes("linear", {{4, 8}, {8, 3}, {3}}, {{4, 3}}), "");
  EXPECT_EQ(shapes("linear", {{4, 8}, {8, 3}, {2}}, {{4, 3}}), expected());
  EXPECT_EQ(shapes("linear", {{4, 8}, {8, 3}}, {{4, 2}}), "it makes f32[4, 3], and f32[4, 2] is written");
}

TEST(VerifyTraining, DerivativesHaveRulesOfTheirOwn) {
  Attrs transposed;
  transposed.set("transpose", 1);
  EXPECT_EQ(shapes("linear_dx", {{4, 3}, {8, 3}}, {{4, 8}}), "");
  EXPECT_EQ(shapes("linear_dx", {{4, 3}, {3, 8}}, {{4, 8}}, transposed), "");
  EXPECT_EQ(shapes("linear_dx", {{4, 3}, {8, 2}}, {{4, 8}}), "f32[8, 2] should be [8, 3]");
  EXPECT_EQ(shapes("linear_dw", {{4, 8}, {4, 3}}, {{8, 3}, {3}}), "");
  EXPECT_EQ(shapes("linear_dw", {{4, 8}, {2, 3}}, {{8, 3}, {3}}), "f32[2, 3] should have 12 elements");
  EXPECT_EQ(shapes("linear_dw", {{4, 8}, {4, 3}}, {{8, 3}, {2}}), "f32[2] should be [3]");
  EXPECT_EQ(shapes("linear_dw_add", {{4, 8}, {4, 3}, {8, 3}, {3}}, {{8, 3}, {3}}), "");
  EXPECT_EQ(shapes("linear_dw_add", {{4, 8}, {4, 3}, {3, 8}}, {{8, 3}}), "f32[3, 8] should be [8, 3]");
  EXPECT_EQ(shapes("bias_grad_add", {{4, 3}, {2}}, {{3}}), "f32[2] should be [3]");
  EXPECT_EQ(shapes("gelu_dx", {{4, 8}, {4, 7}}, {{4, 8}}), "f32[4, 8] and f32[4, 7] should have one shape");
  EXPECT_EQ(shapes("layernorm_grad", {{4, 8}, {4, 8}, {8}, {4}, {4}}, {{4, 8}, {8}, {8}}), "");
  EXPECT_EQ(shapes("layernorm_grad", {{4, 8}, {4, 8}, {8}, {3}, {4}}, {{4, 8}, {8}, {8}}), expected());
  EXPECT_EQ(shapes("layernorm_grad_add", {{4, 8}, {4, 8}, {8}, {4}, {4}, {4, 8}}, {{4, 8}, {8}, {8}}), "");
  EXPECT_EQ(shapes("rmsnorm_grad_add", {{4, 8}, {4, 8}, {8}, {4}, {4, 7}}, {{4, 8}, {8}}), expected());
  EXPECT_EQ(shapes("add_rmsnorm", {{4, 8}, {4, 8}, {8}}, {{4, 8}, {4, 8}, {4}}), "");
  EXPECT_EQ(shapes("add_rmsnorm", {{4, 8}, {4, 8}, {7}}, {{4, 8}, {4, 8}, {4}}), "f32[7] should be [8]");
  EXPECT_EQ(shapes("add_layernorm", {{4, 8}, {4, 8}, {8}, {8}}, {{4, 8}, {4, 8}, {4}, {5}}), expected());
  EXPECT_EQ(shapes("cross_entropy_grad", {{4, 8}, {3}, {4}}, {{4, 8}}), "f32[3] should have 4 elements");
  EXPECT_EQ(shapes("cross_entropy_and_grad", {{4, 8}, {4}}, {{}, {4}, {4, 8}}), "");
  EXPECT_EQ(shapes("cross_entropy_and_grad", {{4, 8}, {4}}, {{}, {3}, {4, 8}}), "f32[3] should have 4 elements");
  EXPECT_EQ(shapes("cross_entropy_and_grad", {{4, 8}, {4}}, {{}, {4}, {4, 7}}), expected());
}

TEST(VerifyTraining, ExpertsHaveRulesOfTheirOwn) {
  Attrs two;
  two.set("k", 2);
  EXPECT_EQ(shapes("route_grad", {{1, 4, 3}, {4, 2}, {4, 2}, {4, 2}, {3}}, {{1, 4, 3}}, two), "");
  EXPECT_EQ(shapes("route_grad", {{1, 4, 3}, {4, 2}, {4, 2}, {4, 2}, {4}}, {{1, 4, 3}}, two),
            "f32[4] should have 3 elements");
  EXPECT_EQ(shapes("route_grad", {{1, 4, 3}, {3, 2}, {3, 2}, {3, 2}}, {{1, 4, 3}}, two),
            "f32[3, 2] should have 8 elements");
  EXPECT_EQ(shapes("dispatch_grad", {{4, 2}, {3, 4, 8}}, {{1, 4, 8}}), "");
  EXPECT_EQ(shapes("dispatch_grad", {{4, 2}, {3, 4, 8}}, {{1, 3, 8}}), "f32[1, 3, 8] should have 32 elements");
  EXPECT_EQ(shapes("combine_grad", {{3, 4, 8}, {4, 2}, {4, 2}, {1, 4, 8}}, {{3, 4, 8}, {4, 2}}), "");
  EXPECT_EQ(shapes("combine_grad", {{3, 4, 8}, {4, 2}, {4, 2}, {1, 4, 8}}, {{3, 4, 8}, {4, 1}}), expected());
  EXPECT_EQ(shapes("expert_linear_dx", {{3, 4, 5}, {3, 8, 5}, {3, 1}}, {{3, 4, 8}}), "");
  EXPECT_EQ(shapes("expert_linear_dx", {{3, 4, 5}, {3, 8, 5}, {3, 1}}, {{3, 2, 8}}),
            "f32[3, 2, 8] should be [3, 4, 8]");
  EXPECT_EQ(shapes("expert_linear_dw", {{3, 4, 8}, {3, 4, 5}, {3, 1}}, {{3, 8, 5}}), "");
  EXPECT_EQ(shapes("expert_linear_dw_add", {{3, 4, 8}, {3, 4, 5}, {3, 1}, {3, 8, 5}}, {{3, 8, 5}}), "");
  EXPECT_EQ(shapes("expert_linear_dw", {{3, 4, 8}, {3, 4, 5}, {3, 1}}, {{2, 8, 5}}),
            "f32[2, 8, 5] should be [3, 8, 5]");
}

TEST(VerifyTraining, HopsOfRingAttentionHaveRulesOfTheirOwn) {
  Attrs attrs;  // 4 heads of 2 elements, 2 heads of keys and values: qkv has 16 columns, kv has 8
  attrs.set("heads", 4);
  attrs.set("kv_heads", 2);
  const Shape qkv = {1, 4, 16}, kv = {1, 4, 8}, out = {1, 4, 8}, lse = {1, 4, 4}, less = {1, 3, 8};
  EXPECT_EQ(shapes("attention_block", {qkv, kv}, {out, lse}, attrs), "");
  EXPECT_EQ(shapes("attention_block", {qkv, kv, out, lse}, {out, lse}, attrs), "");
  EXPECT_EQ(shapes("attention_block", {qkv, less}, {out, lse}, attrs), "f32[1, 3, 8] should have 32 elements");
  EXPECT_EQ(shapes("attention_block", {qkv, kv, less, lse}, {out, lse}, attrs), "f32[1, 3, 8] should have 32 elements");
  EXPECT_EQ(shapes("attention_block_grad", {qkv, kv, out, out, lse, out}, {out, kv}, attrs), "");
  EXPECT_EQ(shapes("attention_block_grad", {qkv, kv, out, out, lse}, {out, less}, attrs), expected());
  EXPECT_EQ(shapes("copy_kv", {qkv}, {kv}), "");
  EXPECT_EQ(shapes("copy_kv", {qkv}, {less}), "f32[1, 3, 8] should have 32 elements");
  EXPECT_EQ(shapes("join_qkv", {out, kv}, {qkv}), "");
  EXPECT_EQ(shapes("join_qkv", {out, less}, {qkv}), "f32[1, 4, 16] should have 56 elements");
}

TEST(VerifyTraining, OptimizersUpdateAsManyElementsAsTheyRead) {
  EXPECT_EQ(shapes("adamw", {{8}, {8}, {8}, {8}, {}}, {{8}, {8}, {8}}), "");
  EXPECT_EQ(shapes("adamw", {{8}, {8}, {8}, {7}, {}}, {{8}, {8}, {8}}), expected());
  EXPECT_EQ(shapes("adamw", {{8}, {8}, {8}, {8}, {2}}, {{8}, {8}, {8}}), "f32[2] should have 1 elements");
  EXPECT_EQ(shapes("adamw", {{8}, {8}}, {{8}}), "it reads 2 and writes 1 tensors, 4 and 3 are the least");
  EXPECT_EQ(shapes("adamw_cast", {{8}, {8}, {8}, {8}, {}}, {{8}, {8}, {8}, {8}}), "");
  EXPECT_EQ(shapes("adamw_cast", {{8}, {8}, {8}, {8}}, {{8}, {8}, {8}, {7}}), expected());
  EXPECT_EQ(shapes("sgd_cast", {{8}, {8}, {}}, {{8}, {8}}), "");
  EXPECT_EQ(shapes("sgd_cast", {{8}, {8}}, {{8}}), "it reads 2 and writes 1 tensors, 2 and 2 are the least");
}

TEST(VerifyTraining, InitialValuesFillTheVector) {
  Training t;
  t.program.init().streams[0].ops[0].attrs.set("counts", std::vector<int64_t>{17});
  EXPECT_EQ(check(t), expected());
}

}  // namespace
}  // namespace prun
