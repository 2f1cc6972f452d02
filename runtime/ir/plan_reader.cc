// Reads the script child's plan, a CBOR document of the schema in plan_reader.h.
//
// Each struct has one `read`: need(name, member) for required members, may(name, member) for members with a default. An
// error here is a bug of a DSL module, because Lua has already caught the user's errors; messages therefore name the
// place in the document ("nodes[3].inputs") and the site of the nearest enclosing struct, a line of the plan.
#include "ir/plan_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/text.h"
#include "ir/attention_blocks.h"
#include "ir/data_source.h"
#include "ir/graph.h"
#include "ir/id_ranges.h"
#include "ir/loss_reader.h"
#include "ir/optimizer_reader.h"
#include "ir/plan_values.h"

namespace prun {
namespace plan_document {

using Json = nlohmann::json;

void read(const Field& field, Dtype& dtype) {
  const std::optional<Dtype> parsed = parse_dtype(field.text());
  if (!parsed) field.fail("a dtype");
  dtype = *parsed;
}

void read(const Field& field, TensorType& type) {
  field.need("dtype", type.dtype);
  field.at("shape").each([&](const Field& dim) {
    type.shape.push_back(dim.integer());
    if (type.shape.back() < 0) dim.fail("a length");
  });
  if (!is_countable(type.shape)) field.at("shape").fail(fmt::format("dims of at most {} elements", kMostElements));
}

// Reads every whole number as an integer, because Attrs::number() also accepts integers.
Attr read_attr(const Field& field) {
  const Json& json = field.json();
  if (json.is_string()) return field.text();
  if (json.is_boolean()) return int64_t{json.get<bool>()};
  if (json.is_number()) return field.whole() ? Attr(field.integer()) : Attr(field.number());
  bool whole = true;
  field.each([&](const Field& item) { whole = whole && item.whole(); });
  std::vector<int64_t> integers;
  std::vector<double> numbers;
  field.each([&](const Field& item) {
    if (whole)
      integers.push_back(item.integer());
    else
      numbers.push_back(item.number());
  });
  if (whole) return integers;
  return numbers;
}

void read(const Field& field, Attrs& attrs) {
  if (field.json().is_array() && field.json().empty()) return;
  if (!field.json().is_object()) field.fail("a table");
  for (const auto& item : field.json().items()) attrs.set(item.key(), read_attr(field.at(item.key().c_str())));
}

void read(const Field& field, const OpDef*& op) {
  op = find_op(field.text());
  if (!op) field.fail("an op's name");
}

void read(const Field& field, Init& init) {
  field.at("kind").word({"zeros", "ones", "constant", "normal", "uniform"});
  field.need("kind", init.kind);
  field.may("scale", init.scale);
}

void read(const Field& field, TargetShares& shares) {
  field.need("targets", shares.targets);
  field.may("weights", shares.weights, "ignored", shares.ignored);
}

Value read_value(const Field& field, size_t units) {
  Value value;
  field.need("name", value.name);
  field.may("init", value.init, "blocks", value.blocks, "site", value.site);
  read(field, value.type);
  value.kind = static_cast<ValueKind>(field.at("kind").word({"input", "parameter", "activation"}));
  if (field.has("unit")) value.unit = field.at("unit").index(units, -1);
  if (field.has("shares")) read(field.at("shares"), value.shares.emplace());
  field.may("buffer", value.buffer);
  value.frozen = value.buffer;
  const int64_t width = value.type.shape.empty() ? 1 : value.type.shape.back();
  if (field.has("blocks") && std::accumulate(value.blocks.begin(), value.blocks.end(), int64_t{0}) != width)
    field.at("blocks").fail(fmt::format("sizes that add up to {}", width));
  return value;
}

// Checks the document's output types of a node against those that the op infers.
void check_types(const Field& field, const Graph& graph, const Node& node) {
  if (!node.op->infer) field.at("op").fail("an op of a model");
  std::vector<TensorType> inputs, outputs;
  for (ValueId id : node.inputs) inputs.push_back(graph.values[id].type);
  try {
    outputs = node.op->infer(inputs, node.attrs);
  } catch (const Error& error) {
    if (error.site()) throw;
    throw plan_error(error.message(), node.site);
  }
  if (outputs.size() != node.outputs.size()) field.at("outputs").fail(fmt::format("{} values", outputs.size()));
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Value& value = graph.values[node.outputs[i]];
    if (value.type.dtype != outputs[i].dtype || value.type.shape != outputs[i].shape)
      field.at("outputs").fail(fmt::format("of type {}{}", dtype_name(outputs[i].dtype), shape_text(outputs[i].shape)));
  }
}

// Checks that nodes are in execution order and each value is assigned once.
void check_defined_once(const Field& field, const Graph& graph, const Node& node, Table<ValueId, bool>& defined) {
  for (ValueId id : node.inputs)
    if (!defined[id]) field.at("inputs").fail(fmt::format("values made before ({} is not)", graph.values[id].name));
  for (ValueId id : node.outputs) {
    if (defined[id]) field.at("outputs").fail(fmt::format("new values ({} is not)", graph.values[id].name));
    defined[id] = true;
  }
}

// Only a loss can be differentiated with seed 1 and scaled to the mean over all ranks.
void check_loss(const Graph& graph) {
  std::vector<std::string> losses;
  for (const OpDef* op : all_ops())
    if (op->loss == Loss::loss) losses.emplace_back(op->name);
  const auto returns = [&](std::string_view what, const Site& site) {
    return plan_error(
        fmt::format("the model returns {}, it should return a loss (one of: {})", what, join(losses, ", ")), site);
  };
  for (const LossTerm& term : loss_terms(graph)) {
    for (const Node& node : graph.nodes)
      for (ValueId output : node.outputs)
        if (std::ranges::find(term.values, output) != term.values.end() &&
            (term.optimised ? node.op->loss != Loss::loss : node.op->loss == Loss::none))
          throw returns(fmt::format("the result of {}", node.op->name), node.site);
    for (const ValueId id : term.values) {
      const Value& loss = graph.values[id];
      if (loss.kind != ValueKind::activation || !loss.type.shape.empty()) throw returns(loss.name, loss.site);
    }
  }
}

// Document entry of a call: written out, or a reference to an earlier call that it equals.
struct ListedCall {
  CallId like;                 // the earlier call, which is written out
  ValueId first;               // first value of the call
  int values = 0, nodes = 0;   // numbers of values and nodes that a referenced call creates
  size_t first_node = 0;       // index of its first node
  std::vector<ValueId> takes;  // replacements, in order, of the values that nodes of `like` take from other calls
};

// Bound against hostile documents; no plan of this size could be recorded.
constexpr int64_t kMostRepeated = int64_t{1} << 24;

Table<CallId, ListedCall> read_calls(const Field& root, Graph& graph) {
  Table<CallId, ListedCall> calls;
  int64_t repeated = 0;
  root.at("calls").each([&](const Field& field) {
    ListedCall& call = calls.emplace_back();
    graph.calls.push_back({.unit = field.at("unit").index(graph.units.size())});
    if (field.has("first")) call.first = field.at("first").index(INT32_MAX);
    if (field.has("values")) call.values = field.at("values").index(INT32_MAX);
    if (field.has("nodes")) call.nodes = field.at("nodes").index(INT32_MAX);
    if (!field.has("like")) return;
    call.like = field.at("like").index(calls.size() - 1);
    const ListedCall& like = calls[call.like];
    if (!like.like.none() || like.first.none()) field.at("like").fail("a call that is written out");
    if (!field.has("first")) field.fail("of a call with its first value");
    field.at("takes").indices(INT32_MAX, call.takes);
    repeated += int64_t{like.values} + like.nodes;
    if (repeated > kMostRepeated)
      field.at("like").fail(fmt::format("one of calls of at most {} values", kMostRepeated));
  });
  return calls;
}

// Renames "block0.up" to "block7.up"; nullopt if the name does not begin with the unit's.
std::optional<std::string> renamed(const std::string& name, const std::string& from, const std::string& to) {
  if (!name.starts_with(from) || name.size() == from.size() || name[from.size()] != '.') return std::nullopt;
  return to + name.substr(from.size());
}

// Adds the values of a call that equals an earlier one.
void repeat_values(const Field& field, const ListedCall& call, CallId id, const ListedCall& like, Graph& graph) {
  const Call &from = graph.calls[call.like], &to = graph.calls[id];
  if (call.first != graph.values.next() || int64_t{like.values} > call.first - like.first)
    field.at("first").fail("the next value");
  for (int i = 0; i < like.values; ++i) {
    Value value = graph.values[like.first + i];
    std::optional<std::string> name = renamed(value.name, graph.units[from.unit].name, graph.units[to.unit].name);
    if (!name || (value.unit != from.unit && !value.unit.none()))
      field.at("like").fail(fmt::format("a call with values of its unit's only, not {}", value.name));
    value.name = std::move(*name);
    if (!value.unit.none()) value.unit = to.unit;
    graph.values.push_back(std::move(value));
  }
}

void read_values(const Field& root, const Table<CallId, ListedCall>& calls, Graph& graph) {
  CallId next = 0;
  const Field fields = root.at("calls");
  // Adds the values of the calls whose first value is next.
  const auto repeat = [&](bool last) {
    for (; next < calls.next(); ++next) {
      const ListedCall& call = calls[next];
      if (call.like.none()) continue;
      if (!last && call.first != graph.values.next()) return;
      repeat_values(fields.element(next.index()), call, next, calls[call.like], graph);
    }
  };
  root.at("values").each([&](const Field& field) {
    repeat(false);
    graph.values.push_back(read_value(field, graph.units.size()));
  });
  repeat(true);
}

// Reads nodes in execution order.
class NodeReader {
 public:
  NodeReader(const Field& root, Table<CallId, ListedCall>& calls, Graph& graph)
      : fields_(root.at("calls")), calls_(calls), graph_(graph) {
    for (const Value& value : graph.values) defined_.push_back(value.kind != ValueKind::activation);
  }

  void read(const Field& field) {
    Node node;
    field.need("op", node.op);
    field.may("attrs", node.attrs, "site", node.site);
    field.at("inputs").indices(graph_.values.size(), node.inputs);
    field.at("outputs").indices(graph_.values.size(), node.outputs);
    node.call = field.at("call").index(calls_.size(), -1);
    repeat_until(node.call);
    check_types(field, graph_, node);
    check_defined_once(field, graph_, node, defined_);
    graph_.nodes.push_back(std::move(node));
  }

  // Adds the nodes of calls up to `call` that equal earlier ones.
  void repeat_until(CallId call) {
    for (; next_ <= call; ++next_) {
      if (calls_[next_].like.none())
        calls_[next_].first_node = graph_.nodes.size();
      else
        repeat(fields_.element(next_.index()), calls_[next_]);
    }
  }

 private:
  void repeat(const Field& field, const ListedCall& call) {
    const ListedCall& like = calls_[call.like];
    size_t taken = 0;
    for (int i = 0; i < like.nodes; ++i) {
      const size_t at = like.first_node + i;
      if (at >= graph_.nodes.size() || graph_.nodes[at].call != call.like)
        field.at("like").fail(fmt::format("a call of {} nodes", like.nodes));
      Node node = graph_.nodes[at];
      node.call = next_;
      bool made_here = true;
      for (ValueId& id : node.inputs) {
        id = own(like, id) ? moved(id, like, call) : take(field, call, taken++, id);
        made_here = made_here && defined_[id];
      }
      for (ValueId& id : node.outputs) {
        made_here = made_here && own(like, id) && !defined_[id = moved(id, like, call)];
        if (!made_here) break;
        defined_[id] = true;
      }
      if (!made_here) field.at("like").fail("a call that makes its values itself");
      graph_.nodes.push_back(std::move(node));
    }
    if (taken != call.takes.size()) field.at("takes").fail(fmt::format("{} values", taken));
  }

  static bool own(const ListedCall& call, ValueId id) { return id >= call.first && id < call.first + call.values; }
  static ValueId moved(ValueId id, const ListedCall& from, const ListedCall& to) {
    return to.first + (id - from.first);
  }

  // Returns the call's replacement of `id`, which must have the same type, so that all derived types match.
  ValueId take(const Field& field, const ListedCall& call, size_t number, ValueId id) const {
    if (number >= call.takes.size()) field.at("takes").fail("more values");
    const ValueId taken = call.takes[number];
    const TensorType& type = graph_.values[id].type;
    if (taken >= graph_.values.next() || !defined_[taken] || graph_.values[taken].type.dtype != type.dtype ||
        graph_.values[taken].type.shape != type.shape)
      field.at("takes").element(number).fail(
          fmt::format("a value made before, of type {}{}", dtype_name(type.dtype), shape_text(type.shape)));
    return taken;
  }

  const Field fields_;
  Table<CallId, ListedCall>& calls_;
  Graph& graph_;
  Table<ValueId, bool> defined_;
  CallId next_ = 0;  // not processed yet
};

Graph read_graph(const Field& root) {
  Graph graph;
  root.at("units").each([&](const Field& field) {
    Unit unit;
    field.need("name", unit.name, "class", unit.unit_class);
    graph.units.push_back(std::move(unit));
  });
  Table<CallId, ListedCall> calls = read_calls(root, graph);
  read_values(root, calls, graph);
  UnitId unit = 0;
  root.at("units").each([&](const Field& field) {
    const std::vector<ValueId>& parameters = graph.units[unit].parameters;
    field.at("parameters").indices(graph.values.size(), graph.units[unit].parameters);
    std::vector<int> groups, frozen;
    field.may("groups", groups, "frozen", frozen);
    for (const auto& [name, list] : {std::pair("groups", &groups), {"frozen", &frozen}})
      if (!list->empty() && list->size() != parameters.size()) field.at(name).fail("one for each parameter");
    for (size_t i = 0; i < groups.size(); ++i) graph.values[parameters[i]].group = groups[i];
    for (size_t i = 0; i < frozen.size(); ++i) {
      Value& value = graph.values[parameters[i]];
      value.frozen = value.buffer || frozen[i] != 0;
    }
    ++unit;
  });
  NodeReader nodes(root, calls, graph);
  root.at("nodes").each([&](const Field& field) { nodes.read(field); });
  nodes.repeat_until(graph.calls.last());
  graph.loss = root.at("loss").index(graph.values.size());
  read_loss_terms(root, graph);
  check_loss(graph);
  find_attention_blocks(graph);
  return graph;
}

void read(const Field& field, HookAction& action) {
  field.need("kind", action.kind);
  field.may("target", action.target, "handle", action.handle, "source", action.source, "axis", action.axis, "stream",
            action.stream, "op", action.op, "text", action.text, "prefetch", action.prefetch, "inflight",
            action.inflight, "bucket", action.bucket, "first", action.first, "keep", action.keep, "wire", action.wire,
            "keep_last", action.keep_last, "site", action.site);
  if (action.prefetch < 0 || action.inflight < 1 || action.bucket < 0 || action.first < 0)
    field.fail("of prefetch, bucket and first from 0, inflight from 1");
}

void read(const Field& field, Hook& hook) {
  hook.after = field.at("when").word({"before", "after"}) == 1;
  hook.phase = field.at("phase").word({"forward", "backward"}) == 0 ? Phase::forward : Phase::backward;
  field.need("intents", hook.actions);
}

void read(const Field& field, LayerPlacement& placement) {
  field.need("axis", placement.axis);
  field.may("layer", placement.layer, "dim", placement.dim, "site", placement.site);
}

void read(const Field& field, StrategyUnit& unit) {
  field.need("class", unit.unit_class, "hooks", unit.hooks);
  field.may("sharded", unit.sharded, "shard_axis", unit.shard_axis, "shard_least", unit.shard_least, "accumulate",
            unit.accumulate, "recompute", unit.recompute, "recompute_whole", unit.recompute_whole, "recompute_stages",
            unit.recompute_stages, "sync_every", unit.sync_every, "sync", unit.sync, "layers", unit.layers,
            "activations", unit.activations, "site", unit.shard_site);
  unit.offload = field.has("offload");
  if (!unit.offload) return;
  field.at("offload").need("ahead", unit.offload_ahead, "piece", unit.offload_piece);
  field.at("offload").may("site", unit.offload_site);
}

void read(const Field& field, Strategy& strategy) {
  strategy.splits = static_cast<Splits>(field.at("splits").word({"batch", "tokens", "nothing"}));
  field.need("name", strategy.name, "axes", strategy.axes, "units", strategy.units);
  field.may("shared", strategy.shared, "site", strategy.site, "differs", strategy.differs, "share", strategy.share);
}

void read(const Field& field, LayoutUnits& units) { field.need("name", units.name, "count", units.count); }

void read(const Field& field, LayoutStage& stage) { field.may("rest", stage.fill, "units", stage.units); }

Pipeline read_pipeline(const Field& field, int microbatches) {
  Pipeline pipeline;
  std::string placement, split, transfer;
  field.need("axis", pipeline.axis, "schedule", pipeline.schedule);
  field.may("chunks", pipeline.chunks, "placement", placement, "split", split, "stages", pipeline.stage_layers,
            "layout", pipeline.layout, "transfer", transfer, "site", pipeline.site);
  pipeline.v_placement = placement == "v";
  pipeline.split_by_flops = split == "flops";
  pipeline.puts = transfer == "put";
  field.at("turns").each([&](const Field& rank) {
    std::vector<PipelineTurn>& turns = pipeline.turns.emplace_back();
    rank.each([&](const Field& item) {
      std::vector<int> numbers;
      item.indices(INT32_MAX, numbers);
      if ((numbers.size() != 3 && numbers.size() != 4) || numbers[0] > 3 || numbers[1] >= microbatches ||
          numbers[2] >= pipeline.chunks)
        item.fail("[kind, microbatch, chunk] and 1 if the next slot runs at the same time");
      turns.push_back({static_cast<PipelineTurn::Kind>(numbers[0]), numbers[1], numbers[2], numbers.size() == 4});
    });
  });
  return pipeline;
}

void read(const Field& field, ProgramTensor& tensor) {
  field.need("name", tensor.name);
  read(field, tensor.type);
}

void read(const Field& field, RankProgram& program) {
  field.need("tensors", program.tensors);
  field.at("ops").each([&](const Field& item) {
    ProgramOp op;
    const OpDef* kind = nullptr;
    item.need("op", kind);
    item.may("attrs", op.attrs, "axis", op.axis, "site", op.site);
    op.kind = kind->name;
    item.at("inputs").indices(program.tensors.size(), op.inputs);
    item.at("outputs").indices(program.tensors.size(), op.outputs);
    program.ops.push_back(std::move(op));
  });
}

void read(const Field& field, Mesh& mesh) {
  std::vector<Axis> axes;
  field.at("axes").each([&](const Field& item) {
    const Json& json = item.json();
    if (!json.is_array() || json.size() != 2 || !json[0].is_string() || !json[1].is_number_integer() ||
        json[1].get<int64_t>() < 1 || json[1].get<int64_t>() > INT32_MAX)
      item.fail("[name, size]");
    axes.push_back({json[0].get<std::string>(), json[1].get<int>()});
  });
  mesh = Mesh(std::move(axes));
}

void read(const Field& field, DataFile& file) {
  field.need("path", file.path, "bytes", file.bytes, "skip_bytes", file.skip_bytes, "element", file.element);
  field.may("name", file.name);
}

void read(const Field& field, FeedInput& input) {
  field.need("name", input.name, "element", input.element, "dims", input.dims);
}

void read(const Field& field, Data& data) {
  field.need("kind", data.kind, "batch", data.global_batch);
  field.may("files", data.files, "vocab", data.vocab, "context", data.context, "order", data.order, "first", data.first,
            "whole", data.whole, "count", data.count, "part", data.part, "scale", data.scale, "document_end",
            data.document_end, "last", data.last, "site", data.site);
  field.may("capacity", data.capacity, "long", data.long_documents);
  field.may("feed", data.feed, "inputs", data.inputs, "slots", data.slots);
}

void read(const Field& field, Evaluation& evaluation) {
  field.need("every", evaluation.every, "batches", evaluation.batches, "data", evaluation.data);
  field.may("site", evaluation.site, "first", evaluation.first, "ema", evaluation.ema, "patience", evaluation.patience);
  if (DataSource& data = evaluation.data; data.whole > 0 && data.global_batch > 0)
    evaluation.batches = WholeSet{data.whole, data.global_batch}.batches();
  if (evaluation.every < 1) field.at("every").fail("at least 1");
  if (evaluation.batches < 1) field.at("batches").fail("at least 1");
}

void read(const Field& field, Report& report) {
  field.need("every", report.every);
  field.may("site", report.site);
  if (report.every < 1) field.at("every").fail("at least 1");
}

void read(const Field& field, Keeping& keeping) {
  field.may("every", keeping.every, "keep", keeping.keep, "replicate", keeping.replicate);
  field.may("memory_every", keeping.memory_every, "site", keeping.site, "best", keeping.best, "largest",
            keeping.largest);
}

void read(const Field& field, ModelDescription& model) { field.need("name", model.name, "arguments", model.arguments); }

void read(const Field& field, InitialWeights& weights) {
  field.need("path", weights.path, "site", weights.site);
  field.may("partial", weights.partial);
}

void read(const Field& field, Adapters& adapters) {
  field.need("rank", adapters.rank, "alpha", adapters.alpha, "dropout", adapters.dropout, "match", adapters.match);
  field.may("train", adapters.train);
}

void read_training(const Field& root, Plan& plan) {
  std::string reduce;
  plan.graph = read_graph(root);
  check_computed_ids(plan.graph);
  root.need("steps", plan.steps, "seed", plan.seed, "dtype", plan.param_dtype, "data", plan.data, "strategies",
            plan.strategies, "batch_axes", plan.batch_axes);
  root.may("reduce", reduce, "micro", plan.microbatches, "model", plan.model);
  plan.rank_order = reduce == "rank_order";
  // Ids of arrays and feeds are limited by the smallest lookup of the model.
  const bool has_vocab = plan.data.kind != "arrays" && plan.data.kind != "feed";
  for (const IdLimit& limit : id_limits(plan.graph))
    if (!has_vocab && (plan.data.vocab == 0 || limit.size < plan.data.vocab)) plan.data.vocab = limit.size;
  if (root.has("outputs"))
    root.at("outputs").each([&](const Field& field) {
      std::string name;
      field.need("name", name);
      plan.outputs[name] = field.at("value").index(plan.graph.values.size());
    });
  if (root.has("eval")) root.need("eval", plan.evaluation.emplace());
  if (root.has("initial_weights")) root.need("initial_weights", plan.initial_weights.emplace());
  if (root.has("lora")) root.need("lora", plan.adapters);
  if (plan.initial_weights) {
    plan.adapters.base = plan.initial_weights->path;
    root.at("initial_weights").may("base", plan.adapters.base);  // the path is that of adapters
  }
  if (root.has("report")) root.need("report", plan.report.emplace());
  if (root.has("checkpoint")) root.need("checkpoint", plan.keeping.emplace());
  plan.optimizer = read_optimizer(root.at("optimizer"));
  for (const Value& value : plan.graph.values)
    if (value.group < 0 || value.group > std::ssize(plan.optimizer.groups))
      root.at("optimizer").fail(fmt::format("of a group {}", value.group));
  if (root.has("pipeline")) plan.pipeline = read_pipeline(root.at("pipeline"), plan.microbatches);
}

// Parses like Json::from_cbor, which would copy the whole document once more.
void parse_cbor(std::string_view cbor, Json& json) {
  nlohmann::detail::json_sax_dom_parser<Json> parser(json);
  try {
    Json::sax_parse(cbor.begin(), cbor.end(), &parser, Json::input_format_t::cbor);
  } catch (const Json::exception& error) {
    throw plan_error(fmt::format("the script sent a plan that cannot be read: {}", error.what()));
  }
}

}  // namespace plan_document

std::vector<Plan> read_plans(std::string_view cbor) {
  nlohmann::json json;
  plan_document::parse_cbor(cbor, json);
  const plan_document::Field root(json);
  if (!json.is_object()) throw plan_error("the script sent no plan");
  Plan plan;
  root.need("path", plan.path, "mesh", plan.mesh);
  root.at("mesh").may("site", plan.mesh_site);
  if (root.at("kind").word({"plan", "program"}) == 0) {
    plan_document::read_training(root, plan);
  } else {
    root.need("programs", plan.programs);
    root.at("program_of_rank").indices(plan.programs.size(), plan.program_of_rank);
  }
  std::vector<Plan> plans = {std::move(plan)};
  if (root.has("others"))
    root.at("others").each([&](const plan_document::Field& other) {
      Plan& one = plans.emplace_back(plans.front());
      other.need("mesh", one.mesh, "micro", one.microbatches, "batch", one.data.global_batch);
      if (other.has("pipeline")) one.pipeline = plan_document::read_pipeline(other.at("pipeline"), one.microbatches);
    });
  return plans;
}

Plan read_plan(std::string_view cbor) { return std::move(read_plans(cbor).front()); }

}  // namespace prun
