// Compares derivative rules with central finite differences, in f64 on the reference device.
//
// Each case is one op under a weighted sum: loss = mean(op(inputs) · weight). The backward pass is recorded by the op's
// rule; every element of every gradient is compared with (loss(x+h) − loss(x−h)) / 2h.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "ir/ops.h"
#include "kernels/devices.h"
#include "tests/unit/derivative_recorder.h"
#include "tests/unit/op_list.h"

namespace prun {
namespace {

struct Input {
  Shape shape;
  bool wanted = true;
  Dtype dtype = Dtype::f64;
  int64_t below = 0;                // integers: uniform in [0, below)
  std::vector<double> values = {};  // empty: random
};

// An op that computes one input from others before the op under test.
struct Before {
  const char* kind;
  std::vector<TensorId> reads, writes;
};

struct Case {
  const char* name;
  const char* kind;
  std::vector<Input> inputs;
  Attrs attrs = {};
  std::vector<int> use = {};  // inputs of the node as indices; empty: each once in order
  std::vector<Before> before = {};
};

// Value n is stored in tensor n.
std::vector<TensorId> tensors(const std::vector<ValueId>& values) {
  std::vector<TensorId> ids;
  for (ValueId value : values) ids.push_back(value.index());
  return ids;
}

// Forward and backward of one case as a list of ops.
class Differentiated {
 public:
  explicit Differentiated(const Device& device, const Case& c) : list_(device) {
    for (const Input& input : c.inputs) {
      add({input.dtype, input.shape}, input.wanted);
      inputs_.push_back(static_cast<int>(recorder_.types.size()) - 1);
    }
    std::vector<ValueId> used(c.use.begin(), c.use.end());
    if (used.empty()) used = inputs_;
    std::vector<TensorType> used_types;
    for (ValueId id : used) used_types.push_back(recorder_.type(id));
    std::vector<ValueId> outputs;
    for (const TensorType& type : op_def(c.kind).infer(used_types, c.attrs)) outputs.push_back(add(type, true));
    loss_ = outputs[0];
    bool under_sum = !recorder_.type(loss_).shape.empty();
    Attrs mean;
    mean.set("scale", 0.7);
    std::vector<ValueId> weighted, sum;
    if (under_sum) {
      weight_ = add(recorder_.type(loss_), false);
      weighted = {add(recorder_.type(loss_), true)};
      sum = {add({Dtype::f64, {}}, true)};
      loss_ = sum[0];
    }
    tensors_up_to_here();
    for (const Before& op : c.before) list_.op(op.kind, op.reads, op.writes, c.attrs);
    list_.op(c.kind, tensors(used), tensors(outputs), c.attrs);
    if (under_sum) {
      list_.op("mul", tensors({outputs[0], weight_}), tensors(weighted), {});
      list_.op("mean", tensors(weighted), tensors(sum), mean);
      derive("mean", weighted, sum, mean);
      derive("mul", {outputs[0], weight_}, weighted, {});
    }
    derive(c.kind, used, outputs, c.attrs);
    tensors_up_to_here();
    for (const Recorder::Recorded& node : recorder_.nodes)
      list_.op(node.kind, tensors(node.inputs), tensors(node.outputs), node.attrs);
    list_.make();
  }

  OpList& list() { return list_; }
  const Recorder& recorder() const { return recorder_; }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  int weight() const { return weight_; }
  double loss() {
    list_.run();
    return list_.get(loss_.index())[0];
  }

 private:
  int add(const TensorType& type, bool wanted) {
    recorder_.types.push_back(type);
    recorder_.wanted.push_back(wanted);
    return static_cast<int>(recorder_.types.size()) - 1;
  }
  void tensors_up_to_here() {
    for (size_t i = list_.program().tensors.size(); i < recorder_.types.size(); ++i) list_.tensor(recorder_.types[i]);
  }
  void derive(const char* kind, const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs,
              const Attrs& attrs) {
    op_def(kind).derive(recorder_, {inputs, outputs, attrs});
  }

  OpList list_;
  Recorder recorder_;
  std::vector<ValueId> inputs_;
  int weight_ = -1;
  ValueId loss_;
};

// Random values away from 0, where relu has no derivative.
std::vector<double> random_values(std::mt19937_64& random, const Input& input) {
  std::uniform_real_distribution<double> size(0.05, 1.5);
  std::vector<double> values(static_cast<size_t>(element_count(input.shape)));
  for (double& value : values)
    value = input.below > 0 ? static_cast<double>(random() % static_cast<uint64_t>(input.below))
                            : (random() % 2 ? 1 : -1) * size(random);
  return values;
}

void check(const Case& c) {
  SCOPED_TRACE(c.name);
  std::unique_ptr<Device> device = open_device("reference");
  Differentiated graph(*device, c);
  std::mt19937_64 random(11);
  std::vector<std::vector<double>> values;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    values.push_back(c.inputs[i].values.empty() ? random_values(random, c.inputs[i]) : c.inputs[i].values);
    graph.list().set(graph.inputs()[i].index(), values[i]);
  }
  if (graph.weight() >= 0)
    graph.list().set(graph.weight(), random_values(random, {graph.recorder().type(graph.weight()).shape}));
  graph.loss();
  std::map<int, std::vector<double>> derived;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const ValueId gradient = graph.recorder().gradient(static_cast<int>(i));
    ASSERT_EQ(gradient >= 0, c.inputs[i].wanted) << "input " << i;
    if (gradient >= 0) derived[static_cast<int>(i)] = graph.list().get(gradient.index());
  }
  constexpr double kStep = 1e-5;
  for (auto& [input, gradient] : derived)
    for (size_t e = 0; e < gradient.size(); ++e) {
      std::vector<double> moved = values[static_cast<size_t>(input)];
      double loss[2];
      for (int side : {0, 1}) {
        moved[e] = values[static_cast<size_t>(input)][e] + (side ? kStep : -kStep);
        graph.list().set(input, moved);
        loss[side] = graph.loss();
      }
      graph.list().set(input, values[static_cast<size_t>(input)]);
      double difference = (loss[1] - loss[0]) / (2 * kStep);
      ASSERT_NEAR(gradient[e], difference, 2e-9 * (1 + std::abs(difference))) << "input " << input << " element " << e;
    }
}

Input unwanted(Shape shape) { return {std::move(shape), false}; }
Input integers(Shape shape, int64_t below) { return {std::move(shape), false, Dtype::i32, below}; }

Input given(Shape shape, std::vector<double> values) {
  return {std::move(shape), false, Dtype::i32, 0, std::move(values)};
}
Attrs routing(const char* scores, const std::vector<std::pair<const char*, double>>& numbers) {
  Attrs attrs;
  for (const auto& [name, number] : numbers)
    if (std::string_view(name) == "factor")
      attrs.set(name, number);
    else
      attrs.set(name, static_cast<int64_t>(number));
  attrs.set("scores", std::string(scores));
  return attrs;
}

// Two choices for each of six tokens among three experts with three slots; the expert was full for two choices.
Input slots() { return given({6, 2}, {0, 3, 6, 1, 7, 4, 2, 5, 8, -1, -3, std::numeric_limits<int32_t>::min()}); }

// Two choices for each of six tokens among three experts with a slot for each token, in rounds of two.
Input places() { return given({6, 2}, {0, 6, 12, 1, 7, 13, 2, 8, 14, 3, 9, std::numeric_limits<int32_t>::min()}); }

Attrs transpose() { return make_attrs({{"transpose", 1}}); }
Attrs heads(int64_t n, bool causal) { return make_attrs({{"heads", n}, {"causal", causal}}); }
Attrs shared_heads(int64_t n, int64_t kv, bool causal) {
  return make_attrs({{"heads", n}, {"kv_heads", kv}, {"causal", causal}});
}
Attrs rotated(int64_t heads) {
  return make_attrs({{"size", 4}, {"heads", heads}, {"tokens_axis", "dp"}, {"base", 100.0}});
}
Attrs llama3_scaled() {
  return make_attrs({{"size", 8},
                     {"heads", 1},
                     {"scaling", std::string("llama3")},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_context", 20}});
}
Attrs yarn_scaled() {
  return make_attrs({{"size", 4},
                     {"heads", 2},
                     {"scaling", std::string("yarn")},
                     {"factor", 4.0},
                     {"original_context", 20},
                     {"attention_factor", 1.5}});
}
Attrs longrope_scaled() {
  return make_attrs({{"size", 8},
                     {"heads", 1},
                     {"part", 6},
                     {"interleaved", 1},
                     {"inverse", 1},
                     {"scaling", std::string("longrope")},
                     {"factors", std::vector<double>{1, 1.5, 4}}});
}
Attrs scaled(double scale) { return make_attrs({{"scale", scale}}); }
Attrs text(const char* name, const char* value) { return make_attrs({{name, std::string(value)}}); }

Attrs pieces(int64_t n, int64_t dim) { return make_attrs({{"pieces", n}, {"dim", dim}}); }
Attrs two_chunks() { return make_attrs({{"tokens_axis", "dp"}, {"chunks", 2}}); }
// Maxima, sums, logits and targets; the first two are computed from the others.
std::vector<Input> split_loss() { return {unwanted({6}), unwanted({2, 6}), {{2, 3, 7}}, integers({2, 3}, 5)}; }
std::vector<Before> split_loss_before() {
  return {{"cross_entropy_max", {2}, {0}}, {"cross_entropy_sums", {2, 3, 0}, {1}}};
}

// Cases of layers.
std::vector<Case> layer_cases() {
  return {
      {"linear", "linear", {{{2, 3, 5}}, {{5, 7}}}},
      {"linear with a bias", "linear", {{{3, 5}}, {{5, 2}}, {{2}}}},
      {"linear transposed", "linear", {{{3, 5}}, {{7, 5}}, {{7}}}, transpose()},
      {"linear of one vector", "linear", {{{5}}, {{5, 3}}, {{3}}}},
      {"linear with relu", "linear", {{{4, 5}}, {{5, 6}}, {{6}}}, text("act", "relu")},
      {"linear with relu, transposed", "linear", {{{4, 5}}, {{6, 5}}}, make_attrs({{"act", "relu"}, {"transpose", 1}})},
      {"linear, only the input", "linear", {{{3, 5}}, unwanted({5, 2}), unwanted({2})}},
      {"linear, only the weight", "linear", {unwanted({3, 5}), {{5, 2}}, unwanted({2})}},
      {"linear, only the bias", "linear", {unwanted({3, 5}), unwanted({5, 2}), {{2}}}},
      {"gelu tanh", "gelu", {{{3, 7}}}, text("approximate", "tanh")},
      {"gelu exact", "gelu", {{{3, 7}}}, text("approximate", "none")},
      {"relu", "relu", {{{3, 7}}}},
      {"tanh", "tanh", {{{3, 7}}}},
      {"layernorm", "layernorm", {{{2, 3, 7}}, {{7}}, {{7}}}},
      {"layernorm with a large eps", "layernorm", {{{3, 5}}, {{5}}, {{5}}}, make_attrs({{"eps", 0.5}})},
      {"layernorm, only gamma", "layernorm", {unwanted({3, 5}), {{5}}, unwanted({5})}},
      {"silu_mul", "silu_mul", {{{3, 7}}, {{3, 7}}}},
      {"silu_mul of a value with itself", "silu_mul", {{{3, 5}}}, {}, {0, 0}},
      {"silu_mul, only the gate", "silu_mul", {{{3, 7}}, unwanted({3, 7})}},
      {"rmsnorm", "rmsnorm", {{{2, 3, 7}}, {{7}}}},
      {"rmsnorm with a large eps", "rmsnorm", {{{3, 5}}, {{5}}}, make_attrs({{"eps", 0.5}})},
      {"rmsnorm, only gamma", "rmsnorm", {unwanted({3, 5}), {{5}}}},
      {"rotary", "rotary", {{{2, 3, 13 * 4}}}, rotated(9)},
      {"rotary back", "rotary", {{{2, 3, 4}}}, make_attrs({{"size", 4}, {"heads", 1}, {"inverse", 1}})},
      {"rotary of a part", "rotary", {{{2, 3, 3 * 8 + 2 * 8}}}, make_attrs({{"size", 8}, {"heads", 3}, {"part", 6}})},
      {"rotary, scaled", "rotary", {{{2, 3, 8}}}, llama3_scaled()},
      {"rotary of neighbors", "rotary", {{{2, 3, 16}}}, make_attrs({{"size", 8}, {"heads", 1}, {"interleaved", 1}})},
      {"rotary, YaRN", "rotary", {{{2, 3, 8}}}, yarn_scaled()},
      {"rotary at positions", "rotary_at", {{{2, 3, 12}}, integers({2, 3}, 900)}, yarn_scaled()},
      {"rotary back at positions", "rotary_at", {{{2, 3, 8}}, integers({2, 3}, 9)}, longrope_scaled()},
      {"dropout", "dropout", {{{2, 3, 7}}}, make_attrs({{"p", 0.3}, {"key", 2}})},
      {"embedding", "embedding", {integers({2, 6}, 4), {{4, 3}}}},
      {"embedding with positions", "embedding", {integers({2, 5}, 4), {{4, 3}}, {{7, 3}}}},
      {"embedding, only positions", "embedding", {integers({2, 5}, 4), unwanted({4, 3}), {{5, 3}}}},
      {"embedding of a split table", "embedding", {integers({2, 6}, 16), {{4, 3}}}, text("axis", "dp")},
      {"positions", "positions", {{{2, 6, 3}}, {{7, 3}}}},
      {"positions of a rank", "positions", {{{2, 6, 3}}, {{24, 3}}}, text("tokens_axis", "dp")},
      {"positions of two chunks", "positions", {{{2, 6, 3}}, {{25, 3}}}, two_chunks()},
      {"positions, only the table", "positions", {unwanted({2, 6, 3}), {{6, 3}}}},
  };
}

std::vector<Case> attention_cases() {
  return {
      {"attention", "attention", {{{2, 5, 12}}}, heads(2, false)},
      {"attention with shared keys", "attention", {{{2, 5, 16}}}, shared_heads(4, 2, true)},
      {"attention with one head of keys", "attention", {{{1, 4, 10}}}, shared_heads(3, 1, false)},
      {"attention causal", "attention", {{{2, 5, 18}}}, heads(3, true)},
      {"attention of one head, one token", "attention", {{{1, 1, 9}}}, heads(1, true)},
      {"attend with shared keys", "attend", {{{2, 3, 12}}, {{2, 5, 6}}, {{2, 5, 8}}}, shared_heads(4, 2, false)},
      {"attend causal", "attend", {{{2, 5, 6}}, {{2, 5, 6}}, {{2, 5, 10}}}, heads(2, true)},
      {"attend in a window, capped",
       "attend",
       {{{1, 6, 6}}, {{1, 6, 6}}, {{1, 6, 4}}},
       make_attrs({{"heads", 2}, {"window", 2}, {"softcap", 0.7}, {"scale", 0.9}})},
      {"attend in spans",
       "attend",
       {{{2, 3, 4}}, {{2, 5, 4}}, {{2, 5, 4}}, integers({2, 3, 2}, 6)},
       make_attrs({{"heads", 2}, {"spans", 1}})},
      {"attend with a mask",
       "attend",
       {{{2, 3, 4}}, {{2, 5, 4}}, {{2, 5, 4}}, integers({2, 3, 5}, 2)},
       make_attrs({{"heads", 2}, {"masked", 1}})},
      {"attend, only v", "attend", {unwanted({2, 3, 4}), unwanted({2, 5, 4}), {{2, 5, 4}}}, heads(2, false)},
  };
}

std::vector<Case> expert_cases() {
  return {
      {"route", "route", {{{2, 3, 5}}}, make_attrs({{"k", 3}})},
      {"route, not divided",
       "route",
       {{{2, 3, 5}}},
       routing("softmax", {{"k", 2}, {"renormalise", 0}, {"factor", 1.5}})},
      {"route by sigmoids", "route", {{{2, 3, 5}}}, routing("sigmoid", {{"k", 2}, {"factor", 2.5}, {"capacity", 1}})},
      {"route by sigmoids, not divided", "route", {{{2, 3, 5}}}, routing("sigmoid", {{"k", 3}, {"renormalise", 0}})},
      {"route with a bias and groups",
       "route",
       {{{2, 3, 6}}, unwanted({6})},
       routing("sigmoid", {{"k", 3}, {"groups", 3}, {"groups_kept", 2}, {"biased", 1}})},
      {"route to all", "route", {{{1, 4, 3}}}, make_attrs({{"k", 3}, {"capacity", 2}})},
      {"dispatch", "dispatch", {{{2, 3, 4}}, slots()}, make_attrs({{"experts", 3}, {"capacity", 3}})},
      {"dispatch of a round",
       "dispatch",
       {{{2, 3, 4}}, places()},
       make_attrs({{"experts", 3}, {"capacity", 2}, {"round", 1}})},
      {"combine of a round",
       "combine",
       {{{3, 2, 4}}, places(), {{6, 2}}},
       make_attrs({{"batch", 2}, {"tokens", 3}, {"round", 0}})},
      {"combine of a round, added to others",
       "combine",
       {{{3, 2, 4}}, places(), {{6, 2}}, {{2, 3, 4}}},
       make_attrs({{"batch", 2}, {"tokens", 3}, {"round", 1}})},
      {"expert_linear of a round",
       "expert_linear",
       {{{2, 4, 5}}, {{2, 5, 4}}, given({2, 2}, {3, 2, 6, 0})},
       make_attrs({{"round", 1}})},
      {"expert_activation", "expert_activation", {{{2, 4, 5}}, given({2, 1}, {3, 4})}},
      {"expert_activation of two", "expert_activation", {{{2, 4, 5}}, {{2, 4, 5}}, given({2, 1}, {3, 4})}},
      {"pack_rows", "pack_rows", {{{2, 4, 3}}, given({2, 2}, {3, 2, 6, 0})}, make_attrs({{"round", 1}})},
      {"unpack_rows", "unpack_rows", {{{2, 2, 2, 3}}, given({2, 2}, {3, 2, 6, 0})}, make_attrs({{"round", 1}})},
      {"combine", "combine", {{{3, 3, 4}}, slots(), {{6, 2}}}, make_attrs({{"batch", 2}, {"tokens", 3}})},
      {"combine, only the weights",
       "combine",
       {unwanted({3, 3, 4}), slots(), {{6, 2}}},
       make_attrs({{"batch", 2}, {"tokens", 3}})},
      {"expert_linear", "expert_linear", {{{2, 4, 5}}, {{2, 5, 4}}, given({2, 2}, {1, 2, 2, 0})}},
      {"expert_linear, only the weight", "expert_linear", {unwanted({2, 3, 5}), {{2, 5, 4}}, given({2, 1}, {3, 2})}},
  };
}

// Cases of losses and of elementwise ops between layers.
std::vector<Case> loss_and_elementwise_cases() {
  return {
      {"cross_entropy", "cross_entropy", {{{2, 3, 7}}, integers({2, 3}, 7)}, scaled(0.3)},
      {"cross_entropy with shares, smoothed",
       "cross_entropy",
       {{{2, 3, 7}}, integers({2, 3}, 7), unwanted({2, 3})},
       make_attrs({{"scale", 0.3}, {"label_smoothing", 0.2}})},
      {"cross_entropy_finish", "cross_entropy_finish", split_loss(), scaled(0.3), {1, 0, 2, 3}, split_loss_before()},
      {"cross_entropy_finish with padding",
       "cross_entropy_finish",
       split_loss(),
       make_attrs({{"scale", 0.3}, {"vocab", 5}}),
       {1, 0, 2, 3},
       split_loss_before()},
      {"cross_entropy_finish of a rank",
       "cross_entropy_finish",
       split_loss(),
       make_attrs({{"scale", 0.3}, {"vocab", 19}, {"axis", "dp"}}),
       {1, 0, 2, 3},
       split_loss_before()},
      {"mse", "mse", {{{3, 5}}, unwanted({3, 5})}, scaled(0.3)},
      {"mse of two wanted", "mse", {{{3, 5}}, {{3, 5}}}, scaled(0.3)},
      {"mean_square", "mean_square", {{{3, 5}}}, scaled(0.3)},
      {"mean", "mean", {{{3, 5}}}, scaled(0.3)},
      {"bce", "bce", {{{3, 5}}, unwanted({3, 5})}, scaled(0.3)},
      {"kl", "kl", {{{3, 5}}, unwanted({3, 5})}, make_attrs({{"scale", 0.3}, {"temperature", 1.7}})},
      {"logsumexp", "logsumexp", {{{2, 3, 5}}}},
      {"squares", "squares", {{{3, 5}}}},
      {"softmax_sums", "softmax_sums", {{{2, 3, 5}}}},
      {"softmax_sums of documents",
       "softmax_sums",
       {{{1, 3, 5}}, given({1, 3, 2}, {0, 2, 0, 2, 2, 3})},
       make_attrs({{"runs", 1}})},
      {"add", "add", {{{3, 5}}, {{3, 5}}}},
      {"add of a value to itself", "add", {{{3, 5}}}, {}, {0, 0}},
      {"mul", "mul", {{{3, 5}}, {{3, 5}}}},
      {"mul, only the second", "mul", {unwanted({3, 5}), {{3, 5}}}},
      {"mul of a value with itself", "mul", {{{3, 5}}}, {}, {0, 0}},
      {"scale", "scale", {{{3, 5}}}, make_attrs({{"factor", -1.7}})},
      {"bias", "bias", {{{2, 3, 5}}, {{5}}}},
      {"bias, only b", "bias", {unwanted({3, 5}), {{5}}}},
      {"join_pieces", "join_pieces", {{{3, 2, 4, 5}}}, pieces(3, 1)},
      {"cut_pieces", "cut_pieces", {{{2, 6, 5}}}, pieces(3, 1)},
      {"cast", "cast", {{{3, 5}}}, text("dtype", "f64")},
      {"copy", "copy", {{{3, 5}}}},
  };
}

std::vector<Case> view_cases() {
  const auto list = [](const char* name, std::vector<int64_t> sizes) { return make_attrs({{name, sizes}}); };
  return {
      {"reshape", "reshape", {{{3, 4, 5}}}, list("dims", {6, 10})},
      {"permute", "permute", {{{2, 3, 4, 5}}}, list("order", {2, 0, 3, 1})},
      {"slice", "slice", {{{2, 6, 5}}}, make_attrs({{"dim", 1}, {"start", 2}, {"size", 3}})},
      {"slice to the end", "slice", {{{2, 6}}}, make_attrs({{"dim", 1}, {"start", 4}, {"size", 2}})},
      {"pad", "pad", {{{2, 3, 5}}}, make_attrs({{"dim", 1}, {"before", 1}, {"after", 2}, {"value", 3.0}})},
      {"concat", "concat", {{{2, 3, 5}}, {{2, 1, 5}}, {{2, 4, 5}}}, make_attrs({{"dim", 1}})},
      {"concat of a value with itself", "concat", {{{2, 3}}}, make_attrs({{"dim", 0}}), {0, 0}},
      {"concat, only the second", "concat", {unwanted({2, 3}), {{2, 5}}}, make_attrs({{"dim", 1}})},
      {"expand", "expand", {{{2, 1, 5, 1}}}, list("dims", {2, 3, 5, 4})},
      {"gather_rows", "gather_rows", {{{2, 4, 3}}, integers({2, 6}, 4)}},
      {"gather_rows of single elements", "gather_rows", {{{2, 3, 5}}, integers({2, 3, 2}, 5)}},
      {"gather_rows for all samples", "gather_rows", {{{4, 3}}, integers({6}, 4)}},
  };
}

Attrs program(const char* instructions) { return text("program", instructions); }
Attrs placed(const char* instructions, std::vector<int64_t> over, Shape shape) {
  return make_attrs({{"program", std::string(instructions)}, {"over", over}, {"shape", shape}});
}
Attrs reduction(const char* op, std::vector<int64_t> dims, std::vector<int64_t> kept = {}) {
  return make_attrs({{"op", std::string(op)}, {"dims", dims}, {"kept", kept}});
}
// Positive numbers for both inputs of log, sqrt and pow.
Input positive(Shape shape) {
  std::vector<double> values(static_cast<size_t>(element_count(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.3 + 0.17 * static_cast<double>(i * 7 % 11);
  return {std::move(shape), true, Dtype::f64, 0, values};
}

// Cases of functions with broadcasting, and of ops that combine elements of some dims.
std::vector<Case> arithmetic_cases() {
  std::vector<Case> all = {
      {"add a vector", "pointwise", {{{2, 3, 5}}, {{5}}}, program("add x0 x1")},
      {"multiply by a column", "pointwise", {{{2, 3, 5}}, {{3, 1}}}, program("mul x0 x1")},
      {"an outer product", "pointwise", {{{3, 1}}, {{5}}}, program("mul x0 x1")},
      {"divide", "pointwise", {{{3, 5}}, positive({1, 5})}, program("div x0 x1")},
      {"divide by itself and more", "pointwise", {{{3, 5}}}, program("mul x0 x0; add r0 2; div x0 r1")},
      {"pow", "pointwise", {positive({3, 5}), positive({3, 5})}, program("pow x0 x1")},
      {"a number to a power", "pointwise", {{{3, 5}}}, program("pow 1.7 x0")},
      {"log and roots",
       "pointwise",
       {positive({3, 5})},
       program("log x0; sqrt x0; rsqrt x0; mul r1 r2; add r0 r1; add r4 r2")},
      {"where of a comparison",
       "pointwise",
       {unwanted({3, 5}), {{3, 5}}, {{5}}},
       program("less x0 0.1; mul x1 x2; where r0 r1 x2")},
      {"minimum and maximum", "pointwise", {{{3, 5}}, {{3, 5}}, {{5}}}, program("minimum x0 x1; maximum r0 x2")},
      {"gelu by parts", "pointwise", {{{3, 5}}}, program("mul x0 1.702; sigmoid r0; mul x0 r1")},
      {"a program over all dims of one input", "pointwise", {{{2, 5}}, {{3}}}, placed("mul x0 x1", {5, 2}, {2, 3, 5})},
      {"only the second", "pointwise", {unwanted({3, 5}), {{5}}}, program("sub x0 x1; mul r0 r0")},
      {"sum", "reduce_dims", {{{2, 3, 5}}}, reduction("sum", {0, 2})},
      {"mean, kept", "reduce_dims", {{{2, 3, 5}}}, reduction("mean", {1}, {1})},
      {"mean of the inner dims", "reduce_dims", {{{2, 3, 5}}}, reduction("mean", {1, 2})},
      {"max", "reduce_dims", {{{2, 3, 5}}}, reduction("max", {1})},
      {"max of all", "reduce_dims", {{{3, 5}}}, reduction("max", {0, 1}, {0, 1})},
      {"softmax", "softmax", {{{2, 3, 5}}}},
      {"softmax in a window", "softmax", {{{2, 5, 5}}}, make_attrs({{"causal", 1}, {"window", 2}})},
      {"log_softmax", "softmax", {{{3, 5}}}, make_attrs({{"log", 1}})},
      {"cumsum", "cumsum", {{{2, 3, 5}}}, make_attrs({{"dim", 1}})},
      {"cumsum from the end", "cumsum", {{{3, 5}}}, make_attrs({{"dim", 1}, {"reverse", 1}})},
      {"matmul", "matmul", {{{2, 3, 5}}, {{2, 5, 4}}}},
      {"matmul, first transposed", "matmul", {{{2, 5, 3}}, {{2, 5, 4}}}, make_attrs({{"transpose_a", 1}})},
      {"matmul, second transposed", "matmul", {{{2, 3, 5}}, {{2, 4, 5}}}, make_attrs({{"transpose_b", 1}})},
      {"matmul, both transposed",
       "matmul",
       {{{2, 5, 3}}, {{2, 4, 5}}},
       make_attrs({{"transpose_a", 1}, {"transpose_b", 1}})},
      {"matmul, only the second", "matmul", {unwanted({2, 3, 5}), {{2, 5, 4}}}},
  };
  all.push_back({"a reciprocal", "pointwise", {positive({3, 5})}, program("div 1 x0")});
  for (const char* one :
       {"exp x0", "abs x0", "sin x0", "cos x0", "sigmoid x0", "tanh x0", "softplus x0", "relu x0", "sub 1 x0"})
    all.push_back({one, "pointwise", {{{3, 5}}}, program(one)});
  return all;
}

Attrs windows(std::vector<int64_t> stride, std::vector<int64_t> padding, std::vector<int64_t> dilation = {1, 1}) {
  return make_attrs({{"stride", stride}, {"padding", padding}, {"dilation", dilation}});
}
Attrs grouped(Attrs attrs, int64_t groups) {
  attrs.set("groups", groups);
  return attrs;
}
Attrs pooled(const char* op, std::vector<int64_t> kernel, std::vector<int64_t> stride, std::vector<int64_t> padding) {
  return make_attrs({{"op", std::string(op)}, {"kernel", kernel}, {"stride", stride}, {"padding", padding}});
}

std::vector<Case> window_cases() {
  Attrs transposed = windows({2, 1}, {1, 0});
  transposed.set("output_padding", std::vector<int64_t>{1, 0});
  Attrs inside = pooled("mean", {3, 3}, {2, 2}, {1, 1});
  inside.set("count_padding", 0);
  return {
      {"conv", "conv", {{{2, 3, 4, 5}}, {{4, 3, 3, 2}}, {{4}}}},
      {"conv with a stride", "conv", {{{2, 2, 6, 5}}, {{3, 2, 3, 3}}}, windows({2, 1}, {1, 0})},
      {"conv dilated", "conv", {{{1, 2, 6, 7}}, {{3, 2, 3, 3}}, {{3}}}, windows({1, 1}, {2, 1}, {2, 3})},
      {"conv in groups", "conv", {{{2, 4, 4, 3}}, {{6, 2, 3, 3}}, {{6}}}, grouped(windows({1, 1}, {1, 1}), 2)},
      {"conv depthwise", "conv", {{{2, 3, 4, 4}}, {{3, 1, 3, 3}}}, grouped(windows({1, 2}, {1, 1}), 3)},
      {"conv in one dim",
       "conv",
       {{{2, 3, 9}}, {{4, 3, 3}}, {{4}}},
       make_attrs({{"stride", std::vector<int64_t>{2}}, {"padding", std::vector<int64_t>{1}}})},
      {"conv, only the image", "conv", {{{1, 2, 4, 4}}, unwanted({3, 2, 2, 2}), unwanted({3})}},
      {"conv, only the weight", "conv", {unwanted({1, 2, 4, 4}), {{3, 2, 2, 2}}, unwanted({3})}},
      {"conv, only the bias", "conv", {unwanted({1, 2, 4, 4}), unwanted({3, 2, 2, 2}), {{3}}}},
      {"conv_transpose", "conv_transpose", {{{2, 4, 3, 4}}, {{4, 2, 3, 3}}}, transposed},
      {"conv_transpose in groups", "conv_transpose", {{{1, 4, 3, 4}}, {{4, 2, 3, 3}}}, grouped(transposed, 2)},
      {"conv_transpose, only the weight", "conv_transpose", {unwanted({1, 4, 3, 4}), {{4, 2, 3, 3}}}, transposed},
      {"maxima", "pooling", {{{2, 2, 5, 6}}}, pooled("max", {3, 2}, {2, 2}, {1, 0})},
      {"means", "pooling", {{{2, 2, 5, 6}}}, pooled("mean", {3, 2}, {2, 2}, {1, 0})},
      {"means of what is inside", "pooling", {{{1, 2, 5, 6}}}, inside},
  };
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto more : {layer_cases, attention_cases, expert_cases, window_cases, view_cases, arithmetic_cases,
                          loss_and_elementwise_cases})
    for (Case& one : more()) all.push_back(std::move(one));
  return all;
}

TEST(Gradient, EveryRuleAgreesWithFiniteDifferences) {
  for (const Case& c : cases()) check(c);
}

TEST(Gradient, EveryOpWithARuleHasACase) {
  std::set<std::string_view> covered;
  for (const Case& c : cases()) covered.insert(c.kind);
  covered.insert("take_piece");  // its derivative communicates, see below
  for (const OpDef* op : all_ops()) {
    if (op->op_class != OpClass::compute && op->op_class != OpClass::host) continue;
    EXPECT_EQ(op->derive != nullptr, covered.count(op->name) != 0) << op->name;
  }
}

}  // namespace
}  // namespace prun
