// Rewrites the model graph for the next tokens of a sequence instead of whole samples. Attention and rotary become ops
// that take positions and hold a KV cache, position embeddings become a lookup, dropout and the loss are dropped.
//
// Surprising fact: every other op processes each token independently, so that only the shapes change; a model with any
// other op is rejected (plan_error).
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "compile/compile_state.h"
#include "compile/generation.h"
#include "ir/batch_inputs.h"
#include "ir/ops.h"

namespace prun {
namespace {

const OpDef* const kByToken[] = {&ops::linear, &ops::bias,     &ops::gelu,      &ops::relu,
                                 &ops::tanh,   &ops::silu_mul, &ops::layernorm, &ops::rmsnorm,
                                 &ops::route,  &ops::dispatch, &ops::combine,   &ops::expert_linear,
                                 &ops::add,    &ops::mul,      &ops::scale,     &ops::expert_activation};

ValueId input_of(const Graph& graph, std::string_view name) {
  for (const ValueId id : graph.values.ids())
    if (graph.values[id].kind == ValueKind::input && graph.values[id].name == name) return id;
  return -1;
}

// Returns the loss that compares logits with the next tokens; null: the model has none.
const Node* find_loss(const Graph& graph) {
  const ValueId targets = input_of(graph, "targets");
  for (const Node& node : graph.nodes)
    if (node.op == &ops::cross_entropy && node.inputs[1] == targets && !input_of(graph, "tokens").none()) return &node;
  return nullptr;
}

const Node& loss_of(const Graph& graph) {
  const Node* loss = find_loss(graph);
  PRUN_CHECK(loss != nullptr, "generation_plan accepts only language models");
  return *loss;
}

class Decoder {
 public:
  Decoder(Graph& graph, int64_t tokens, int64_t text, bool sample)
      : graph_(graph), sample_(sample), tokens_(tokens), text_(text) {}

  void run() {
    const Node loss = loss_of(graph_);
    const ValueId tokens = input_of(graph_, "tokens");
    context_ = graph_.values[tokens].type.shape.at(1);
    graph_.values[tokens].type.shape = {1, tokens_};
    positions_ = graph_.values.next();
    Value positions = graph_.values[tokens];
    positions.name = kPositions;
    graph_.values.push_back(std::move(positions));
    const std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (const Node* node : ancestors(nodes, loss.inputs[0])) take(*node);
    Attrs sampled;
    if (loss.attrs.has("vocab")) sampled.set("vocab", loss.attrs.integer("vocab"));
    if (sample_) add(ops::sample_token, {now(loss.inputs[0])}, std::move(sampled), loss, {});
    drop_unread();
    graph_.loss = now(loss.inputs[0]);  // the graph's result, for dumps
  }

 private:
  // Returns the nodes that compute the value, without those of losses and metrics.
  static std::vector<const Node*> ancestors(const std::vector<Node>& nodes, ValueId value) {
    std::set<ValueId> wanted = {value};
    std::vector<const Node*> kept;
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      if (std::ranges::none_of(node->outputs, [&](ValueId output) { return wanted.contains(output); })) continue;
      wanted.insert(node->inputs.begin() + (node->op == &ops::by_phase ? 1 : 0), node->inputs.end());
      kept.push_back(&*node);
    }
    std::ranges::reverse(kept);
    return kept;
  }

  ValueId now(ValueId value) const {
    const auto found = now_.find(value);
    return found == now_.end() ? value : found->second;
  }

  // Adds op `op` with the call and site of `like`; values for missing outputs are created.
  ValueId add(const OpDef& op, std::vector<ValueId> inputs, Attrs attrs, const Node& like,
              std::vector<ValueId> outputs) {
    Node node{&op, std::move(inputs), std::move(outputs), std::move(attrs), like.call, like.site};
    std::vector<TensorType> types;
    for (const ValueId input : node.inputs) types.push_back(graph_.values[input].type);
    try {
      types = op.infer ? op.infer(types, node.attrs) : std::vector<TensorType>();
    } catch (const Error& error) {
      throw plan_error(fmt::format("token by token: {}", error.message()), like.site);
    }
    for (size_t i = 0; i < types.size(); ++i) {
      if (i == node.outputs.size()) {
        Value value;
        value.name = fmt::format("{}.{}", graph_.values[like.outputs[0]].name, i == 0 ? op.name : "cache");
        value.site = like.site;
        node.outputs.push_back(graph_.values.next());
        graph_.values.push_back(std::move(value));
      }
      graph_.values[node.outputs[i]].type = types[i];
    }
    const ValueId first = node.outputs.empty() ? ValueId() : node.outputs[0];
    graph_.nodes.push_back(std::move(node));
    return first;
  }

  void take(const Node& node) {
    std::vector<ValueId> inputs;
    for (const ValueId input : node.inputs) inputs.push_back(now(input));
    Attrs attrs = node.attrs;
    if (attrs.integer("round") > 0) return;  // round 0 has a slot for each token
    attrs.erase("round");
    if (node.op == &ops::combine) inputs.resize(3);
    if (node.op == &ops::dropout) {
      now_[node.outputs[0]] = inputs[0];
    } else if (node.op == &ops::by_phase) {
      now_[node.outputs[0]] = inputs[1];
    } else if (node.op == &ops::attention) {
      if (attrs.integer("causal") == 0)
        throw plan_error("this attention sees tokens that come after (causal = false): such a model continues no text",
                         node.site);
      attrs.erase("causal");
      attrs.set("context", text_);
      add(ops::cached_attention, {inputs[0], positions_}, std::move(attrs), node, {node.outputs[0]});
    } else if (node.op == &ops::attend) {
      take_attend(node, inputs);
    } else if (node.op == &ops::rotary ||
               (node.op == &ops::rotary_at && graph_.values[inputs[1]].kind == ValueKind::input)) {
      // Positions from data restart at each document; the text of a generation is one.
      add(ops::rotary_at, {inputs[0], positions_}, std::move(attrs), node, node.outputs);
    } else if (node.op == &ops::embedding && inputs.size() > 2) {
      const ValueId rows = add(ops::embedding, {inputs[0], inputs[1]}, attrs, node, {});
      attrs.erase("valid");  // belongs to the token table
      const ValueId places = add(ops::embedding, {positions_, inputs[2]}, attrs, node, {});
      add(ops::add, {rows, places}, {}, node, node.outputs);
    } else if (node.op == &ops::embedding || std::ranges::find(kByToken, node.op) != std::end(kByToken)) {
      if (node.op == &ops::route || node.op == &ops::dispatch) attrs.set("capacity", int64_t{0});
      if (node.op == &ops::combine) attrs.set("batch", int64_t{1}), attrs.set("tokens", tokens_);
      add(*node.op, std::move(inputs), std::move(attrs), node, node.outputs);
    } else if (keeps_tokens(node, attrs)) {
      add(*node.op, std::move(inputs), std::move(attrs), node, node.outputs);
      require_tokens(node);
    } else {
      throw plan_error(
          fmt::format("{} does not work on each token by itself: prun generate cannot run it", node.op->name),
          node.site);
    }
  }

  // Returns whether the op computes dims 0 and 1, samples and tokens, independently. Sizes in its attributes become
  // those of the tokens that are decoded.
  bool keeps_tokens(const Node& node, Attrs& attrs) const {
    const OpDef& op = *node.op;
    const Shape& y = graph_.values[node.outputs[0]].type.shape;
    if (y.size() < 2 || y[1] != context_) return false;
    for (const char* name : {"dims", "shape"}) {
      if (!attrs.has(name) || &op == &ops::reduce_dims) continue;
      std::vector<int64_t> sizes = attrs.integers(name);
      if (sizes.size() < 2 || sizes[1] != context_) return false;
      sizes[0] = 1, sizes[1] = tokens_;
      attrs.set(name, sizes);
    }
    const auto after_tokens = [](int64_t dim) { return dim >= 2; };
    if (&op == &ops::slice || &op == &ops::pad || &op == &ops::concat || &op == &ops::cumsum)
      return after_tokens(attrs.integer("dim"));
    if (&op == &ops::reduce_dims) return std::ranges::all_of(attrs.integers("dims"), after_tokens);
    if (&op == &ops::permute) {
      const std::vector<int64_t> order = attrs.integers("order");
      return order[0] == 0 && order[1] == 1;
    }
    if (&op == &ops::softmax) return y.size() > 2 && !attrs.has("causal") && !attrs.has("window");
    return &op == &ops::pointwise || &op == &ops::reshape || &op == &ops::expand;
  }

  // Rejects an op whose operand has a size of a whole sample, such as a parameter with a row for each position.
  void require_tokens(const Node& node) const {
    const Shape& y = graph_.values[node.outputs[0]].type.shape;
    if (y[0] == 1 && y[1] == tokens_) return;
    throw plan_error(fmt::format("{} combines tokens with a value that has {} of them: prun generate cannot run it; "
                                 "use nn.embedding for positions",
                                 node.op->name, context_),
                     node.site);
  }

  // An attention with separate q, k and v continues a text if it is one that a fused qkv could have.
  void take_attend(const Node& node, const std::vector<ValueId>& inputs) {
    const Attrs& attrs = node.attrs;
    const int64_t heads = attrs.integer("heads", 1), kv_heads = attrs.integer("kv_heads", heads);
    for (const char* rule : {"masked", "spans", "window", "softcap", "scale"})
      if (attrs.has(rule))
        throw plan_error(fmt::format("prun generate cannot run an attention with {}", rule), node.site);
    if (attrs.integer("causal") == 0)
      throw plan_error("this attention sees tokens that come after (causal = false): such a model continues no text",
                       node.site);
    const auto columns = [&](size_t i) { return graph_.values[inputs[i]].type.shape.back(); };
    if (columns(1) != columns(2))
      throw plan_error(fmt::format("prun generate cannot run an attention whose heads of k have {} elements and those "
                                   "of v {}",
                                   columns(1) / kv_heads, columns(2) / kv_heads),
                       node.site);
    Attrs joined, cached;
    joined.set("dim", int64_t{2});
    const ValueId qkv = add(ops::concat, inputs, std::move(joined), node, {});
    cached.set("heads", heads);
    cached.set("kv_heads", kv_heads);
    cached.set("context", text_);
    add(ops::cached_attention, {qkv, positions_}, std::move(cached), node, {node.outputs[0]});
  }

  // Drops nodes that reach neither a sample_token nor a KV cache, such as the last layer's MLP during prefill.
  void drop_unread() {
    std::set<ValueId> read;
    std::vector<Node> kept;
    for (auto node = graph_.nodes.rbegin(); node != graph_.nodes.rend(); ++node) {
      const bool wanted = node->op == &ops::cached_attention || node->op == &ops::sample_token ||
                          std::ranges::any_of(node->outputs, [&](ValueId value) { return read.contains(value); });
      if (!wanted) continue;
      read.insert(node->inputs.begin(), node->inputs.end());
      kept.push_back(std::move(*node));
    }
    std::ranges::reverse(kept);
    graph_.nodes = std::move(kept);
  }

  Graph& graph_;
  const bool sample_;
  const int64_t tokens_, text_;
  int64_t context_ = 0;  // tokens of a sample in training
  ValueId positions_;
  std::map<ValueId, ValueId> now_;  // value -> its replacement
};

}  // namespace

int64_t context_of(const Graph& graph) {
  loss_of(graph);
  return graph.values[input_of(graph, "tokens")].type.shape.at(1);
}

int64_t vocabulary_of(const Graph& graph) { return graph.values[loss_of(graph).inputs[0]].type.shape.back(); }

void decode_graph(Graph& graph, int64_t tokens, int64_t text, bool sample) {
  Decoder(graph, tokens, text, sample).run();
}

int64_t text_of(const Plan& plan, const Generation& generation) { return generation.prompt + plan.steps - 1; }

void decode(CompileState& state) { decode_graph(state.graph, 1, text_of(state.plan, *state.options.generation), true); }

Plan generation_plan(Plan plan, const Generation& generation) {
  if (!plan.programs.empty())
    throw plan_error("a plan that lists its program op by op has no model to continue a text with", plan.mesh_site);
  const Site& site = plan.data.site;
  if (find_loss(plan.graph) == nullptr)
    throw plan_error(
        "prun generate needs a language model, and this plan's reads no batch.tokens or its loss is not "
        "prun.losses.cross_entropy of batch.targets",
        site);
  const int64_t context = context_of(plan.graph);
  if (generation.prompt > context)
    throw plan_error(
        fmt::format("the prompt has {}, the model's context is {}", counted(generation.prompt, "token"), context),
        site);
  const int64_t room = context - generation.prompt + 1;
  if (generation.tokens > room)
    throw plan_error(fmt::format("the prompt has {} and the model's context is {}: at most {} more can be made, "
                                 "not {} (--tokens)",
                                 counted(generation.prompt, "token"), context, room, generation.tokens),
                     site);
  plan.steps = generation.tokens > 0 ? generation.tokens : std::min(room, kUsualTokens);
  plan.microbatches = 1;
  plan.evaluation.reset();
  plan.report.reset();
  plan.keeping.reset();
  plan.pipeline.reset();
  plan.batch_axes.clear();
  plan.optimizer.op = &ops::sgd;  // has no state
  plan.optimizer.numbers = {};
  plan.optimizer.others.clear();
  for (ParameterGroup& group : plan.optimizer.groups) group.optimizer = 0;
  plan.optimizer.clip = plan.optimizer.ema = 0;
  for (Strategy& strategy : plan.strategies)
    for (StrategyUnit& unit : strategy.units) {
      unit.activations.clear();  // too few tokens to split
      unit.hooks.clear();
      unit.sync.clear();
      unit.sync_every = 0;
      unit.sharded = unit.accumulate = unit.recompute = unit.offload = false;
    }
  return plan;
}

}  // namespace prun
