// Context parallelism: each of c ranks holds two of the 2c chunks of every sample, one from each end, so that causal
// attention costs the same on all ranks; with share = "documents" the chunks differ from sample to sample. Attention
// becomes ring attention (Liu et al. 2023, "Ring Attention"), attention inside documents gathers all keys; all other
// ops process the rank's tokens only.
//
// Surprising fact: inputs by name do not declare which of them have tokens. Dim 1 of a value is tokens if an attention,
// a rotary or a table of embeddings reads or writes the value, or if an op combines it with such a value.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/text.h"
#include "compile/distributor.h"
#include "compile/view_dims.h"
#include "ir/batch_inputs.h"
#include "ir/ops.h"
#include "ir/ops/rules.h"

namespace prun {
namespace {

// Finds the values whose dim 1 is the tokens of a sample.
class TokenValues {
 public:
  TokenValues(const Graph& graph, bool text) : graph_(graph), marked_(graph.values.size(), 0) {
    for (const ValueId id : graph.values.ids()) {
      const Value& input = graph.values[id];
      if (text && input.kind == ValueKind::input && (input.name == "tokens" || input.name == "targets")) mark(id);
    }
    for (const Node& node : graph.nodes) {
      const bool attends = node.op == &ops::attention || node.op == &ops::attend;
      const bool rotates = node.op == &ops::rotary || node.op == &ops::rotary_at;
      if (attends || rotates || node.op == &ops::embedding || node.op == &ops::positions)
        mark(node.inputs[0]), mark(node.outputs[0]);
    }
    while (spread()) {
    }
  }
  bool has(ValueId id) const { return marked_[id] != 0; }

 private:
  bool may_have(ValueId id) const {
    return graph_.values[id].kind != ValueKind::parameter && graph_.values[id].type.shape.size() >= 2;
  }
  void mark(ValueId id) { marked_[id] = may_have(id) ? 1 : 0; }

  // Marks the operands that have the samples and tokens of a marked one; returns whether it marked any.
  bool spread() {
    bool any = false;
    for (const Node& node : graph_.nodes) {
      std::vector<ValueId> operands = node.inputs;
      operands.insert(operands.end(), node.outputs.begin(), node.outputs.end());
      const auto found = std::find_if(operands.begin(), operands.end(), [&](ValueId id) { return has(id); });
      if (found == operands.end()) continue;
      const Shape& tokens = graph_.values[*found].type.shape;
      for (const ValueId id : operands) {
        if (has(id) || !may_have(id)) continue;
        const Shape& shape = graph_.values[id].type.shape;
        if (shape[0] != tokens[0] || shape[1] != tokens[1]) continue;
        mark(id);
        any = true;
      }
    }
    return any;
  }

  const Graph& graph_;
  Table<ValueId, char> marked_;
};

class TokenSplitter {
 public:
  TokenSplitter(CompileState& state, const Strategy& strategy)
      : state_(state),
        strategy_(strategy),
        axis_(strategy.axes.front()),
        ranks_(state.plan.mesh.size(axis_)),
        tokens_(state.graph, state.plan.data.context > 0) {}

  void run() {
    if (strategy_.share == "documents" && state_.plan.data.capacity == 0)
      throw plan_error(
          "share = \"documents\" divides packed documents; the data of this plan are none (pack = "
          "\"documents\")",
          strategy_.site);
    split_inputs();
    follows_ = std::ranges::any_of(state_.graph.nodes, [](const Node& node) { return is_view(*node.op); });
    const std::vector<Node> nodes = std::move(state_.graph.nodes);
    state_.graph.nodes.clear();
    for (const Node& node : nodes)
      if (!is_needless_round(node)) rewrite(node);
  }

 private:
  Value& value(ValueId id) { return state_.graph.values[id]; }

  void split_inputs() {
    bool any = false;
    tokens_dim_.resize(state_.graph.values.size(), -1);
    for (const ValueId id : state_.graph.values.ids()) {
      Value& input = state_.graph.values[id];
      if (input.kind != ValueKind::input || !tokens_.has(id)) continue;
      any = true;
      int64_t& tokens = input.type.shape.at(1);
      if (tokens % (2 * ranks_) != 0)
        throw plan_error(fmt::format("{}{} tokens do not divide into the two chunks of each of the {} ranks of axis "
                                     "'{}'; the next number that does is {}",
                                     state_.plan.data.context > 0 ? "" : "input '" + input.name + "': ", tokens, ranks_,
                                     axis_, (tokens / (2 * ranks_) + 1) * 2 * ranks_),
                         strategy_.site);
      tokens /= ranks_;
      tokens_dim_[id] = 1;
    }
    if (!any)
      throw plan_error(fmt::format("axis '{}' divides the tokens of samples, and no input of this model has any (dim 1 "
                                   "of the values that an attention, a rotary or an embedding reads): divide the "
                                   "samples instead (prun.ddp)",
                                   axis_),
                       strategy_.site);
  }

  void add(Node node) {
    if (node.op->infer) {
      std::vector<TensorType> inputs;
      for (ValueId input : node.inputs) inputs.push_back(value(input).type);
      std::vector<TensorType> types = node.op->infer(inputs, node.attrs);
      for (size_t i = 0; i < types.size(); ++i) value(node.outputs[i]).type = types[i];
    }
    state_.graph.nodes.push_back(std::move(node));
  }

  // Returns the dim that counts the tokens of the value; -1 = none.
  int tokens_dim(ValueId id) {
    if (!tokens_dim_.has(id)) tokens_dim_.resize(state_.graph.values.size(), -1);
    return tokens_dim_[id];
  }

  [[noreturn]] void fail(const Node& node, const std::string& text) const {
    throw plan_error(fmt::format("{}, the tokens that axis '{}' of {} ranks splits", text, axis_, ranks_), node.site);
  }

  // Follows the tokens through the node; a view's sizes become a rank's.
  void follow(Node& node) {
    int dim = -1;
    size_t from = 0;
    for (size_t i = node.inputs.size(); i-- > 0;)
      if (const int one = tokens_dim(node.inputs[i]); one >= 0) dim = one, from = i;
    if (dim < 0) return;
    const Shape local = value(node.inputs[from]).type.shape;
    Shape whole = local;
    whole[dim] *= ranks_;
    if (is_view(*node.op)) {
      const Shape y = value(node.outputs[0]).type.shape;
      const bool alike = std::ranges::all_of(node.inputs, [&](ValueId input) { return tokens_dim(input) == dim; });
      std::optional<int> to;
      if (alike && !mixes_rows(state_.graph, node, dim)) to = dim_after(node, whole, dim, y, true);
      if (!to) fail(node, mixing_text(node, dim, whole));
      if (node.attrs.has("dims")) {
        Shape dims = ops::sizes_of(node.attrs, "dims");
        dims[*to] /= ranks_;
        node.attrs.set("dims", dims);
      }
      tokens_dim_[node.outputs[0]] = *to;
      return;
    }
    const bool anywhere = node.op->distribution == Distribution::elementwise || is_arithmetic(*node.op);
    const bool in_rows = node.op == &ops::linear || node.op->distribution == Distribution::by_rows;
    if (!anywhere && dim != 1 && !(in_rows && dim + 1 < std::ssize(local)))
      fail(node, fmt::format("{} reads dim {} of {}", node.op->name, dim, shape_text(whole)));
    if (is_arithmetic(*node.op))
      dim = static_cast<int>(
          dim_after_arithmetic(node, std::ssize(local), std::ssize(value(node.outputs[0]).type.shape), dim));
    for (const ValueId output : node.outputs)
      if (dim < std::ssize(value(output).type.shape)) tokens_dim_[output] = dim;
    if (node.op == &ops::route) tokens_dim_[node.outputs.back()] = -1;  // the experts' numbers of tokens
  }

  int64_t of_a_rank(int64_t slots) const { return (slots + ranks_ - 1) / ranks_; }

  // Returns whether the node is of a round of experts that has no token of any rank: a rank's slots are rounded up, so
  // that fewer rounds may have slots for all of its tokens.
  bool is_needless_round(const Node& node) {
    bool needless = false;
    if (node.op == &ops::dispatch && node.attrs.has("round") && of_route_.contains(node.inputs[1])) {
      const int64_t tokens = value(node.inputs[1]).type.shape[0];
      needless = node.attrs.integer("round") * of_a_rank(node.attrs.integer("capacity")) >= tokens;
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const bool is_sum = node.op == &ops::combine && i == 3;  // of the rounds before
      needless = needless || (!is_sum && needless_.contains(node.inputs[i]));
    }
    if (needless) needless_.insert(node.outputs.begin(), node.outputs.end());
    return needless;
  }

  // Makes the number of rounds that nn.moe counts those of a rank's slots.
  void count_rounds(Node& node) {
    if (std::ranges::none_of(node.inputs, [&](ValueId input) { return of_route_.contains(input); })) return;
    if (node.op == &ops::cast || node.attrs.has("of_rank")) of_route_.insert(node.outputs[0]);
    if (node.op != &ops::pointwise || !node.attrs.has("slots")) return;
    const int64_t slots = of_a_rank(node.attrs.integer("slots"));
    node.attrs.set("slots", slots);
    node.attrs.set("program", fmt::format("add x0 {}; div r0 {}", slots - 1, slots));
  }

  void rewrite(Node node) {
    if (follows_) follow(node);
    count_rounds(node);
    if (node.op == &ops::combine && node.inputs.size() > 3 && needless_.contains(node.inputs[3]))
      node.inputs.pop_back();
    auto own_tokens = [&](Attrs& attrs) {
      attrs.set("tokens_axis", axis_);
      attrs.set("chunks", int64_t{2});
    };
    const auto splits = [&](ValueId id) {
      return follows_ ? tokens_dim(id) >= 0 : id < tokens_end_ && tokens_.has(id);
    };
    if (std::none_of(node.inputs.begin(), node.inputs.end(), splits) &&
        std::none_of(node.outputs.begin(), node.outputs.end(), splits))
      return add(std::move(node));
    if (node.op == &ops::attend && splits(node.inputs[1])) {
      if (stays_in_documents(node)) return add_attend(std::move(node));
      join_qkv(node);
    }
    const OpDef* const op = node.op;
    if (strategy_.share == "documents") require_any_share(node);
    if (op == &ops::attention) {
      node.op = &ops::ring_attention;
      own_tokens(node.attrs);
    } else if (op == &ops::rotary || op == &ops::dropout || op == &ops::positions) {
      own_tokens(node.attrs);
    } else if (op == &ops::write_rows) {
      own_tokens(node.attrs);
      node.attrs.set("once", without(node.attrs.text("once"), axis_));
    } else if (op == &ops::combine) {
      node.attrs.set("tokens", node.attrs.integer("tokens") / ranks_);
    }
    if (op == &ops::route) of_route_.insert(node.outputs.begin(), node.outputs.end());
    if ((op == &ops::route || op == &ops::dispatch || op == &ops::combine) && node.attrs.integer("capacity") > 0)
      node.attrs.set("capacity", of_a_rank(node.attrs.integer("capacity")));
    if (op != &ops::embedding || node.inputs.size() < 3) return add(std::move(node));
    // A rank's tokens are not contiguous, so that a separate op adds the position embeddings.
    Node rows = node, places{&ops::positions, {}, node.outputs, {}, node.call, node.site};
    own_tokens(places.attrs);
    Value sum = value(node.outputs[0]);
    sum.name += ".rows";
    rows.inputs.pop_back();
    rows.outputs = {state_.graph.values.next()};
    state_.graph.values.push_back(std::move(sum));
    places.inputs = {rows.outputs[0], node.inputs[2]};
    add(std::move(rows));
    add(std::move(places));
  }

  // Rejects ops that compute the positions of a rank's tokens from its index.
  void require_any_share(const Node& node) const {
    const OpDef& op = *node.op;
    const bool counts = &op == &ops::attention || &op == &ops::rotary || &op == &ops::dropout ||
                        &op == &ops::positions || &op == &ops::write_rows ||
                        (&op == &ops::embedding && node.inputs.size() > 2);
    if (!counts) return;
    throw plan_error(
        fmt::format("share = \"documents\" gives the ranks of axis '{}' other tokens in each sample, and {} "
                    "takes a token's position from its place: {}",
                    axis_, op.name,
                    &op == &ops::attention ? "write documents = batch.documents"
                    : &op == &ops::dropout ? "use share = \"zigzag\""
                                           : "use batch.positions"),
        node.site);
  }

  bool stays_in_documents(const Node& node) {
    return node.attrs.integer("spans") != 0 && value(node.inputs[3]).kind == ValueKind::input &&
           value(node.inputs[3]).name == kDocuments && node.attrs.integer("masked") == 0 && !node.attrs.has("window");
  }

  // Attention inside documents: a rank's queries attend to the keys of all ranks in the order of the stream (Llama Team
  // 2024, "The Llama 3 Herd of Models", section 3.3.2). Their gradients are reduce-scattered.
  void add_attend(Node node) {
    for (const size_t i : {1, 2}) node.inputs[i] = in_stream_order(node, node.inputs[i]);
    if (node.attrs.integer("causal") != 0) {
      Value seen = value(node.inputs[3]);
      seen.name = kSeen;
      node.inputs[3] = known_input(seen_, std::move(seen));
      node.attrs.set("causal", int64_t{0});  // the rank's queries have other indices in the stream
    }
    add(std::move(node));
  }

  // Returns the keys or values of all ranks in the order of the stream.
  ValueId in_stream_order(const Node& node, ValueId id) {
    const auto [known, fresh] = ordered_.try_emplace(id, ValueId{});
    if (!fresh) return known->second;
    Attrs gather, join, again;
    for (Attrs* attrs : {&gather, &join, &again}) attrs->set("again", int64_t{1});  // backward gathers again
    gather.set("axis", axis_);
    again.set("tokens_axis", axis_);
    join.set("pieces", ranks_);
    join.set("dim", int64_t{1});
    TensorType whole = value(id).type, pieces = whole;
    pieces.shape.insert(pieces.shape.begin(), ranks_);
    whole.shape[1] *= ranks_;
    Value order;
    order.name = kOrder;
    order.type = {Dtype::i32, {whole.shape[0], whole.shape[1]}};
    order.kind = ValueKind::input;
    order.site = node.site;
    const ValueId gathered = emit(node, ops::all_gather, {id}, gather, pieces);
    const ValueId joined = emit(node, ops::join_pieces, {gathered}, join, whole);
    return known->second = emit(node, ops::gather_rows, {joined, known_input(order_, std::move(order))}, again, whole);
  }

  ValueId emit(const Node& node, const OpDef& op, const std::vector<ValueId>& inputs, const Attrs& attrs,
               const TensorType& type) {
    Value made;
    made.name = fmt::format("{}.{}", value(inputs[0]).name, op.name);
    made.type = type;
    made.site = node.site;
    const ValueId id = state_.graph.values.next();
    state_.graph.values.push_back(std::move(made));
    state_.graph.nodes.push_back({&op, inputs, {id}, attrs, node.call, node.site});
    return id;
  }

  // Returns an input that the pass adds to the model once.
  ValueId known_input(std::optional<ValueId>& known, Value input) {
    if (!known) {
      known = state_.graph.values.next();
      state_.graph.values.push_back(std::move(input));
    }
    return *known;
  }

  // Replaces an attention with separate q, k and v by one with a fused qkv, which ring attention can compute. Refuses
  // the rules that a ring does not know.
  void join_qkv(Node& node) {
    for (const auto& [rule, shown] : {std::pair{"masked", "a mask"},
                                      {"window", "a window"},
                                      {"spans", "documents that are computed"},
                                      {"softcap", "a softcap"},
                                      {"scale", "a scale"}})
      if (node.attrs.has(rule))
        throw plan_error(fmt::format("an attention with {} sees the tokens of one rank only, and axis '{}' of {} ranks "
                                     "splits them; a ring of ranks computes attention without it",
                                     shown, axis_, ranks_),
                         node.site);
    if (value(node.inputs[1]).type.shape != value(node.inputs[2]).type.shape)
      throw plan_error(
          fmt::format("the heads of k and v differ in size, and axis '{}' of {} ranks splits their tokens; "
                      "a ring of ranks passes heads of one size",
                      axis_, ranks_),
          node.site);
    Node join{&ops::concat, node.inputs, {state_.graph.values.next()}, {}, node.call, node.site};
    join.attrs.set("dim", int64_t{2});
    Value qkv = value(node.outputs[0]);
    qkv.name += ".qkv";
    state_.graph.values.push_back(std::move(qkv));
    tokens_dim_.resize(state_.graph.values.size(), -1);
    tokens_dim_[join.outputs[0]] = 1;
    node.op = &ops::attention;
    node.inputs = join.outputs;
    add(std::move(join));
  }

  static std::string without(const std::string& axes, const std::string& axis) {
    std::vector<std::string> kept = split(axes, ',');
    std::erase(kept, axis);
    return join(kept, ",");
  }

  CompileState& state_;
  const Strategy& strategy_;
  std::string axis_;
  int64_t ranks_;
  bool follows_ = false;  // the model has views
  Table<ValueId, int> tokens_dim_;
  TokenValues tokens_;                   // of the whole graph
  std::map<ValueId, ValueId> ordered_;   // keys or values of a rank -> those of all ranks
  std::optional<ValueId> seen_, order_;  // added inputs
  std::set<ValueId> of_route_;           // results of routing a rank's tokens, and numbers made of them
  std::set<ValueId> needless_;           // values of needless rounds
  ValueId tokens_end_ = state_.graph.values.next();
};

}  // namespace

void split_tokens(CompileState& state) {
  const Strategy* splits = nullptr;
  for (const Strategy& strategy : state.plan.strategies) {
    if (strategy.splits != Splits::tokens || state.plan.mesh.size(strategy.axes.front()) == 1) continue;
    if (splits != nullptr)
      throw plan_error(fmt::format("axes '{}' and '{}' would both pass keys round a ring; give one axis the ranks of "
                                   "both",
                                   splits->axes.front(), strategy.axes.front()),
                       strategy.site);
    TokenSplitter(state, strategy).run();
    splits = &strategy;
  }
}

}  // namespace prun
