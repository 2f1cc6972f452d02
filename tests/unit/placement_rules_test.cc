// The placement rules: each op on one axis of two ranks, with operand placements as input and result placements or an
// error as output.
#include <gtest/gtest.h>

#include "tests/unit/op_list.h"
#include "tests/unit/verify_builder.h"
#include "verify/values.h"

namespace prun::verify {
namespace {

struct Operand {
  Shape shape;
  AxisPlacement placement;
};

// Returns placements such as "S(1), I", or the error. The axis is "tp".
std::string outcome(const char* kind, std::vector<Operand> reads, std::vector<Shape> writes, Attrs attrs = {},
                    Combine combine = Combine::sum, const std::string& axis = "tp") {
  Builder b({{"tp", 2}});
  std::vector<TensorId> in, out;
  AxisPlacements axes;
  const auto tensor = [&](const Shape& shape) {
    const int id = b.buffer("b", element_count(shape));
    b.program.tensors.back().shape = shape;
    return id;
  };
  for (const Operand& read : reads) {
    in.push_back(tensor(read.shape));
    axes.push_back(read.placement);
  }
  for (const Shape& shape : writes) out.push_back(tensor(shape));
  b.op(op_def(kind), in, out).attrs = std::move(attrs);
  const Job job = b.job();
  const BodyView body(job, 0, kStepBody);
  Findings findings;
  OpContext context{body, {0, 0}, body.op({0, 0}), {}, {}, {}, {}, findings};
  for (const TensorId id : in) context.read_tensors.push_back(&body.program->tensors[id]);
  for (const TensorId id : out) context.write_tensors.push_back(&body.program->tensors[id]);
  context.reads.resize(in.size());
  context.writes.resize(out.size());
  AxisRule rule = find_elementwise_rule(op_def(kind));
  if (rule == nullptr) rule = find_axis_rule(op_def(kind));
  const AxisOutcome result = rule(AxisView{context, axis, axis == kPaddingAxis ? 1 : 2, combine}, axes);
  if (!result.problem.empty()) return result.problem;
  std::string text;
  for (const AxisPlacement& placement : result.writes) text += (text.empty() ? "" : ", ") + placement_text(placement);
  return text;
}

Attrs with(const std::string& name, Attr value) {
  Attrs attrs;
  attrs.set(name, std::move(value));
  return attrs;
}

const AxisPlacement kPartial = partial(Combine::sum);

TEST(PlacementRules, ColumnsAndRowsOfAWeight) {
  EXPECT_EQ(outcome("linear", {{{4, 8}, kInvariant}, {{8, 3}, shard(1)}, {{3}, shard(0)}}, {{4, 3}}), "S(1)");
  EXPECT_EQ(outcome("linear", {{{4, 8}, shard(1)}, {{8, 3}, shard(0)}}, {{4, 3}}), "P");
  EXPECT_EQ(outcome("linear", {{{4, 8}, shard(1)}, {{8, 3}, shard(0)}, {{3}, kInvariant}}, {{4, 3}}),
            "adds a bias to each rank's partial sum over tp");
  EXPECT_EQ(outcome("linear", {{{4, 8}, shard(1)}, {{8, 3}, kInvariant}}, {{4, 3}}),
            "combines operands that are spread differently over tp: each rank's part of dim 1; the same on every rank");
  EXPECT_EQ(outcome("linear", {{{4, 8}, kInvariant}, {{3, 8}, shard(0)}}, {{4, 3}}, with("transpose", 1)), "S(1)");
  EXPECT_EQ(outcome("linear_dx", {{{4, 3}, shard(1)}, {{8, 3}, shard(1)}}, {{4, 8}}), "P");
  EXPECT_EQ(outcome("linear_dx", {{{4, 3}, kInvariant}, {{8, 3}, shard(0)}}, {{4, 8}}), "S(1)");
  EXPECT_EQ(outcome("linear_dw", {{{4, 8}, shard(0)}, {{4, 3}, shard(0)}}, {{8, 3}, {3}}), "P, P");
  EXPECT_EQ(outcome("linear_dw", {{{4, 8}, shard(1)}, {{4, 3}, kInvariant}}, {{8, 3}, {3}}), "S(0), I");
  EXPECT_EQ(outcome("linear_dw", {{{4, 8}, kInvariant}, {{4, 3}, shard(1)}}, {{8, 3}, {3}}), "S(1), S(0)");
}

TEST(PlacementRules, GradientsThatAddToSums) {
  const std::string apart = "combines operands that are spread differently over tp: ";
  const auto dw = [](AxisPlacement x, AxisPlacement dy, AxisPlacement sum, AxisPlacement bias_sum) {
    return outcome("linear_dw_add", {{{4, 8}, x}, {{4, 3}, dy}, {{8, 3}, sum}, {{3}, bias_sum}}, {{8, 3}, {3}});
  };
  EXPECT_EQ(dw(shard(0), shard(0), kPartial, kPartial), "P, P");
  EXPECT_EQ(dw(shard(1), kInvariant, shard(0), kInvariant), "S(0), I");
  EXPECT_EQ(dw(kInvariant, shard(1), shard(1), shard(0)), "S(1), S(0)");
  EXPECT_EQ(dw(shard(0), shard(0), kZero, kPartial), "P, P");
  EXPECT_EQ(dw(shard(0), shard(0), kInvariant, kPartial), apart + "terms of a sum; the same on every rank");
  EXPECT_EQ(dw(shard(0), shard(0), kPartial, kInvariant), apart + "terms of a sum; the same on every rank");
  EXPECT_EQ(dw(kInvariant, shard(1), shard(0), shard(0)),
            apart + "each rank's part of dim 1; each rank's part of dim 0");
  EXPECT_EQ(outcome("linear_dw_add", {{{4, 8}, shard(0)}, {{4, 3}, shard(0)}, {{8, 3}, kPartial}}, {{8, 3}}), "P, P");
  EXPECT_EQ(outcome("bias_grad_add", {{{4, 3}, shard(0)}, {{3}, kPartial}}, {{3}}), "P");
  EXPECT_EQ(outcome("bias_grad_add", {{{4, 3}, kInvariant}, {{3}, kPartial}}, {{3}}),
            apart + "the same on every rank; terms of a sum");
  const auto experts = [](AxisPlacement sum) {
    return outcome("expert_linear_dw_add",
                   {{{2, 4, 8}, shard(1)}, {{2, 4, 3}, shard(1)}, {{2, 1}, shard(1)}, {{2, 8, 3}, sum}}, {{2, 8, 3}});
  };
  EXPECT_EQ(experts(kPartial), "P");
  EXPECT_EQ(experts(shard(0)), apart + "terms of a sum; each rank's part of dim 0");
}

TEST(PlacementRules, ProductsThatTakeInAGelu) {
  const std::string missing = "takes partial sums over tp for whole values: a reduction over tp is missing";
  EXPECT_EQ(outcome("linear_gelu", {{{4, 8}, kInvariant}, {{8, 3}, shard(1)}, {{3}, shard(0)}}, {{4, 3}, {4, 3}}),
            "S(1), S(1)");
  EXPECT_EQ(outcome("linear_gelu", {{{4, 8}, shard(1)}, {{8, 3}, shard(0)}}, {{4, 3}, {4, 3}}), missing);
  EXPECT_EQ(outcome("linear_dx_gelu", {{{4, 3}, kInvariant}, {{8, 3}, shard(0)}, {{4, 8}, shard(1)}}, {{4, 8}}),
            "S(1)");
  EXPECT_EQ(outcome("linear_dx_gelu", {{{4, 3}, shard(1)}, {{8, 3}, shard(1)}, {{4, 8}, kInvariant}}, {{4, 8}}), "P");
  EXPECT_EQ(outcome("linear_dx_gelu", {{{4, 3}, kInvariant}, {{8, 3}, kInvariant}, {{4, 8}, kPartial}}, {{4, 8}}),
            missing);
  EXPECT_EQ(
      outcome("linear_dx_gelu", {{{4, 3}, kInvariant}, {{8, 3}, shard(0)}, {{4, 8}, shard(0)}}, {{4, 8}}),
      "combines operands that are spread differently over tp: each rank's part of dim 0; each rank's part of dim 1");
}

TEST(PlacementRules, NormsThatTakeInAnAdd) {
  const std::string missing = "takes partial sums over tp for whole values: a reduction over tp is missing";
  const std::vector<Shape> made = {{4, 8}, {4, 8}, {4}, {4}};
  EXPECT_EQ(
      outcome("add_layernorm", {{{4, 8}, shard(0)}, {{4, 8}, shard(0)}, {{8}, kInvariant}, {{8}, kInvariant}}, made),
      "S(0)");
  EXPECT_EQ(
      outcome("add_layernorm", {{{4, 8}, kInvariant}, {{4, 8}, kPartial}, {{8}, kInvariant}, {{8}, kInvariant}}, made),
      "combines operands that are spread differently over tp: the same on every rank; terms of a sum");
  EXPECT_EQ(
      outcome("add_layernorm", {{{4, 8}, kPartial}, {{4, 8}, kPartial}, {{8}, kInvariant}, {{8}, kInvariant}}, made),
      missing);
  EXPECT_EQ(
      outcome("add_rmsnorm", {{{4, 8}, kInvariant}, {{4, 8}, kInvariant}, {{8}, shard(0)}}, {{4, 8}, {4, 8}, {4}}),
      "combines operands that are spread differently over tp: the same on every rank; each rank's part of dim 0");
  EXPECT_EQ(outcome("layernorm_grad_add",
                    {{{4, 8}, shard(0)},
                     {{4, 8}, shard(0)},
                     {{8}, kInvariant},
                     {{4}, shard(0)},
                     {{4}, shard(0)},
                     {{4, 8}, shard(0)}},
                    {{4, 8}, {8}, {8}}),
            "S(0), P, P");
  EXPECT_EQ(
      outcome("rmsnorm_grad_add",
              {{{4, 8}, kInvariant}, {{4, 8}, kPartial}, {{8}, kInvariant}, {{4}, kInvariant}, {{4, 8}, kInvariant}},
              {{4, 8}, {8}}),
      "combines operands that are spread differently over tp: terms of a sum; the same on every rank");
}

TEST(PlacementRules, LossesThatTakeInTheirGradient) {
  const std::vector<Shape> writes = {{}, {4}, {4, 8}};
  EXPECT_EQ(outcome("cross_entropy_and_grad", {{{4, 8}, shard(0)}, {{4}, shard(0)}}, writes), "P, S(0), S(0)");
  EXPECT_EQ(outcome("cross_entropy_and_grad", {{{4, 8}, shard(0)}, {{4}, kInvariant}}, writes),
            "combines operands that are spread differently over tp: each rank's part of dim 0; the same on every rank");
  EXPECT_EQ(outcome("cross_entropy_and_grad", {{{4, 8}, shard(1)}, {{4}, kInvariant}}, writes),
            "takes each rank's part of the vocabulary over tp for all of it");
  EXPECT_EQ(outcome("cross_entropy_and_grad", {{{4, 8}, kPartial}, {{4}, kInvariant}}, writes),
            "takes partial sums over tp for whole values: a reduction over tp is missing");
}

TEST(PlacementRules, WhatIsNotLinearNeedsWholeValues) {
  const std::string missing = "takes partial sums over tp for whole values: a reduction over tp is missing";
  EXPECT_EQ(outcome("gelu", {{{4, 8}, kPartial}}, {{4, 8}}), missing);
  EXPECT_EQ(outcome("gelu", {{{4, 8}, shard(1)}}, {{4, 8}}), "S(1)");
  EXPECT_EQ(outcome("gelu_dx", {{{4, 8}, kInvariant}, {{4, 8}, kPartial}}, {{4, 8}}), "P");
  EXPECT_EQ(outcome("layernorm", {{{4, 8}, kPartial}, {{8}, kInvariant}, {{8}, kInvariant}}, {{4, 8}, {4}, {4}}),
            missing);
  EXPECT_EQ(outcome("layernorm", {{{4, 8}, shard(1)}, {{8}, kInvariant}, {{8}, kInvariant}}, {{4, 8}, {4}, {4}}),
            "normalizes rows of which each rank has a part over tp");
  EXPECT_EQ(outcome("add", {{{4, 8}, kPartial}, {{4, 8}, kInvariant}}, {{4, 8}}),
            "combines operands that are spread differently over tp: terms of a sum; the same on every rank");
  EXPECT_EQ(outcome("add", {{{4, 8}, kPartial}, {{4, 8}, kZero}}, {{4, 8}}), "P");
  EXPECT_EQ(outcome("mul", {{{4, 8}, kPartial}, {{4, 8}, kPartial}}, {{4, 8}}), missing);
}

TEST(PlacementRules, SplitVocabulary) {
  Attrs split = with("axis", "tp");
  EXPECT_EQ(outcome("embedding", {{{4, 8}, kInvariant}, {{16, 3}, shard(0)}}, {{4, 8, 3}}, split), "P");
  EXPECT_EQ(outcome("cross_entropy_max", {{{4, 8}, shard(1)}}, {{4}}, split),
            "counts 0 columns of logits over tp, and there are 16");
  split.set("vocab", 16);
  EXPECT_EQ(outcome("cross_entropy_max", {{{4, 8}, shard(1)}}, {{4}}, split), "P");
  EXPECT_EQ(outcome("cross_entropy_max", {{{4, 8}, shard(1, cut_into({15}, 2))}}, {{4}}, split),
            "counts 16 columns of logits over tp, and there are 15");
  EXPECT_EQ(outcome("cross_entropy_max", {{{4, 8}, kInvariant}}, {{4}}, split),
            "takes logits for a rank's part of the vocabulary over tp, and they are the same on every rank");
  EXPECT_EQ(outcome("cross_entropy_sums", {{{4, 8}, shard(1)}, {{4}, kInvariant}, {{4}, partial(Combine::max)}},
                    {{2, 4}}, split),
            "takes partial sums over tp for whole values: a reduction over tp is missing");
  EXPECT_EQ(outcome("cross_entropy", {{{4, 8}, shard(1)}, {{4}, kInvariant}}, {{}, {4}}),
            "takes each rank's part of the vocabulary over tp for all of it");
}

// A padded tensor is a shard over an axis of one rank.
TEST(PlacementRules, PaddedVocabulary) {
  const AxisPlacement columns = shard(1, cut_into({13}, 1, 1, 8)), rows = shard(0, cut_into({13}, 1, 1, 8));
  const auto padded = [](const char* kind, std::vector<Operand> reads, std::vector<Shape> writes, Attrs attrs = {}) {
    return outcome(kind, std::move(reads), std::move(writes), std::move(attrs), Combine::sum, kPaddingAxis);
  };
  const Operand logits{{4, 16}, columns}, targets{{4}, kInvariant};
  EXPECT_EQ(padded("linear", {{{4, 8}, kInvariant}, {{16, 8}, rows}}, {{4, 16}}, with("transpose", 1)), "S(1)");
  EXPECT_EQ(padded("cross_entropy", {logits, targets}, {{}, {4}}, with("vocab", 13)), "I");
  const std::string wrong = "columns of logits over (padding), and there are 13";
  EXPECT_EQ(padded("cross_entropy", {logits, targets}, {{}, {4}}), "counts 0 " + wrong);
  EXPECT_EQ(padded("cross_entropy", {logits, targets}, {{}, {4}}, with("vocab", 14)), "counts 14 " + wrong);
  EXPECT_EQ(padded("cross_entropy_grad", {logits, targets, {{4}, kInvariant}}, {{4, 16}}, with("vocab", 13)), "S(1)");
  EXPECT_EQ(padded("cross_entropy_grad", {logits, targets, {{4}, kInvariant}}, {{4, 16}}), "counts 0 " + wrong);
  EXPECT_EQ(padded("cross_entropy_and_grad", {logits, targets}, {{}, {4}, {4, 16}}, with("vocab", 13)), "I, I, S(1)");
  EXPECT_EQ(padded("sample_token", {logits}, {}, with("vocab", 13)), "");
  EXPECT_EQ(padded("sample_token", {logits}, {}),
            "chooses a token from logits that are each rank's run of the 13 of dim 1 over (padding)");
  EXPECT_EQ(padded("mean", {logits}, {{}}), "takes each rank's part of the columns over (padding) for all of them");
  EXPECT_EQ(padded("layernorm", {logits, {{16}, kInvariant}, {{16}, kInvariant}}, {{4, 16}, {4}, {4}}),
            "normalizes rows of which each rank has a part over (padding)");
  const Operand tokens{{4, 8}, kInvariant};
  EXPECT_EQ(padded("embedding", {tokens, {{16, 3}, rows}}, {{4, 8, 3}}, with("valid", 13)), "P");
  EXPECT_EQ(padded("embedding", {tokens, {{16, 3}, rows}}, {{4, 8, 3}}, with("valid", 16)),
            "takes 16 rows of a table of 13 over (padding)");
  EXPECT_EQ(padded("embedding_grad", {tokens, {{4, 8, 3}, kInvariant}}, {{16, 3}}, with("valid", 13)), "S(0), I");
}

TEST(PlacementRules, NormsCountEveryElementOnce) {
  EXPECT_EQ(outcome("norm2", {{{8}, shard(kFlat)}, {{8}, shard(kFlat)}}, {{}}), "P");
  EXPECT_EQ(outcome("norm2", {{{8}, shard(kFlat)}, {{8}, kInvariant}}, {{}}),
            "counts what every rank has once for each rank of tp, beside parts");
  EXPECT_EQ(
      outcome("norm2", {{{8}, shard(kFlat)}, {{8}, kInvariant}}, {{}}, with("weights", std::vector<double>{1, 0.5})),
      "P");
  EXPECT_EQ(outcome("norm2", {{{8}, kVarying}}, {{}}), "P");
}

TEST(PlacementRules, PiecesOfTensors) {
  AxisPlacement cut = kPartial;
  cut.pieces = 1;
  EXPECT_EQ(outcome("join_pieces", {{{2, 4, 3}, cut}}, {{4, 6}}, with("dim", 1)), "P");
  EXPECT_EQ(outcome("join_pieces", {{{2, 4, 3}, cut}}, {{8, 3}}, with("dim", 0)),
            "combines operands that are spread differently over tp: terms of a sum");
  Attrs take = with("axis", "tp");
  take.set("dim", 1);
  EXPECT_EQ(outcome("take_piece", {{{4, 6}, kInvariant}}, {{4, 3}}, take), "S(1)");
}

// Expected texts are derived by hand from whole tensors on two ranks of tp.
TEST(PlacementRules, ViewsMoveTheDimThatAnAxisSplits) {
  const auto sizes = [](const char* name, std::vector<int64_t> list) { return with(name, std::move(list)); };
  const std::string of_dim = "mixes the parts of tp, of which each rank has each rank's part of dim ";
  EXPECT_EQ(outcome("reshape", {{{2, 4, 6}, shard(2)}}, {{2, 4, 3, 2}}, sizes("dims", {2, 4, 3, 2})), "S(2)");
  EXPECT_EQ(outcome("reshape", {{{2, 4, 3, 2}, shard(2)}}, {{2, 4, 6}}, sizes("dims", {2, 4, 6})), "S(2)");
  EXPECT_EQ(outcome("reshape", {{{2, 4, 6}, shard(2)}}, {{8, 6}}, sizes("dims", {8, 6})), "S(1)");
  EXPECT_EQ(outcome("reshape", {{{2, 4, 6}, shard(0)}}, {{8, 6}}, sizes("dims", {8, 6})), "S(0)");
  EXPECT_EQ(outcome("reshape", {{{2, 4, 6}, shard(1)}}, {{8, 6}}, sizes("dims", {8, 6})), of_dim + "1");
  EXPECT_EQ(outcome("reshape", {{{2, 4, 6}, kPartial}}, {{8, 6}}, sizes("dims", {8, 6})), "P");
  Attrs one_head = sizes("dims", {2, 4, 1, 2});
  one_head.set("axis", "tp"), one_head.set("from", 2), one_head.set("to", 2);
  EXPECT_EQ(outcome("reshape", {{{2, 4, 2}, shard(2)}}, {{2, 4, 1, 2}}, one_head), "S(2)");
  one_head.set("to", 1);
  EXPECT_EQ(outcome("reshape", {{{2, 4, 2}, shard(2)}}, {{2, 4, 1, 2}}, one_head), of_dim + "2");
  EXPECT_EQ(outcome("permute", {{{2, 4, 6}, shard(2)}}, {{6, 2, 4}}, sizes("order", {2, 0, 1})), "S(0)");
  EXPECT_EQ(outcome("slice", {{{2, 4, 6}, shard(2)}}, {{2, 1, 6}}, with("dim", 1)), "S(2)");
  EXPECT_EQ(outcome("slice", {{{2, 4, 6}, shard(1)}}, {{2, 1, 6}}, with("dim", 1)), of_dim + "1");
  Attrs pad = with("dim", 1);
  EXPECT_EQ(outcome("pad", {{{2, 4, 6}, kPartial}}, {{2, 5, 6}}, pad), "P");
  pad.set("value", 1.0);
  EXPECT_EQ(outcome("pad", {{{2, 4, 6}, kPartial}}, {{2, 5, 6}}, pad),
            "takes partial sums over tp for whole values: a reduction over tp is missing");
  EXPECT_EQ(outcome("concat", {{{2, 4}, shard(0)}, {{2, 3}, shard(0)}}, {{2, 7}}, with("dim", 1)), "S(0)");
  EXPECT_EQ(outcome("concat", {{{2, 4, 6}, shard(1)}, {{2, 3, 6}, shard(1)}}, {{2, 7, 6}}, with("dim", 1)),
            of_dim + "1");
  // Columns of two blocks, 8 and 6 elements of the whole, each split by itself.
  EXPECT_EQ(outcome("concat", {{{2, 4}, shard(1)}, {{2, 3}, shard(1)}}, {{2, 7}}, with("dim", 1)), "S(1)");
  const AxisPlacement blocks = shard(1, cut_into({8, 6}, 2));
  Attrs second = with("dim", 1);
  second.set("start", 4), second.set("size", 3);
  EXPECT_EQ(outcome("slice", {{{2, 7}, blocks}}, {{2, 3}}, second), "S(1)");
  second.set("start", 3);
  EXPECT_EQ(outcome("slice", {{{2, 7}, blocks}}, {{2, 3}}, second).substr(0, 21), "mixes the parts of tp");
  EXPECT_EQ(outcome("concat", {{{2, 4}, shard(0)}, {{2, 3}, kInvariant}}, {{2, 7}}, with("dim", 1)).substr(0, 8),
            "combines");
  EXPECT_EQ(outcome("expand", {{{2, 1, 6}, shard(2)}}, {{2, 5, 6}}, sizes("dims", {2, 5, 6})), "S(2)");
  EXPECT_EQ(outcome("expand", {{{2, 1, 6}, shard(1)}}, {{2, 5, 6}}, sizes("dims", {2, 5, 6})), of_dim + "1");
  Attrs samples = sizes("dims", {1, 5, 6});
  samples.set("rows_axis", "tp");
  EXPECT_EQ(outcome("expand_grad", {{{2, 5, 6}, shard(0)}}, {{1, 5, 6}}, samples), "P");
  EXPECT_EQ(outcome("expand_grad", {{{2, 5, 6}, shard(1)}}, {{2, 1, 6}}, sizes("dims", {2, 1, 6})), "P");
  EXPECT_EQ(outcome("gather_rows", {{{2, 9, 6}, shard(0)}, {{2, 3}, shard(0)}}, {{2, 3, 6}}), "S(0)");
  EXPECT_EQ(outcome("gather_rows", {{{2, 9, 6}, shard(2)}, {{2, 3}, kInvariant}}, {{2, 3, 6}}), "S(2)");
  EXPECT_EQ(outcome("gather_rows", {{{9, 6}, kInvariant}, {{3}, shard(0)}}, {{3, 6}}), "S(0)");
  EXPECT_EQ(outcome("gather_rows", {{{2, 9, 6}, shard(1)}, {{2, 3}, kInvariant}}, {{2, 3, 6}}).substr(0, 8),
            "combines");
  EXPECT_EQ(outcome("gather_rows_grad", {{{3}, shard(0)}, {{3, 6}, shard(0)}}, {{9, 6}}), "P");
  EXPECT_EQ(outcome("gather_rows_grad", {{{2, 3}, shard(0)}, {{2, 3, 6}, shard(0)}}, {{2, 9, 6}}), "S(0)");
}

// Ring attention: at hop h, keys come from the rank h before, and the hops must run in order.
TEST(PlacementRules, OperandsThatAreViews) {
  const auto viewed = [](const std::string& views) {
    return make_attrs({{"program", std::string("mul x0 x1")}, {"views", views}});
  };
  const Operand x{{2, 3, 8}, shard(2)}, turned{{2, 8, 3}, shard(1)}, kept{{2, 3, 8}, kInvariant};
  EXPECT_EQ(outcome("pointwise", {x, turned}, {{2, 3, 8}}, viewed("x1 0 2 1")), "S(2)");
  EXPECT_EQ(
      outcome("pointwise", {x, turned}, {{2, 3, 8}}, viewed("x1 0 1 2")),
      "combines operands that are spread differently over tp: each rank's part of dim 2; each rank's part of dim 1");
  EXPECT_EQ(outcome("pointwise", {x, {{2, 8}, shard(1)}}, {{2, 3, 8}}, viewed("x1 0 2")), "S(2)");
  EXPECT_EQ(outcome("pointwise", {kept, {{4, 3, 8}, shard(1)}}, {{2, 3, 8}}, viewed("x1 0:2+2 1 2")),
            "combines operands that are spread differently over tp: the same on every rank; each rank's part of dim 1");
  // Gate and up of a fused layer: a rank's half of each block.
  const AxisPlacement blocks = shard(1, cut_into({8, 8}, 2));
  const Operand fused{{3, 8}, blocks};
  EXPECT_EQ(outcome("pointwise", {fused, fused}, {{3, 4}}, viewed("x0 0 1:0+4; x1 0 1:4+4")), "S(1)");
  EXPECT_EQ(outcome("pointwise", {fused, fused}, {{3, 4}}, viewed("x0 0 1:0+4; x1 0 1:3+4")),
            "combines operands that are spread differently over tp: each rank's part of each of the 2 blocks (8, 8) of "
            "dim 1; each rank's part of each of the 2 blocks (8, 8) of dim 1");
  EXPECT_EQ(outcome("pointwise", {fused, kept}, {{3, 4}}, viewed("x0 0 -:2; x1 -:0 0 1:0+4")),
            "combines operands that are spread differently over tp: each rank's part of each of the 2 blocks (8, 8) of "
            "dim 1; the same on every rank");
}

TEST(PlacementRules, MatmulsOfViews) {
  const auto viewed = [](const char* views) { return make_attrs({{"views", std::string(views)}}); };
  const Operand heads{{2, 5, 4, 8}, shard(2)}, others{{2, 8, 4, 3}, shard(2)}, whole{{2, 8, 4, 3}, kInvariant};
  const char* both = "x0 0 2 1 3; x1 0 2 1 3";
  EXPECT_EQ(outcome("matmul", {heads, others}, {{2, 4, 5, 3}}, viewed(both)), "S(1)");
  EXPECT_EQ(outcome("matmul", {heads, others}, {{2, 5, 4, 3}}, viewed("x0 0 2 1 3; x1 0 2 1 3; x2 0 2 1 3")), "S(2)");
  EXPECT_EQ(outcome("matmul", {heads, whole}, {{2, 4, 5, 3}}, viewed(both)),
            "combines operands that are spread differently over tp: each rank's part of dim 2; the same on every rank");
  EXPECT_EQ(outcome("matmul", {heads, {{2, 8, 3}, kInvariant}}, {{2, 4, 5, 3}}, viewed("x0 0 2 1 3; x1 0 2 3")),
            "S(1)");
  EXPECT_EQ(
      outcome("matmul", {heads, {{4, 2, 8, 3}, shard(0)}}, {{2, 4, 5, 3}}, viewed("x0 0 2 1 3; x1 0 1 2 3")),
      "combines operands that are spread differently over tp: each rank's part of dim 2; each rank's part of dim 0");
  EXPECT_EQ(outcome("matmul", {{{2, 5, 4, 8}, shard(3)}, {{2, 8, 4, 3}, shard(1)}}, {{2, 4, 5, 3}}, viewed(both)), "P");
}

// Gradients of gate and up, and of heads of q and k, in one tensor: the blocks of the parts, the rest between them.
TEST(PlacementRules, PartsOfATensor) {
  const auto written = [](const char* views, Shape whole, bool continues) {
    Attrs attrs = make_attrs({{"program", std::string("mul x0 x1")},
                              {"views", std::string(views)},
                              {"shape", Shape{3, 4}},
                              {"whole", std::move(whole)}});
    if (continues) attrs.set("continues", 1);
    return attrs;
  };
  const Shape all = {3, 8};
  const Operand x{{3, 4}, shard(1)}, same{{3, 4}, kInvariant}, rows{{3, 4}, shard(0)};
  const Operand begun{all, shard(1, cut_into({8, 8}, 2))};
  EXPECT_EQ(outcome("pointwise", {x, x}, {all}, written("x2 0 1:4+4", all, false)), "S(1)");
  EXPECT_EQ(outcome("pointwise", {x, x, begun}, {all}, written("x2 0 1:0+4", all, true)), "S(1)");
  EXPECT_EQ(outcome("pointwise", {same, same, {all, kInvariant}}, {all}, written("x2 0 1:0+4", all, true)), "I");
  EXPECT_EQ(outcome("pointwise", {rows, rows, {all, shard(0)}}, {all}, written("x2 0 1:0+4", all, true)), "S(0)");
  EXPECT_EQ(outcome("pointwise", {x, x, {all, kInvariant}}, {all}, written("x2 0 1:0+4", all, true)).substr(0, 8),
            "combines");
  EXPECT_EQ(outcome("pointwise", {x, x, begun}, {all}, written("x2 0 1:2+4", all, true)).substr(0, 8), "combines");
  EXPECT_EQ(outcome("pointwise", {rows, rows, {all, kInvariant}}, {all}, written("x2 0 1:0+4", all, true)).substr(0, 8),
            "combines");
  const Operand a{{2, 4, 5, 6}, shard(1)}, b{{2, 4, 6, 8}, shard(1)};
  Attrs heads = make_attrs({{"views", std::string("x2 0 2 1:4+4 3")}, {"whole", Shape{2, 5, 12, 8}}});
  EXPECT_EQ(outcome("matmul", {a, b}, {{2, 5, 12, 8}}, heads), "S(2)");
  // Heads that are merged into rows.
  EXPECT_EQ(outcome("reshape", {{{2, 5, 12, 8}, shard(2, cut_into({8, 8, 8}, 2))}}, {{2, 5, 96}}), "S(2)");
}

TEST(PlacementRules, HopsOfARing) {
  const Shape q = {2, 4, 6}, kv = {2, 4, 4}, out = {2, 4, 2}, lse = {2, 1, 4};
  const auto turned = [](int dim, int turn) {
    AxisPlacement placement = shard(dim);
    placement.turn = static_cast<int16_t>(turn);
    return placement;
  };
  Attrs hop = with("tokens_axis", "tp");
  hop.set("hop", 0);
  EXPECT_EQ(outcome("attention_block", {{q, shard(1)}, {kv, shard(1)}}, {out, lse}, hop), "S(1), S(2)");
  EXPECT_EQ(outcome("attention_block", {{q, shard(1)}, {kv, turned(1, 1)}}, {out, lse}, hop),
            "takes keys from 1 ranks before along tp for those of hop 0");
  hop.set("hop", 1);
  EXPECT_EQ(outcome("attention_block", {{q, shard(1)}, {kv, turned(1, 1)}, {out, turned(1, 1)}, {lse, turned(2, 1)}},
                    {out, lse}, hop),
            "S(1), S(2)");
  EXPECT_EQ(outcome("attention_block", {{q, shard(1)}, {kv, turned(1, 1)}, {out, shard(1)}, {lse, shard(2)}},
                    {out, lse}, hop),
            "is hop 1 along tp, and the hops before it are not all done");
  EXPECT_EQ(outcome("attention", {{q, shard(1)}}, {out, lse}),
            "attends to the rank's own tokens only, of those split over tp");
}

// Experts are sharded over an axis that also splits the batch: their gradients sum over all samples and need an
// average.
TEST(PlacementRules, Experts) {
  EXPECT_EQ(outcome("route", {{{2, 4, 8}, shard(0)}}, {{8, 2}, {8, 2}, {8}, {8, 1}}), "S(0), S(0), P, S(1)");
  const auto route_grad = [](AxisPlacement dweights, AxisPlacement counts) {
    return outcome("route_grad",
                   {{{2, 4, 8}, shard(0)}, {{8, 2}, shard(0)}, {{8, 2}, dweights}, {{8, 2}, shard(0)}, {{8}, counts}},
                   {{2, 4, 8}}, with("tokens", 64));
  };
  const std::string missing = "takes partial sums over tp for whole values: a reduction over tp is missing";
  EXPECT_EQ(route_grad(shard(0), kInvariant), "S(0)");
  EXPECT_EQ(route_grad(shard(0), kPartial), missing);
  EXPECT_EQ(route_grad(kPartial, kInvariant), missing);  // each rank would add the losses of the router
  EXPECT_EQ(outcome("dispatch", {{{2, 4, 3}, shard(0)}, {{8, 2}, shard(0)}}, {{8, 4, 3}}), "S(1)");
  EXPECT_EQ(outcome("pack_rows", {{{8, 4, 3}, shard(0)}, {{8, 2}, shard(0)}}, {{2, 8, 2, 3}}), "S(1)");
  EXPECT_EQ(outcome("pack_rows", {{{8, 4, 3}, shard(1)}, {{8, 2}, shard(0)}}, {{2, 8, 2, 3}}).substr(0, 8), "combines");
  EXPECT_EQ(outcome("unpack_rows", {{{1, 8, 4, 3}, shard(2)}, {{8, 1}, shard(1)}}, {{8, 4, 3}}), "S(1)");
  EXPECT_EQ(outcome("expert_activation", {{{8, 4, 3}, shard(2)}, {{8, 1}, kInvariant}}, {{8, 4, 3}}), "S(2)");
  EXPECT_EQ(outcome("expert_activation", {{{8, 4, 3}, kPartial}, {{8, 1}, kInvariant}}, {{8, 4, 3}}), missing);
  EXPECT_EQ(outcome("expert_activation", {{{8, 4, 3}, kPartial}, {{8, 4, 3}, kPartial}, {{8, 1}, kInvariant}},
                    {{8, 4, 3}}, make_attrs({{"sum", 1}})),
            outcome("add", {{{8, 4, 3}, kPartial}, {{8, 4, 3}, kPartial}}, {{8, 4, 3}}));
  EXPECT_EQ(outcome("expert_linear", {{{8, 4, 3}, shard(0)}, {{8, 3, 5}, shard(0)}, {{8, 1}, shard(0)}}, {{8, 4, 5}}),
            "S(0)");
  EXPECT_EQ(
      outcome("expert_linear", {{{8, 4, 3}, shard(1)}, {{8, 3, 5}, shard(0)}, {{8, 1}, shard(1)}}, {{8, 4, 5}}),
      "combines operands that are spread differently over tp: each rank's part of dim 1; each rank's part of dim 0; "
      "each rank's part of dim 1");
  const std::string other_rows =
      "combines operands that are spread differently over tp: each rank's part of dim 0; "
      "each rank's part of dim 0; ";
  EXPECT_EQ(outcome("expert_linear", {{{8, 4, 3}, shard(0)}, {{8, 3, 5}, shard(0)}, {{8, 1}, kInvariant}}, {{8, 4, 5}}),
            other_rows + "the same on every rank");
  AxisPlacement added = shard(0);
  added.combine = Combine::sum;
  EXPECT_EQ(
      outcome("sgd", {{{8}, added}, {{8}, shard(0)}}, {{8}}),
      "updates parameters with gradients that add up the samples of all ranks of tp, where an average is due: a factor "
      "1/2 is missing");
  EXPECT_EQ(outcome("scale", {{{8}, added}}, {{8}}, with("factor", 0.5)), "S(0)");
  // Each expert is split like an MLP.
  const auto of = [](const char* op, AxisPlacement a, AxisPlacement b) {
    return outcome(op, {{{8, 4, 6}, a}, {{8, 6, 6}, b}, {{8, 1}, kInvariant}}, {{8, 4, 6}});
  };
  EXPECT_EQ(of("expert_linear", kInvariant, shard(2)), "S(2)");
  EXPECT_EQ(of("expert_linear", shard(2), shard(1)), "P");
  EXPECT_EQ(of("expert_linear_dx", kInvariant, shard(1)), "S(2)");
  EXPECT_EQ(of("expert_linear_dx", shard(2), shard(2)), "P");
  EXPECT_EQ(of("expert_linear", shard(2), kInvariant).substr(0, 8), "combines");
  // Ranks with the same tokens have some of the experts: slots S(2) are those of a rank's experts.
  Attrs own;
  own.set("axis", std::string("tp"));
  EXPECT_EQ(outcome("take_slots", {{{8, 2}, kInvariant}}, {{8, 2}}, own), "S(2)");
  EXPECT_EQ(outcome("take_slots", {{{8, 2}, shard(0)}}, {{8, 2}}, own).substr(0, 8), "combines");
  EXPECT_EQ(outcome("dispatch", {{{2, 4, 3}, kInvariant}, {{8, 2}, shard(2)}}, {{4, 8, 3}}), "S(0)");
  EXPECT_EQ(outcome("dispatch_grad", {{{8, 2}, shard(2)}, {{4, 8, 3}, shard(0)}}, {{2, 4, 3}}), "P");
  const Operand slots{{8, 2}, shard(2)}, weights{{8, 2}, kInvariant}, y{{4, 8, 3}, shard(0)};
  EXPECT_EQ(outcome("combine", {y, slots, weights}, {{2, 4, 3}}), "P");
  EXPECT_EQ(outcome("combine_grad", {y, slots, weights, {{2, 4, 3}, kInvariant}}, {{4, 8, 3}, {8, 2}}), "S(0), P");
  EXPECT_EQ(outcome("combine", {y, {{8, 2}, kInvariant}, weights}, {{2, 4, 3}}).substr(0, 8), "combines");
  EXPECT_EQ(of("expert_linear", kInvariant, shard(1)).substr(0, 8), "combines");
}

// Which columns a rank holds. Blocks that were each split separately are not contiguous, and heads are complete only in
// blocks of q, k and v.
TEST(PlacementRules, CutsOfColumns) {
  const Cut* const qkv = cut_into({8, 8, 8}, 2);
  Attrs two = with("heads", 2);
  EXPECT_EQ(outcome("attention", {{{2, 4, 12}, shard(2, qkv)}}, {{2, 4, 4}, {2, 2, 4}}, two),
            "counts 2 heads on each of the 2 ranks of tp, and there are 0 in all");
  two.set("of_heads", 4);
  EXPECT_EQ(outcome("attention", {{{2, 4, 12}, shard(2, qkv)}}, {{2, 4, 4}, {2, 2, 4}}, two), "S(2), S(1)");
  EXPECT_EQ(outcome("attention", {{{2, 4, 12}, shard(2)}}, {{2, 4, 4}, {2, 2, 4}}, two),
            "takes 12 columns for whole heads of q, k and v, and over tp they are each rank's part of dim 2: the layer "
            "that makes them needs blocks = { 8, 8, 8 }, to cut each by itself");
  EXPECT_EQ(outcome("copy_kv", {{{2, 4, 12}, shard(2, qkv)}}, {{2, 4, 8}}), "S(2)");
  EXPECT_EQ(
      outcome("copy_kv", {{{2, 4, 12}, shard(2, cut_into({4, 4, 8, 8}, 2))}}, {{2, 4, 8}}),
      "takes 12 columns for whole heads of q, k and v, and over tp they are each rank's part of each of the 4 "
      "blocks (4, 4, 8, 8) of dim 2: the layer that makes them needs blocks = { 8, 8, 8 }, to cut each by itself");
  Attrs turn = with("size", 2);
  turn.set("heads", 4);
  turn.set("of_heads", 8);
  EXPECT_EQ(outcome("rotary", {{{2, 4, 12}, shard(2, qkv)}}, {{2, 4, 12}}, turn), "S(2)");
  EXPECT_EQ(outcome("rotary", {{{2, 4, 12}, shard(2, cut_into({12, 12}, 2))}}, {{2, 4, 12}}, turn),
            "turns the first 8 columns for whole heads of 2, and over tp they are each rank's part of each of the 2 "
            "blocks (12, 12) of dim 2: the layer that makes them needs blocks that are whole heads on each rank");
  const Cut* const kv = cut_into({8, 8}, 2);
  two.set("context", 9);
  const std::vector<Shape> kept = {{2, 4, 4}, {2, 9, 8}};
  EXPECT_EQ(
      outcome("cached_attention", {{{2, 4, 12}, shard(2, qkv)}, {{2, 4}, kInvariant}, {{2, 9, 8}, kZero}}, kept, two),
      "S(2), S(2)");
  EXPECT_EQ(outcome("cached_attention", {{{2, 4, 12}, shard(2, qkv)}, {{2, 4}, kInvariant}, {{2, 9, 8}, shard(2, kv)}},
                    kept, two),
            "S(2), S(2)");
  EXPECT_EQ(outcome("cached_attention", {{{2, 4, 12}, shard(2, qkv)}, {{2, 4}, kInvariant}, {{2, 9, 8}, kInvariant}},
                    kept, two),
            "combines operands that are spread differently over tp: each rank's part of each of the 3 blocks (8, 8, 8) "
            "of dim 2; the same on every rank; the same on every rank");
  EXPECT_EQ(
      outcome("cached_attention", {{{2, 4, 12}, shard(1)}, {{2, 4}, kInvariant}, {{2, 9, 8}, kInvariant}}, kept, two),
      "attends to the rank's own tokens only, of those split over tp");
  EXPECT_EQ(outcome("sample_token", {{{1, 1, 8}, shard(2)}}, {}),
            "chooses a token from logits that are each rank's part of dim 2 over tp");
  EXPECT_EQ(outcome("linear", {{{4, 12}, shard(1, qkv)}, {{12, 3}, shard(0)}}, {{4, 3}}),
            "multiplies what is cut differently over tp: each rank's part of each of the 3 blocks (8, 8, 8) of dim 1, "
            "with each rank's part of dim 0 of the weight");
  EXPECT_EQ(outcome("mul", {{{4, 12}, shard(1, qkv)}, {{4, 12}, shard(1)}}, {{4, 12}}),
            "combines operands that are spread differently over tp: each rank's part of each of the 3 blocks (8, 8, 8) "
            "of dim 1; each rank's part of dim 1");
  EXPECT_EQ(outcome("sgd", {{{9}, shard(0)}, {{9}, shard(0, cut_into({17}, 2))}}, {{9}}), "S(0)");
  EXPECT_EQ(outcome("join_qkv", {{{2, 4, 4}, shard(2)}, {{2, 4, 8}, shard(2, cut_into({8, 8}, 2))}}, {{2, 4, 12}}),
            "S(2)");
}

// Ops whose values depend on an element's global position state which part they compute.
TEST(PlacementRules, PlacesOfElements) {
  EXPECT_EQ(outcome("dropout", {{{4, 8}, shard(0)}}, {{4, 8}}),
            "draws its mask for all samples over tp, which are each rank's part of dim 0");
  EXPECT_EQ(outcome("dropout", {{{4, 8}, shard(0)}}, {{4, 8}}, with("rows_axis", "dp,tp")), "S(0)");
  EXPECT_EQ(outcome("dropout", {{{4, 8}, kInvariant}}, {{4, 8}}, with("rows_axis", "tp")),
            "draws its mask for a rank's samples over tp, which are the same on every rank");
  Attrs columns = with("split_axis", "tp");
  columns.set("width", 16);
  EXPECT_EQ(outcome("dropout", {{{4, 8}, shard(1)}}, {{4, 8}}, columns), "S(1)");
  EXPECT_EQ(outcome("dropout", {{{4, 8}, shard(1)}}, {{4, 8}}),
            "draws its mask for all columns over tp, which are each rank's part of dim 1");
  EXPECT_EQ(outcome("dropout", {{{4, 8}, shard(1, cut_into({8, 8}, 2))}}, {{4, 8}}, columns),
            "draws its mask for a run of 16 columns over tp, and they are each rank's part of each of the 2 blocks (8, "
            "8) of dim 1");
  Attrs tokens = with("tokens_axis", "tp");
  EXPECT_EQ(outcome("positions", {{{2, 4, 8}, shard(1)}, {{8, 8}, kInvariant}}, {{2, 4, 8}}),
            "counts the rank's own tokens, of those split over tp, from 0");
  EXPECT_EQ(outcome("positions", {{{2, 4, 8}, kInvariant}, {{8, 8}, kInvariant}}, {{2, 4, 8}}, tokens),
            "counts tokens as if they were split over tp");
  EXPECT_EQ(
      outcome("positions", {{{2, 4, 8}, shard(1, cut_into({8}, 2, 2))}, {{8, 8}, kInvariant}}, {{2, 4, 8}}, tokens),
      "counts 1 chunks of tokens on each rank of tp, which has 2");
  Attrs runs = with("tokens_axis", "cp,tp");
  runs.set("chunks", 2);
  const std::vector<Operand> moved = {{{2, 4, 8}, shard(1)}, {{8, 8}, kInvariant}};
  EXPECT_EQ(outcome("positions", moved, {{2, 4, 8}}, runs), "S(1)");
  runs.set("tokens_axis", "tp,cp");
  EXPECT_EQ(outcome("positions", moved, {{2, 4, 8}}, runs),
            "counts 2 chunks of tokens on each rank of tp, which has 1");
}

TEST(PlacementRules, ConvolutionsAndPools) {
  const std::string missing = "takes partial sums over tp for whole values: a reduction over tp is missing";
  const auto conv = [](AxisPlacement x, AxisPlacement w, AxisPlacement b) {
    return outcome("conv", {{{4, 6, 8, 8}, x}, {{5, 6, 3, 3}, w}, {{5}, b}}, {{4, 5, 6, 6}});
  };
  EXPECT_EQ(conv(shard(0), kInvariant, kInvariant), "S(0)");
  EXPECT_EQ(conv(kInvariant, kInvariant, kInvariant), "I");
  EXPECT_EQ(conv(shard(1), kInvariant, kInvariant), "slides over dim 1 of which each rank has a part over tp");
  EXPECT_EQ(conv(kPartial, kInvariant, kInvariant), "adds a bias to each rank's partial sum over tp");
  EXPECT_EQ(conv(kInvariant, kInvariant, kPartial), missing);
  EXPECT_EQ(conv(kInvariant, shard(0), kInvariant),
            "combines operands that are spread differently over tp: the same on every rank; each rank's part of dim 0; "
            "the same on every rank");
  const auto transpose = [](AxisPlacement x, AxisPlacement w) {
    return outcome("conv_transpose", {{{4, 5, 6, 6}, x}, {{5, 6, 3, 3}, w}}, {{4, 6, 8, 8}});
  };
  EXPECT_EQ(transpose(kPartial, kInvariant), "P");
  EXPECT_EQ(transpose(kInvariant, kPartial), "P");
  EXPECT_EQ(transpose(kPartial, kPartial),
            "combines operands that are spread differently over tp: terms of a sum; terms of a sum");
  EXPECT_EQ(transpose(shard(2), kInvariant), "slides over dim 2 of which each rank has a part over tp");
  const auto dw = [](AxisPlacement x, AxisPlacement dy) {
    return outcome("conv_dw", {{{4, 6, 8, 8}, x}, {{4, 5, 6, 6}, dy}}, {{5, 6, 3, 3}, {5}});
  };
  EXPECT_EQ(dw(shard(0), shard(0)), "P, P");
  EXPECT_EQ(dw(kInvariant, kPartial), "P, P");
  EXPECT_EQ(dw(kPartial, kInvariant), "P, I");
  EXPECT_EQ(dw(kInvariant, kInvariant), "I, I");
  EXPECT_EQ(dw(shard(0), kInvariant),
            "combines operands that are spread differently over tp: each rank's part of dim 0; the same on every rank");
  EXPECT_EQ(dw(shard(0), shard(1)), "slides over dim 1 of which each rank has a part over tp");
  const Attrs largest = with("op", "max"), mean = with("op", "mean");
  const auto pool = [](AxisPlacement x, const Attrs& attrs) {
    return outcome("pooling", {{{4, 6, 8, 8}, x}}, {{4, 6, 4, 4}}, attrs);
  };
  EXPECT_EQ(pool(shard(0), largest), "S(0)");
  EXPECT_EQ(pool(shard(1), largest), "S(1)");
  EXPECT_EQ(pool(kPartial, mean), "P");
  EXPECT_EQ(pool(kPartial, largest), missing);
  EXPECT_EQ(pool(shard(3), mean), "slides over dim 3 of which each rank has a part over tp");
  const auto grad = [&](AxisPlacement dy, AxisPlacement x) {
    return outcome("pooling_grad", {{{4, 6, 4, 4}, dy}, {{4, 6, 8, 8}, x}}, {{4, 6, 8, 8}}, largest);
  };
  EXPECT_EQ(grad(shard(0), shard(0)), "S(0)");
  EXPECT_EQ(grad(kPartial, kInvariant), "P");
  EXPECT_EQ(grad(kInvariant, kPartial), missing);
  EXPECT_EQ(grad(shard(0), kInvariant),
            "combines operands that are spread differently over tp: each rank's part of dim 0; the same on every rank");
}

TEST(PlacementRules, EveryOpHasOne) {
  for (const OpDef* op : all_ops()) EXPECT_TRUE(has_placement_rule(*op)) << op->name;
}

}  // namespace
}  // namespace prun::verify
