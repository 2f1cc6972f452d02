// Shape inference: output types, and each message that a user can cause.
#include <gtest/gtest.h>

#include "ir/op_def.h"
#include "ir/ops.h"
#include "tests/unit/expected_text.h"

namespace prun {
namespace {

using Types = std::vector<TensorType>;

TensorType f32(Shape shape) { return {Dtype::f32, std::move(shape)}; }
TensorType f64(Shape shape) { return {Dtype::f64, std::move(shape)}; }
TensorType bf16(Shape shape) { return {Dtype::bf16, std::move(shape)}; }
TensorType i32(Shape shape) { return {Dtype::i32, std::move(shape)}; }

Attrs attrs(std::initializer_list<std::pair<const char*, Attr>> pairs) {
  Attrs out;
  for (const auto& [name, value] : pairs) out.set(name, value);
  return out;
}

// Returns the output types, for example "f32[2, 3] f32[]".
std::string types(const char* op, const Types& inputs, const Attrs& a = {}) {
  std::string out;
  for (const TensorType& type : op_def(op).infer(inputs, a))
    out += (out.empty() ? "" : " ") + std::string(dtype_name(type.dtype)) + shape_text(type.shape);
  return out;
}

std::string message(const char* op, const Types& inputs, const Attrs& a = {}) {
  try {
    op_def(op).infer(inputs, a);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::plan);
    EXPECT_FALSE(error.site().has_value());
    return error.message();
  }
  return "accepted";
}

TEST(Infer, Types) {
  EXPECT_EQ(types("linear", {f32({2, 3, 5}), f32({5, 7}), f32({7})}), "f32[2, 3, 7]");
  EXPECT_EQ(types("linear", {bf16({5}), bf16({7, 5})}, attrs({{"transpose", 1}})), "bf16[7]");
  EXPECT_EQ(types("layernorm", {bf16({2, 3, 5}), bf16({5}), bf16({5})}), "bf16[2, 3, 5] f32[6] f32[6]");
  EXPECT_EQ(types("attention", {f64({2, 3, 24})}, attrs({{"heads", 4}})), "f64[2, 3, 8] f64[2, 4, 3]");
  EXPECT_EQ(types("attention", {f32({2, 3, 24})}, attrs({{"heads", 4}, {"kv_heads", 1}})),
            "f32[2, 3, 16] f32[2, 4, 3]");
  EXPECT_EQ(types("rmsnorm", {bf16({2, 3, 5}), bf16({5})}), "bf16[2, 3, 5] f32[6]");
  EXPECT_EQ(types("silu_mul", {bf16({2, 3}), bf16({2, 3})}), "bf16[2, 3]");
  EXPECT_EQ(types("rotary", {bf16({2, 3, 12})}, attrs({{"heads", 2}, {"size", 4}})), "bf16[2, 3, 12]");
  EXPECT_EQ(types("dropout", {f32({2, 3})}, attrs({{"p", 0.5}})), "f32[2, 3]");
  EXPECT_EQ(types("embedding", {i32({2, 3}), bf16({9, 5}), bf16({4, 5})}), "bf16[2, 3, 5]");
  EXPECT_EQ(types("cross_entropy", {bf16({2, 3, 9}), i32({2, 3})}), "f32[] f32[6]");
  EXPECT_EQ(types("cross_entropy_max", {bf16({2, 3, 9})}), "f32[6]");
  EXPECT_EQ(types("cross_entropy_sums", {bf16({2, 3, 9}), i32({2, 3}), f32({6})}), "f32[2, 6]");
  EXPECT_EQ(types("cross_entropy_finish", {f32({2, 6}), f32({6}), bf16({2, 3, 9}), i32({2, 3})}), "f32[] f32[6]");
  EXPECT_EQ(types("bias", {bf16({2, 3, 5}), bf16({5})}), "bf16[2, 3, 5]");
  EXPECT_EQ(types("positions", {f64({2, 3, 5}), f64({4, 5})}), "f64[2, 3, 5]");
  Attrs pieces = attrs({{"pieces", 4}, {"dim", 1}});
  EXPECT_EQ(types("join_pieces", {bf16({4, 2, 3, 5})}, pieces), "bf16[2, 12, 5]");
  EXPECT_EQ(types("cut_pieces", {i32({2, 12, 5})}, pieces), "i32[4, 2, 3, 5]");
  EXPECT_EQ(types("take_piece", {f32({2, 12, 5})}, pieces), "f32[2, 3, 5]");
  EXPECT_EQ(types("take_slots", {i32({6, 2})}, attrs({{"pieces", 2}, {"run", 3}})), "i32[6, 2]");
  EXPECT_EQ(types("mse", {f64({2, 3}), f64({2, 3})}), "f64[]");
  EXPECT_EQ(types("route", {bf16({2, 3, 5})}, attrs({{"k", 2}})), "f32[6, 2] i32[6, 2] f32[5] i32[5, 1]");
  EXPECT_EQ(types("dispatch", {bf16({2, 3, 5}), i32({6, 2})}, attrs({{"experts", 4}})), "bf16[4, 6, 5]");
  EXPECT_EQ(types("expert_linear", {bf16({4, 6, 5}), bf16({4, 5, 7}), i32({4, 2})}), "bf16[4, 6, 7]");
  EXPECT_EQ(types("combine", {bf16({4, 6, 5}), i32({6, 2}), f32({6, 2})}, attrs({{"batch", 2}, {"tokens", 3}})),
            "bf16[2, 3, 5]");
  EXPECT_EQ(types("mean", {f32({})}), "f32[]");
  EXPECT_EQ(types("cast", {f32({2})}, attrs({{"dtype", "bf16"}})), "bf16[2]");
  EXPECT_EQ(types("cast", {f32({2})}, attrs({{"dtype", "i32"}})), "i32[2]");
  EXPECT_EQ(types("cast", {i32({2})}, attrs({{"dtype", "f32"}})), "f32[2]");
}

TEST(Infer, LinearSaysByWhat) {
  EXPECT_EQ(message("linear", {f32({8, 250}), f32({256, 10})}), expected());
  EXPECT_EQ(message("linear", {f32({8, 250}), f32({10, 256})}, attrs({{"transpose", 1}})), expected());
  EXPECT_EQ(message("linear", {f32({8, 4}), f32({4, 10}), f32({4})}), expected());
  EXPECT_EQ(message("linear", {f32({8, 4}), f32({4})}), expected());
  EXPECT_EQ(message("linear", {f32({}), f32({4, 4})}), expected());
  EXPECT_EQ(message("linear", {f32({4}), bf16({4, 4})}), expected());
  EXPECT_EQ(message("linear", {i32({4}), i32({4, 4})}), expected());
  EXPECT_EQ(message("linear", {f32({4})}), expected());
  EXPECT_EQ(message("linear", {f32({4}), f32({4, 4})}, attrs({{"act", "tanh"}})), expected());
}

TEST(Infer, AttentionSaysByWhat) {
  auto heads = [](int64_t n) { return attrs({{"heads", n}}); };
  EXPECT_EQ(message("attention", {f32({2, 8, 750})}, heads(4)), expected());
  EXPECT_EQ(message("attention", {f32({2, 8, 250})}, heads(2)), expected());
  EXPECT_EQ(message("attention", {f32({2, 8, 24})}, heads(0)), expected());
  auto shared = [](int64_t n, int64_t kv) { return attrs({{"heads", n}, {"kv_heads", kv}}); };
  EXPECT_EQ(message("attention", {f32({2, 8, 24})}, shared(4, 3)), expected());
  EXPECT_EQ(message("attention", {f32({2, 8, 24})}, shared(4, 0)), expected());
  EXPECT_EQ(message("attention", {f32({2, 8, 20})}, shared(4, 2)), expected());
  EXPECT_EQ(message("attention", {f32({8, 24})}, heads(2)), expected());
}

TEST(Infer, RingAttentionIsOfTheRanksPart) {
  Attrs a = attrs({{"heads", 4}, {"tokens_axis", "cp"}, {"chunks", 2}});
  EXPECT_EQ(types("ring_attention", {bf16({2, 6, 24})}, a), "bf16[2, 6, 8] f32[2, 4, 6]");
  EXPECT_EQ(message("ring_attention", {f32({2, 6, 25})}, a), message("attention", {f32({2, 6, 25})}, a));
  EXPECT_NE(message("ring_attention", {f32({2, 5, 24})}, a), "accepted");
  a.set("tokens_axis", std::string());
  EXPECT_EQ(message("ring_attention", {f32({2, 6, 24})}, a), expected());
}

TEST(Infer, EmbeddingSaysByWhat) {
  EXPECT_EQ(message("embedding", {f32({2, 3}), f32({9, 5})}), expected());
  EXPECT_EQ(message("embedding", {i32({2, 300}), f32({9, 5}), f32({128, 5})}), expected());
  EXPECT_EQ(message("embedding", {i32({2, 3}), f32({9, 5}), f32({128, 6})}), expected());
}

TEST(Infer, PartsSayByWhat) {
  EXPECT_EQ(message("bias", {f32({2, 5}), f32({4})}), expected());
  EXPECT_EQ(message("positions", {f32({2, 300, 5}), f32({128, 5})}), expected());
  EXPECT_EQ(message("positions", {f32({2, 3, 5}), f32({128, 6})}), expected());
  EXPECT_EQ(message("positions", {f32({2, 3, 5}), f32({8, 5})}, attrs({{"chunks", 2}})), expected());
  EXPECT_EQ(message("positions", {f32({2, 3, 5}), f32({8, 5})}, attrs({{"chunks", 3}})), expected());
  auto pieces = [](int64_t n, int64_t dim) { return attrs({{"pieces", n}, {"dim", dim}}); };
  EXPECT_EQ(message("join_pieces", {f32({3, 5})}, pieces(4, 0)), expected());
  EXPECT_EQ(message("join_pieces", {f32({3, 5})}, pieces(3, 1)), expected());
  EXPECT_EQ(message("cut_pieces", {f32({3, 5})}, pieces(4, 1)), expected());
  EXPECT_EQ(message("take_piece", {f32({3, 5})}, pieces(0, 1)), expected());
}

TEST(Infer, LossesSayByWhat) {
  EXPECT_EQ(message("cross_entropy", {f32({2, 3, 9}), i32({2, 4})}), expected());
  EXPECT_EQ(message("cross_entropy", {f32({2, 9}), f32({2})}), expected());
  EXPECT_EQ(message("cross_entropy_sums", {f32({2, 9}), i32({2}), f32({3})}), expected());
  EXPECT_EQ(message("mse", {f32({2, 3}), f32({3, 2})}), expected());
  EXPECT_EQ(message("mean_square", {i32({2})}), expected());
  EXPECT_EQ(message("mean", {}), expected());
}

TEST(Infer, MixtureOfExpertsSaysByWhat) {
  EXPECT_EQ(message("route", {f32({2, 3, 4})}, attrs({{"k", 5}})), expected());
  EXPECT_EQ(message("route", {f32({2, 3, 4})}, attrs({{"capacity", -1}})), expected());
  EXPECT_EQ(message("route", {f32({1, 1 << 20, 4096})}), expected());
  EXPECT_EQ(message("dispatch", {f32({2, 3, 4}), i32({5, 2})}, attrs({{"experts", 4}})), expected());
  EXPECT_EQ(message("dispatch", {f32({2, 3, 4}), i32({6, 2})}), expected());
  EXPECT_EQ(message("combine", {f32({4, 6, 5}), i32({6, 2}), f32({6, 2})}, attrs({{"batch", 4}})), expected());
  EXPECT_EQ(message("combine", {f32({4, 6, 5}), i32({6, 2}), f32({6, 1})}), expected());
  EXPECT_EQ(message("expert_linear", {f32({4, 6, 5}), f32({3, 5, 7}), i32({4, 1})}), expected());
  EXPECT_EQ(message("expert_linear", {f32({4, 6, 5}), f32({4, 6, 7}), i32({4, 1})}), expected());
  EXPECT_EQ(message("dispatch", {f32({2, 3, 4}), i32({6, 2})}, attrs({{"experts", 4}, {"round", -1}})), expected());
  EXPECT_EQ(message("pack_rows", {f32({4, 5, 3}), i32({4, 2})}), expected());
  EXPECT_EQ(message("unpack_rows", {f32({2, 4, 5, 3}), i32({4, 1})}), expected());
}

TEST(Infer, OthersSayByWhat) {
  EXPECT_EQ(message("layernorm", {f32({2, 5}), f32({4}), f32({5})}), expected());
  EXPECT_EQ(message("layernorm", {f32({2, 5}), f32({5}), f32({6})}), expected());
  EXPECT_EQ(message("rmsnorm", {f32({2, 5}), f32({4})}), expected());
  EXPECT_EQ(message("silu_mul", {f32({2, 5}), f32({2, 4})}), expected());
  auto rotary = [](int64_t heads, int64_t size) { return attrs({{"heads", heads}, {"size", size}}); };
  EXPECT_EQ(message("rotary", {f32({2, 3, 12})}, rotary(2, 3)), expected());
  EXPECT_EQ(message("rotary", {f32({2, 3, 12})}, rotary(2, 8)), expected());
  EXPECT_EQ(message("rotary", {f32({2, 3, 12})}, rotary(4, 4)), expected());
  EXPECT_EQ(message("rotary", {f32({2, 3, 12})}, attrs({{"heads", 2}, {"size", 4}, {"part", 3}})), expected());
  auto scaled = [](const char* scaling, double low) {
    return attrs({{"heads", 2},
                  {"size", 4},
                  {"scaling", std::string(scaling)},
                  {"factor", 2.0},
                  {"low_freq_factor", low},
                  {"high_freq_factor", 4.0},
                  {"original_context", 64}});
  };
  EXPECT_EQ(message("rotary", {f32({2, 3, 12})}, scaled("dynamic", 1)), expected());
  EXPECT_EQ(message("rotary", {f32({2, 3, 12})}, scaled("llama3", 4)), expected());
  EXPECT_EQ(message("rotary", {f32({2, 3, 12})}, scaled("yarn", 1)), "accepted");
  auto turned = [&](const char* name, Attr value, const char* scaling = "yarn") {
    Attrs all = scaled(scaling, 1);
    all.set(name, std::move(value));
    return message("rotary", {f32({2, 3, 12})}, all);
  };
  EXPECT_EQ(turned("beta_slow", 40.0), expected());
  EXPECT_EQ(turned("base", 1.0), expected());
  EXPECT_EQ(turned("attention_factor", 0.0), expected());
  EXPECT_EQ(turned("factors", std::vector<double>{1}, "longrope"), expected());
  EXPECT_EQ(turned("factors", std::vector<double>{1, -2}, "longrope"), expected());
  EXPECT_EQ(message("rotary_at", {f32({2, 3, 12}), i32({3, 2})}, rotary(2, 4)), expected());
  EXPECT_EQ(message("rotary_at", {f32({2, 3, 12}), f32({2, 3})}, rotary(2, 4)), expected());
  EXPECT_EQ(message("dropout", {f32({2, 3})}, attrs({{"p", 1.0}})), expected());
  EXPECT_EQ(message("dropout", {f32({3})}), expected());
  EXPECT_EQ(message("add", {f32({2, 5}), f32({5})}), expected());
  EXPECT_EQ(message("mul", {f32({2}), f64({2})}), expected());
  EXPECT_EQ(message("gelu", {f32({2})}, attrs({{"approximate", "tan"}})), expected());
  EXPECT_EQ(message("cast", {f32({2})}, attrs({{"dtype", "bf61"}})), expected());
  EXPECT_EQ(message("cast", {f32({2})}, attrs({{"dtype", "i64"}})), expected());
  EXPECT_EQ(message("relu", {i32({2})}), expected());
}

TEST(Infer, Windows) {
  const auto list = [](const char* name, std::vector<int64_t> numbers) { return attrs({{name, numbers}}); };
  const TensorType x = f32({2, 4, 9, 8}), w = f32({6, 4, 3, 3});
  EXPECT_EQ(types("conv", {x, w, f32({6})}), "f32[2, 6, 7, 6]");
  EXPECT_EQ(types("conv", {bf16({2, 4, 9}), bf16({6, 2, 3})}, attrs({{"groups", 2}})), "bf16[2, 6, 7]");
  EXPECT_EQ(types("conv", {x, w}, list("stride", {2, 3})), "f32[2, 6, 4, 2]");
  EXPECT_EQ(types("conv", {x, w}, list("padding", {1, 0})), "f32[2, 6, 9, 6]");
  EXPECT_EQ(types("conv", {x, w}, list("dilation", {4, 1})), "f32[2, 6, 1, 6]");
  EXPECT_EQ(types("conv_transpose", {f32({2, 6, 7, 6}), w}), "f32[2, 4, 9, 8]");
  EXPECT_EQ(types("conv_dw", {bf16({2, 4, 9}), bf16({2, 6, 7})},
                  attrs({{"kernel", std::vector<int64_t>{3}}, {"groups", 2}, {"bias", 1}})),
            "f32[6, 2, 3] f32[6]");
  const Attrs pool = attrs({{"op", "mean"}, {"kernel", std::vector<int64_t>{3, 2}}});
  EXPECT_EQ(types("pooling", {x}, pool), "f32[2, 4, 7, 7]");
  EXPECT_EQ(message("conv", {f32({4, 9}), f32({6, 4})}), expected());
  EXPECT_EQ(message("conv", {i32({2, 4, 9, 8}), w}), expected());
  EXPECT_EQ(message("conv", {x, f32({6, 4, 3})}), expected());
  EXPECT_EQ(message("conv", {x, f32({6, 3, 3, 3})}), expected());
  EXPECT_EQ(message("conv", {x, w}, attrs({{"groups", 3}})), expected());
  EXPECT_EQ(message("conv", {x, w}, attrs({{"groups", 0}})), expected());
  EXPECT_EQ(message("conv", {x, w}, list("stride", {0, 1})), expected());
  EXPECT_EQ(message("conv", {x, w}, list("padding", {1})), expected());
  EXPECT_EQ(message("conv", {x, w}, list("dilation", {1, 4})), expected());
  EXPECT_EQ(message("conv", {x, f32({6, 4, 9, 9})}), expected());
  EXPECT_EQ(message("conv", {x, w, f32({4})}), expected());
  EXPECT_EQ(message("conv_transpose", {f32({2, 6, 7, 6}), w}, list("output_padding", {1, 0})), expected());
  EXPECT_EQ(message("conv_transpose", {f32({2, 6, 7, 6}), w}, list("padding", {0, 4})), expected());
  EXPECT_EQ(message("pooling", {x}, list("kernel", {3, 2})), expected());
  Attrs more = pool;
  more.set("padding", std::vector<int64_t>{2, 0});
  EXPECT_EQ(message("pooling", {x}, more), expected());
  more = pool;
  more.set("dilation", std::vector<int64_t>{2, 1});
  EXPECT_EQ(message("pooling", {x}, more), expected());
  more = attrs({{"op", "max"}, {"kernel", std::vector<int64_t>{2, 2}}, {"padding", std::vector<int64_t>{1, 1}}});
  more.set("dilation", std::vector<int64_t>{10, 1});
  EXPECT_EQ(message("pooling", {x}, more), expected());
  EXPECT_EQ(op_cost(ops::conv, {x, w}, {f32({2, 6, 7, 6})}, {}).model, 2 * (2 * 6 * 7 * 6) * (4 * 9));
  EXPECT_EQ(op_cost(ops::conv_transpose, {f32({2, 6, 7, 6}), w}, {x}, {}).flops, 2 * (2 * 6 * 7 * 6) * (4 * 9));
  EXPECT_EQ(op_cost(ops::conv_dw, {x, f32({2, 6, 7, 6})}, {w}, {}).flops, 2 * (2 * 6 * 7 * 6) * (4 * 9));
  EXPECT_EQ(op_cost(ops::pooling, {x}, {f32({2, 4, 7, 7})}, pool).flops, 2 * 4 * 7 * 7 * 6);
}

TEST(Infer, CostsCountMultiplyAddsTwice) {
  Types inputs = {f32({2, 3, 5}), f32({5, 7})};
  EXPECT_EQ(op_cost(ops::linear, inputs, {f32({2, 3, 7})}, {}).flops, 2 * 6 * 5 * 7);
  EXPECT_EQ(op_cost(ops::linear_dx, {f32({6, 7}), f32({5, 7})}, {f32({6, 5})}, {}).flops, 2 * 6 * 5 * 7);
  EXPECT_EQ(op_cost(ops::linear_dw, {f32({6, 5}), f32({6, 7})}, {f32({5, 7})}, {}).flops, 2 * 6 * 5 * 7);
  EXPECT_EQ(op_cost(ops::attention, {f32({2, 3, 24})}, {}, {}).flops, 2 * (2 * 2 * 3 * 3 * 8));
  EXPECT_EQ(op_cost(ops::expert_linear, {f32({4, 6, 5}), f32({4, 5, 7}), i32({4, 1})}, {f32({4, 6, 7})}, {}).flops,
            2 * 4 * 6 * 5 * 7);
  // Backward recomputes the scores, which is not counted as the model's FLOPs.
  const Cost grad = op_cost(ops::attention_grad, {f32({2, 3, 24})}, {}, {});
  EXPECT_EQ(grad.flops, 5 * (2 * 2 * 3 * 3 * 8));
  EXPECT_EQ(grad.model, 4 * (2 * 2 * 3 * 3 * 8));
  EXPECT_EQ(op_cost(ops::gelu, {f32({6})}, {f32({6})}, {}).model, 0);
  EXPECT_EQ(op_cost(ops::copy, {f32({6})}, {f32({6})}, {}).bytes, 48);
}

TEST(Infer, OpsOfBuffersTakeTwoAlike) {
  for (const char* op : {"by_phase", "update"}) {
    EXPECT_EQ(types(op, {f32({6}), f32({6})}), "f32[6]");
    EXPECT_NE(message(op, {f32({6}), f32({1, 6})}), "accepted");
    EXPECT_NE(message(op, {f32({6}), bf16({6})}), "accepted");
    EXPECT_NE(message(op, {f32({6})}), "accepted");
  }
}

TEST(Infer, EveryOpOfTheTableIsThere) {
  EXPECT_EQ(find_op("linera"), nullptr);
  for (const OpDef* op : all_ops()) {
    EXPECT_EQ(find_op(op->name), op);
    EXPECT_TRUE(op->infer || !op->derive || op->op_class == OpClass::communication) << op->name;
    EXPECT_TRUE(!(op->infer || op->derive) || op->distribution != Distribution::none) << op->name;
    bool declared = op->role == OpRole::source || op->role == OpRole::collective || op->role == OpRole::message ||
                    op->op_class == OpClass::host || op->op_class == OpClass::lowered;
    EXPECT_TRUE(declared || op->infer || op->optimizer || !op->shapes.empty()) << op->name;
    EXPECT_EQ(op->role == OpRole::optimizer, op->optimizer != nullptr) << op->name;
    bool in_models = op->op_class == OpClass::compute || op->op_class == OpClass::lowered;
    EXPECT_TRUE(!op->infer || in_models) << op->name;
  }
  EXPECT_EQ(ops::all_gather_v.op_class, OpClass::communication);
  EXPECT_EQ(ops::next_batch.op_class, OpClass::host);
}

}  // namespace
}  // namespace prun
