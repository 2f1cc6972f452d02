// Shape rules: the types of outputs, and each message that a user can cause.
#include <gtest/gtest.h>

#include "ir/op_def.h"
#include "ir/ops.h"

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

// "f32[2, 3] f32[]"
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
  EXPECT_EQ(types("mse", {f64({2, 3}), f64({2, 3})}), "f64[]");
  EXPECT_EQ(types("route", {bf16({2, 3, 5})}, attrs({{"k", 2}})), "f32[6, 2] i32[6, 2] f32[5]");
  EXPECT_EQ(types("dispatch", {bf16({2, 3, 5}), i32({6, 2})}, attrs({{"experts", 4}})), "bf16[4, 6, 5]");
  EXPECT_EQ(types("expert_linear", {bf16({4, 6, 5}), bf16({4, 5, 7})}), "bf16[4, 6, 7]");
  EXPECT_EQ(types("combine", {bf16({4, 6, 5}), i32({6, 2}), f32({6, 2})}, attrs({{"batch", 2}, {"tokens", 3}})),
            "bf16[2, 3, 5]");
  EXPECT_EQ(types("mean", {f32({})}), "f32[]");
  EXPECT_EQ(types("cast", {f32({2})}, attrs({{"dtype", "bf16"}})), "bf16[2]");
}

TEST(Infer, LinearSaysByWhat) {
  EXPECT_EQ(message("linear", {f32({8, 250}), f32({256, 10})}),
            "linear: the input's last dim is 250, the weight has 256 rows");
  EXPECT_EQ(message("linear", {f32({8, 250}), f32({10, 256})}, attrs({{"transpose", 1}})),
            "linear: the input's last dim is 250, the weight has 256 columns (it is transposed)");
  EXPECT_EQ(message("linear", {f32({8, 4}), f32({4, 10}), f32({4})}),
            "linear: the bias has 4 elements, the weight has 10 columns");
  EXPECT_EQ(message("linear", {f32({8, 4}), f32({4})}), "linear: the weight is [4], should have 2 dims");
  EXPECT_EQ(message("linear", {f32({}), f32({4, 4})}), "linear: the input is [], should have at least 1 dim");
  EXPECT_EQ(message("linear", {f32({4}), bf16({4, 4})}),
            "linear: the input is f32, the weight is bf16; they should be the same");
  EXPECT_EQ(message("linear", {i32({4}), i32({4, 4})}), "linear: the input is i32, should be f32, bf16 or f64");
  EXPECT_EQ(message("linear", {f32({4})}), "linear: takes 2 to 3 tensors, got 1");
  EXPECT_EQ(message("linear", {f32({4}), f32({4, 4})}, attrs({{"act", "tanh"}})),
            "linear: act is 'tanh', should be 'relu' or 'gelu'");
}

TEST(Infer, AttentionSaysByWhat) {
  auto heads = [](int64_t n) { return attrs({{"heads", n}}); };
  EXPECT_EQ(message("attention", {f32({2, 8, 750})}, heads(4)), "attention: width 250 is not divisible by 4 heads");
  EXPECT_EQ(message("attention", {f32({2, 8, 250})}, heads(2)),
            "attention: qkv's last dim is 250, should be three times the width");
  EXPECT_EQ(message("attention", {f32({2, 8, 24})}, heads(0)), "attention: 0 heads; at least 1 is needed");
  auto shared = [](int64_t n, int64_t kv) { return attrs({{"heads", n}, {"kv_heads", kv}}); };
  EXPECT_EQ(message("attention", {f32({2, 8, 24})}, shared(4, 3)), "attention: 4 heads cannot share 3 kv_heads evenly");
  EXPECT_EQ(message("attention", {f32({2, 8, 24})}, shared(4, 0)), "attention: 0 kv_heads; at least 1 is needed");
  EXPECT_EQ(message("attention", {f32({2, 8, 20})}, shared(4, 2)),
            "attention: qkv's last dim is 20, should be a multiple of 8: 4 heads and twice 2");
  EXPECT_EQ(message("attention", {f32({8, 24})}, heads(2)), "attention: qkv is [8, 24], should have 3 dims");
}

TEST(Infer, RingAttentionIsOfTheRanksPart) {
  Attrs a = attrs({{"heads", 4}, {"tokens_axis", "cp"}, {"chunks", 2}});
  EXPECT_EQ(types("ring_attention", {bf16({2, 6, 24})}, a), "bf16[2, 6, 8] f32[2, 4, 6]");
  EXPECT_EQ(message("ring_attention", {f32({2, 6, 25})}, a), message("attention", {f32({2, 6, 25})}, a));
  EXPECT_NE(message("ring_attention", {f32({2, 5, 24})}, a), "accepted");
  a.set("tokens_axis", std::string());
  EXPECT_EQ(message("ring_attention", {f32({2, 6, 24})}, a),
            "ring_attention: tokens_axis is not given; attention within a rank is the op attention");
}

TEST(Infer, EmbeddingSaysByWhat) {
  EXPECT_EQ(message("embedding", {f32({2, 3}), f32({9, 5})}), "embedding: the token tensor is f32, should be i32");
  EXPECT_EQ(message("embedding", {i32({2, 300}), f32({9, 5}), f32({128, 5})}),
            "embedding: a sample has 300 tokens, the position table has 128 rows");
  EXPECT_EQ(message("embedding", {i32({2, 3}), f32({9, 5}), f32({128, 6})}),
            "embedding: the table is 5 wide, the position table is 6");
}

TEST(Infer, PartsSayByWhat) {
  EXPECT_EQ(message("bias", {f32({2, 5}), f32({4})}), "bias: the input's last dim is 5, the bias has 4 elements");
  EXPECT_EQ(message("positions", {f32({2, 300, 5}), f32({128, 5})}),
            "positions: a sample has 300 tokens, the table has 128 rows");
  EXPECT_EQ(message("positions", {f32({2, 3, 5}), f32({128, 6})}),
            "positions: the input's last dim is 5, the table is 6 wide");
  EXPECT_EQ(message("positions", {f32({2, 3, 5}), f32({8, 5})}, attrs({{"chunks", 2}})),
            "positions: 3 tokens do not divide into 2 chunks");
  EXPECT_EQ(message("positions", {f32({2, 3, 5}), f32({8, 5})}, attrs({{"chunks", 3}})),
            "positions: chunks is 3, should be 1 or 2");
  auto pieces = [](int64_t n, int64_t dim) { return attrs({{"pieces", n}, {"dim", dim}}); };
  EXPECT_EQ(message("join_pieces", {f32({3, 5})}, pieces(4, 0)),
            "join_pieces: the input is [3, 5], its first dim should be the 4 pieces");
  EXPECT_EQ(message("join_pieces", {f32({3, 5})}, pieces(3, 1)), "join_pieces: dim is 1, should be 0 to 0");
  EXPECT_EQ(message("cut_pieces", {f32({3, 5})}, pieces(4, 1)),
            "cut_pieces: dim 1 of [3, 5] does not divide into 4 pieces");
  EXPECT_EQ(message("take_piece", {f32({3, 5})}, pieces(0, 1)), "take_piece: 0 pieces; at least 1 is needed");
}

TEST(Infer, LossesSayByWhat) {
  EXPECT_EQ(message("cross_entropy", {f32({2, 3, 9}), i32({2, 4})}),
            "cross_entropy: the logits [2, 3, 9] have 6 rows, the targets [2, 4] have 8 elements");
  EXPECT_EQ(message("cross_entropy", {f32({2, 9}), f32({2})}),
            "cross_entropy: the target tensor is f32, should be i32");
  EXPECT_EQ(message("cross_entropy_sums", {f32({2, 9}), i32({2}), f32({3})}),
            "cross_entropy_sums: the logits [2, 9] have 2 rows, the tensor of maxima is [3]");
  EXPECT_EQ(message("mse", {f32({2, 3}), f32({3, 2})}),
            "mse: the prediction is [2, 3], the target is [3, 2]; they should be the same");
  EXPECT_EQ(message("mean_square", {i32({2})}), "mean_square: the input is i32, should be f32, bf16 or f64");
  EXPECT_EQ(message("mean", {}), "mean: takes 1 tensor, got 0");
}

TEST(Infer, MixtureOfExpertsSaysByWhat) {
  EXPECT_EQ(message("route", {f32({2, 3, 4})}, attrs({{"k", 5}})),
            "route: 5 choices of 4 experts, should be between 1 and 4");
  EXPECT_EQ(message("route", {f32({2, 3, 4})}, attrs({{"capacity", -1}})),
            "route: capacity is -1, should be at least 1 slot, or 0 for enough");
  EXPECT_EQ(message("route", {f32({1, 1 << 20, 4096})}),
            "route: 4096 experts of 1048576 slots each are too many to count");
  EXPECT_EQ(message("dispatch", {f32({2, 3, 4}), i32({5, 2})}, attrs({{"experts", 4}})),
            "dispatch: the input has 6 tokens, the slots are of 5");
  EXPECT_EQ(message("dispatch", {f32({2, 3, 4}), i32({6, 2})}), "dispatch: 0 experts; at least 1 is needed");
  EXPECT_EQ(message("combine", {f32({4, 6, 5}), i32({6, 2}), f32({6, 2})}, attrs({{"batch", 4}})),
            "combine: the slots are of 6 tokens, the result of 4 samples of 6");
  EXPECT_EQ(message("combine", {f32({4, 6, 5}), i32({6, 2}), f32({6, 1})}),
            "combine: the slot tensor is [6, 2], the weight tensor is [6, 1]; they should be the same");
  EXPECT_EQ(message("expert_linear", {f32({4, 6, 5}), f32({3, 5, 7})}),
            "expert_linear: the input is of 4 experts, the weight of 3");
  EXPECT_EQ(message("expert_linear", {f32({4, 6, 5}), f32({4, 6, 7})}),
            "expert_linear: the input's last dim is 5, each expert's weight has 6 rows");
}

TEST(Infer, OthersSayByWhat) {
  EXPECT_EQ(message("layernorm", {f32({2, 5}), f32({4}), f32({5})}),
            "layernorm: the input's last dim is 5, gamma has 4 elements");
  EXPECT_EQ(message("layernorm", {f32({2, 5}), f32({5}), f32({6})}),
            "layernorm: the input's last dim is 5, beta has 6 elements");
  EXPECT_EQ(message("rmsnorm", {f32({2, 5}), f32({4})}), "rmsnorm: the input's last dim is 5, gamma has 4 elements");
  EXPECT_EQ(message("silu_mul", {f32({2, 5}), f32({2, 4})}),
            "silu_mul: the gate is [2, 5], the second tensor is [2, 4]; they should be the same");
  auto rotary = [](int64_t heads, int64_t size) { return attrs({{"heads", heads}, {"size", size}}); };
  EXPECT_EQ(message("rotary", {f32({2, 3, 12})}, rotary(2, 3)),
            "rotary: a head of size 3; the size should be even, at least 2");
  EXPECT_EQ(message("rotary", {f32({2, 3, 12})}, rotary(2, 8)),
            "rotary: the input's last dim is 12, not a multiple of size 8");
  EXPECT_EQ(message("rotary", {f32({2, 3, 12})}, rotary(4, 4)),
            "rotary: 4 heads of size 4, the input's last dim is 12");
  EXPECT_EQ(message("dropout", {f32({2, 3})}, attrs({{"p", 1.0}})),
            "dropout: p is 1, should be at least 0 and below 1");
  EXPECT_EQ(message("dropout", {f32({3})}), "dropout: the input is [3], should have 2 or 3 dims");
  EXPECT_EQ(message("add", {f32({2, 5}), f32({5})}),
            "add: the first tensor is [2, 5], the second is [5]; they should be the same");
  EXPECT_EQ(message("mul", {f32({2}), f64({2})}),
            "mul: the first tensor is f32, the second is f64; they should be the same");
  EXPECT_EQ(message("gelu", {f32({2})}, attrs({{"approximate", "tan"}})),
            "gelu: approximate is 'tan', should be 'tanh' or 'none'");
  EXPECT_EQ(message("cast", {f32({2})}, attrs({{"dtype", "bf61"}})), "cast: no dtype 'bf61' (did you mean 'bf16'?)");
  EXPECT_EQ(message("cast", {f32({2})}, attrs({{"dtype", "i32"}})),
            "cast: the output is i32, should be f32, bf16 or f64");
  EXPECT_EQ(message("relu", {i32({2})}), "relu: the input is i32, should be f32, bf16 or f64");
}

TEST(Infer, CostsCountMultiplyAddsTwice) {
  Types inputs = {f32({2, 3, 5}), f32({5, 7})};
  EXPECT_EQ(op_cost(ops::linear, inputs, {f32({2, 3, 7})}, {}).flops, 2 * 6 * 5 * 7);
  EXPECT_EQ(op_cost(ops::linear_dx, {f32({6, 7}), f32({5, 7})}, {f32({6, 5})}, {}).flops, 2 * 6 * 5 * 7);
  EXPECT_EQ(op_cost(ops::linear_dw, {f32({6, 5}), f32({6, 7})}, {f32({5, 7})}, {}).flops, 2 * 6 * 5 * 7);
  EXPECT_EQ(op_cost(ops::attention, {f32({2, 3, 24})}, {}, {}).flops, 2 * (2 * 2 * 3 * 3 * 8));
  EXPECT_EQ(op_cost(ops::expert_linear, {f32({4, 6, 5}), f32({4, 5, 7})}, {f32({4, 6, 7})}, {}).flops,
            2 * 4 * 6 * 5 * 7);
  // Backward makes the scores again, which is no work of the model's.
  const Cost grad = op_cost(ops::attention_grad, {f32({2, 3, 24})}, {}, {});
  EXPECT_EQ(grad.flops, 5 * (2 * 2 * 3 * 3 * 8));
  EXPECT_EQ(grad.model, 4 * (2 * 2 * 3 * 3 * 8));
  EXPECT_EQ(op_cost(ops::gelu, {f32({6})}, {f32({6})}, {}).model, 0);
  EXPECT_EQ(op_cost(ops::copy, {f32({6})}, {f32({6})}, {}).bytes, 48);
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
