// Derivative rules whose results finite differences on one rank cannot show: of collectives, dtypes of gradients,
// losses.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ir/ops.h"
#include "tests/unit/derivative_recorder.h"
#include "tests/unit/op_list.h"

namespace prun {
namespace {

Attrs text(const char* name, const char* value) { return make_attrs({{name, std::string(value)}}); }
Attrs pieces(int64_t n, int64_t dim) { return make_attrs({{"pieces", n}, {"dim", dim}}); }

// Finite differences need several ranks here; the models of tests/parity cover the values.
TEST(Gradient, CollectivesDeriveAsOneAnother) {
  auto derived = [](const char* kind, Shape x, Shape y, Attrs attrs = {}) {
    Recorder recorder;
    recorder.types = {{Dtype::f32, std::move(x)}, {Dtype::f32, y}, {Dtype::f32, y}};
    recorder.wanted = {true, true, false};
    recorder.gradients[1] = 2;
    attrs.set("axis", "tp");
    std::vector<ValueId> in = {0}, out = {1};
    op_def(kind).derive(recorder, {in, out, attrs});
    std::string text;
    for (const Recorder::Recorded& node : recorder.nodes)
      text += (text.empty() ? "" : ", ") + node.kind + " " + shape_text(recorder.type(node.outputs[0]).shape);
    return text;
  };
  EXPECT_EQ(derived("all_reduce", {4}, {4}), "");
  EXPECT_EQ(derived("all_reduce", {4}, {4}, text("gradient", "partial")), "all_reduce [4]");
  EXPECT_EQ(derived("enter", {4}, {4}), "all_reduce [4]");
  EXPECT_EQ(derived("all_gather", {4}, {3, 4}), "reduce_scatter [4]");
  EXPECT_EQ(derived("all_gather", {4}, {3, 4}, text("gradient", "whole")), "take_piece [4]");
  EXPECT_EQ(derived("reduce_scatter", {3, 4}, {4}), "all_gather [3, 4]");
  EXPECT_EQ(derived("all_to_all", {3, 4}, {3, 4}), "all_to_all [3, 4]");
  EXPECT_EQ(derived("take_piece", {2, 12}, {2, 4}, pieces(3, 1)), "all_gather [3, 2, 4], join_pieces [2, 12]");
}

TEST(Gradient, ParametersOfBf16ModelsGetF32Gradients) {
  auto types = [](const char* kind, std::vector<TensorType> inputs, const Attrs& attrs) {
    Recorder recorder;
    std::vector<ValueId> in, out;
    recorder.types.assign(inputs.begin(), inputs.end());
    for (size_t i = 0; i < inputs.size(); ++i) in.push_back(static_cast<int>(i));
    for (const TensorType& type : op_def(kind).infer(inputs, attrs)) {
      out.push_back(static_cast<int>(recorder.types.size()));
      recorder.types.push_back(type);
    }
    for (const TensorType& type : recorder.types) recorder.wanted.push_back(type.dtype != Dtype::i32);
    recorder.types.push_back(recorder.types[inputs.size()]);
    recorder.wanted.push_back(false);
    recorder.gradients[out[0]] = static_cast<int>(recorder.types.size()) - 1;
    op_def(kind).derive(recorder, {in, out, attrs});
    std::string text;
    for (ValueId id : in)
      if (recorder.gradient(id) >= 0) text += std::string(dtype_name(recorder.type(recorder.gradient(id)).dtype)) + " ";
    return text;
  };
  TensorType x{Dtype::bf16, {4, 6}}, w{Dtype::bf16, {6, 6}}, b{Dtype::bf16, {6}}, tokens{Dtype::i32, {4}};
  EXPECT_EQ(types("linear", {x, w, b}, {}), "bf16 f32 f32 ");
  EXPECT_EQ(types("layernorm", {x, b, b}, {}), "bf16 f32 f32 ");
  EXPECT_EQ(types("rmsnorm", {x, b}, {}), "bf16 f32 ");
  EXPECT_EQ(types("embedding", {tokens, w, w}, {}), "f32 f32 ");
  EXPECT_EQ(types("bias", {x, b}, {}), "bf16 f32 ");
  EXPECT_EQ(types("positions", {{Dtype::bf16, {2, 4, 6}}, w}, {}), "bf16 f32 ");
  EXPECT_EQ(types("cast", {x}, text("dtype", "f32")), "bf16 ");
}

TEST(Gradient, ALossMustEndTheModel) {
  Recorder recorder;
  recorder.types = {{Dtype::f32, {3}}, {Dtype::f32, {}}, {Dtype::f32, {}}};
  recorder.wanted = {true, true, false};
  recorder.gradients[1] = 2;
  std::vector<ValueId> in = {0}, out = {1};
  Attrs none;
  for (const char* kind : {"mean", "mean_square"}) {
    try {
      op_def(kind).derive(recorder, {in, out, none});
      FAIL() << kind;
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), std::string(kind) + ": a loss ends the model, nothing can be computed from it");
    }
  }
}

}  // namespace
}  // namespace prun
