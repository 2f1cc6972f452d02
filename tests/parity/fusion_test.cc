// A device with fused ops (linear + gelu, residual add + norm, loss + gradient, update + cast) trains like one without:
// compile/fuse.cc and fuse_loss.cc under all strategies, schedules and options that affect a model's ops.
//
// Surprising fact: the reference device computes the same doubles either way, so losses are bitwise identical.
#include <gtest/gtest.h>

#include <map>

#include "ir/op_cost.h"
#include "ir/ops.h"
#include "kernels/devices.h"
#include "tests/parity/parity_job.h"

namespace prun::test {
namespace {

struct FusionCase {
  const char* name;
  int ranks;
  Settings settings;
  int apart = 0;  // gelu_dx ops whose GEMM is in another unit
  int norms = 0;  // per step; `alone` of them have no add before them to fuse
  int alone = 0;
  int losses = 1;  // fused with their gradient; 0: mse, or a vocabulary split over ranks
};
void PrintTo(const FusionCase& c, std::ostream* out) { *out << c.name; }

std::map<std::string, int> count_ops(const Job& job) {
  std::map<std::string, int> counts;
  for (const Program& program : job.classes)
    for (const Stream& stream : program.step().streams)
      for (const Op& op : stream.ops) counts[std::string(op.def->name)]++;
  return counts;
}

// Counts the tensors into which gradient ops accumulate.
int sums_of_gradients(const Job& job) {
  int sums = 0;
  for (const Program& program : job.classes)
    for (const Stream& stream : program.step().streams)
      for (const Op& op : stream.ops)
        if (op.is(ops::linear_dw_add) || op.is(ops::bias_grad_add) || op.is(ops::expert_linear_dw_add))
          sums += static_cast<int>(op.writes.size());
  return sums;
}

class Fusion : public testing::TestWithParam<FusionCase> {};

TEST_P(Fusion, LossesHaveTheSameBits) {
  const FusionCase& c = GetParam();
  Settings settings = {{"width", "12"}, {"heads", "4"}, {"batch", "4"}, {"layers", "2"}};
  for (const auto& [name, value] : c.settings) settings[name] = value;
  const auto job = [&](bool fused) {
    return parity_job(c.ranks, settings, "reference", "tests/parity/product.lua", fused);
  };
  const Job apart = job(false), fused = job(true);
  std::map<std::string, int> before = count_ops(apart), after = count_ops(fused);
  EXPECT_GT(before["gelu"], 0);
  EXPECT_EQ(before["linear_gelu"] + before["linear_dx_gelu"], 0);
  EXPECT_EQ(after["gelu"], 0);
  EXPECT_EQ(after["gelu_dx"], c.apart);
  EXPECT_EQ(after["linear_gelu"], before["gelu"]);
  EXPECT_EQ(after["linear_dx_gelu"], before["gelu_dx"] - c.apart);
  EXPECT_EQ(after["linear"], before["linear"] - before["gelu"]);
  EXPECT_EQ(after["linear_dx"], before["linear_dx"] - after["linear_dx_gelu"]);
  EXPECT_EQ(after["linear_dw"] + after["linear_dw_add"], before["linear_dw"]);
  EXPECT_EQ(before["layernorm"], c.norms);
  EXPECT_EQ(after["layernorm"], c.alone);
  EXPECT_EQ(after["add_layernorm"], c.norms - c.alone);
  EXPECT_EQ(after["layernorm_grad"], before["layernorm_grad"] / 5);  // the head's norm, whose input has no residual
  EXPECT_EQ(after["layernorm_grad_add"], before["layernorm_grad"] - after["layernorm_grad"]);
  EXPECT_EQ(after["add"],
            before["add"] - after["add_layernorm"] - after["layernorm_grad_add"] - sums_of_gradients(fused));
  for (size_t i = 0; i < fused.classes.size(); ++i)
    EXPECT_LE(fused.classes[i].arena_bytes, apart.classes[i].arena_bytes);
  EXPECT_EQ(after["cross_entropy_and_grad"], c.losses);
  EXPECT_EQ(after["cross_entropy"], before["cross_entropy"] - c.losses);
  EXPECT_EQ(after["cross_entropy_grad"], before["cross_entropy_grad"] - c.losses);
  EXPECT_EQ(model_flops(fused), model_flops(apart));
  const std::unique_ptr<Device> device = open_device("reference");
  const VirtualRun one = run_virtual_ranks(fused, *device), by_one = run_virtual_ranks(apart, *device);
  EXPECT_EQ(losses_of(one), losses_of(by_one));
  EXPECT_EQ(one.eval_losses, by_one.eval_losses);
  EXPECT_FALSE(one.eval_losses.empty());
}

INSTANTIATE_TEST_SUITE_P(
    , Fusion,
    testing::Values(FusionCase{"one_rank", 1, {}, 0, 5, 1}, FusionCase{"mlp", 1, {{"model", "mlp"}}, 1, 0, 0, 0},
                    FusionCase{"zero3", 2, {{"dp", "2"}, {"data_parallel", "zero3"}}, 0, 5, 1},
                    FusionCase{
                        "recompute", 2, {{"dp", "2"}, {"data_parallel", "zero3"}, {"recompute", "blocks"}}, 0, 9, 4},
                    FusionCase{"recompute_head", 2, {{"dp", "2"}, {"recompute", "head"}, {"micro", "2"}}, 0, 12, 6, 2},
                    FusionCase{"tied", 1, {{"tied", "true"}}, 0, 5, 1},
                    FusionCase{"tensor_parallel", 2, {{"tp", "2"}}, 0, 5, 1, 0},
                    FusionCase{"sequence_parallel", 2, {{"tp", "2"}, {"sequence", "true"}}, 0, 5, 1, 0},
                    FusionCase{"one_forward_one_backward", 2, {{"pp", "2"}, {"micro", "4"}}, 0, 20, 8, 4},
                    FusionCase{"zero_bubble", 2, {{"pp", "2"}, {"schedule", "zb_h1"}, {"micro", "2"}}, 0, 10, 4, 2}),
    [](const auto& made) { return made.param.name; });

struct AccumulationCase {
  const char* name;
  int ranks;
  Settings settings;
  std::map<std::string, int> adds;  // ops per step, over all programs
};
void PrintTo(const AccumulationCase& c, std::ostream* out) { *out << c.name; }

class Accumulation : public testing::TestWithParam<AccumulationCase> {};

// Whole gradients accumulate over microbatches in the op; shards are added after their reduction. 27 is 4 linears of 2
// blocks and the head, in 3 of 4 microbatches.
TEST_P(Accumulation, LossesHaveTheSameBits) {
  const AccumulationCase& c = GetParam();
  Settings settings = {{"width", "12"}, {"heads", "4"}, {"batch", "8"}, {"layers", "2"}, {"micro", "4"}};
  for (const auto& [name, value] : c.settings) settings[name] = value;
  const auto job = [&](bool fused) {
    return parity_job(c.ranks, settings, "reference", "tests/parity/product.lua", fused);
  };
  const Job apart = job(false), fused = job(true);
  std::map<std::string, int> before = count_ops(apart), after = count_ops(fused), adds;
  for (const std::string kind : {"linear_dw", "bias_grad", "expert_linear_dw"}) {
    EXPECT_EQ(before[kind + "_add"], 0);
    EXPECT_EQ(after[kind] + after[kind + "_add"], before[kind]);
    if (after[kind + "_add"] > 0) adds[kind + "_add"] = after[kind + "_add"];
  }
  EXPECT_EQ(adds, c.adds);
  for (size_t i = 0; i < fused.classes.size(); ++i)
    EXPECT_LE(fused.classes[i].arena_bytes, apart.classes[i].arena_bytes);
  EXPECT_EQ(model_flops(fused), model_flops(apart));
  const std::unique_ptr<Device> device = open_device("reference");
  EXPECT_EQ(losses_of(run_virtual_ranks(fused, *device)), losses_of(run_virtual_ranks(apart, *device)));
}

INSTANTIATE_TEST_SUITE_P(
    , Accumulation,
    testing::Values(
        AccumulationCase{"single", 1, {}, {{"linear_dw_add", 27}}},
        AccumulationCase{"one_microbatch", 1, {{"micro", "1"}}, {}},
        AccumulationCase{"tied", 1, {{"tied", "true"}}, {{"linear_dw_add", 24}}},
        AccumulationCase{"ddp", 2, {{"dp", "2"}}, {{"linear_dw_add", 27}}},
        AccumulationCase{"zero1", 2, {{"dp", "2"}, {"data_parallel", "zero1"}}, {{"linear_dw_add", 27}}},
        AccumulationCase{"zero2", 2, {{"dp", "2"}, {"data_parallel", "zero2"}}, {}},
        AccumulationCase{"zero3", 2, {{"dp", "2"}, {"data_parallel", "zero3"}}, {}},
        AccumulationCase{"zero3_whole", 2, {{"dp", "2"}, {"data_parallel", "whole"}}, {}},
        AccumulationCase{"recompute", 1, {{"recompute", "blocks"}}, {{"linear_dw_add", 27}}},
        AccumulationCase{"tensor_parallel", 2, {{"tp", "2"}}, {{"linear_dw_add", 27}, {"bias_grad_add", 12}}},
        AccumulationCase{"sequence_parallel",
                         2,
                         {{"tp", "2"}, {"sequence", "true"}},
                         {{"linear_dw_add", 27}, {"bias_grad_add", 12}}},
        AccumulationCase{"one_forward_one_backward", 2, {{"pp", "2"}}, {{"linear_dw_add", 27}}},
        AccumulationCase{"zero_bubble", 2, {{"pp", "2"}, {"schedule", "zb_h1"}}, {{"linear_dw_add", 27}}},
        AccumulationCase{"llama", 1, {{"model", "llama"}, {"heads", "2"}}, {{"linear_dw_add", 33}}},
        AccumulationCase{
            "moe", 2, {{"model", "moe"}, {"ep", "2"}}, {{"linear_dw_add", 21}, {"expert_linear_dw_add", 12}}},
        AccumulationCase{
            "many_microbatches", 2, {{"pp", "2"}, {"micro", "24"}, {"batch", "24"}}, {{"linear_dw_add", 207}}}),
    [](const auto& made) { return made.param.name; });

// An update writes the bf16 parameters too, except those of shards, which are cast where they are gathered.
TEST(FusedUpdates, LossesHaveTheSameBits) {
  const std::unique_ptr<Device> cpu = open_device("cpu");
  for (const char* optimizer : {"adamw", "sgd"}) {
    const std::string together = std::string(optimizer) + "_cast";
    for (const char* strategy : {"ddp", "zero3"}) {
      const Settings settings = {{"strategy", strategy}, {"dtype", "bf16"}, {"optimizer", optimizer}, {"steps", "3"}};
      const Job apart = parity_job(2, settings, "reference"), fused = parity_job(2, settings, "cpu");
      std::map<std::string, int> before = count_ops(apart), after = count_ops(fused);
      const int updates = before[optimizer], casts = std::string(strategy) == "ddp" ? updates : 0;
      EXPECT_GT(updates, 0);
      EXPECT_EQ(after[together], casts) << strategy;
      EXPECT_EQ(after[optimizer], updates - casts) << strategy;
      EXPECT_EQ(after["cast"], before["cast"] - casts) << strategy;
      EXPECT_EQ(losses_of(run_virtual_ranks(fused, *cpu)), losses_of(run_virtual_ranks(apart, *cpu)));
    }
  }
}

}  // namespace
}  // namespace prun::test
