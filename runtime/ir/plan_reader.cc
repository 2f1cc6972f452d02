// Reads the plan that the script child sends, a CBOR document of the schema in plan_reader.h.
//
// What is wrong here is a mistake of a DSL module (the user's mistakes were caught in Lua), so that messages name the
// place in the document: "nodes[3].inputs".
#include "ir/plan_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/text.h"

namespace prun {
namespace {

using Json = nlohmann::json;

// A value of the document and the path that leads to it.
class Field {
 public:
  Field(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  bool has(const char* name) const { return json_.is_object() && json_.contains(name) && !json_.at(name).is_null(); }
  Field at(const char* name) const {
    if (!has(name)) throw plan_error(fmt::format("the plan has no {}", below(name)));
    return Field(json_.at(name), below(name));
  }
  // Calls `read` with each element.
  template <class Read>
  void each(Read read) const {
    // Lua cannot tell an empty list from an empty table.
    if (json_.is_object() && json_.empty()) return;
    if (!json_.is_array()) fail("a list");
    for (size_t i = 0; i < json_.size(); ++i) read(Field(json_[i], fmt::format("{}[{}]", path_, i)));
  }
  size_t size() const { return json_.size(); }

  std::string text() const {
    if (!json_.is_string()) fail("a text");
    return json_.get<std::string>();
  }
  // Lua's division makes a float of a whole number: it still counts as one.
  bool whole() const {
    if (json_.is_number_unsigned()) return json_.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
    if (json_.is_number_integer()) return true;
    if (!json_.is_number_float()) return false;
    double value = json_.get<double>();
    return std::abs(value) <= 9007199254740992.0 && value == std::trunc(value);
  }
  int64_t integer() const {
    if (!whole()) fail("a whole number");
    return json_.is_number_float() ? static_cast<int64_t>(json_.get<double>()) : json_.get<int64_t>();
  }
  double number() const {
    if (!json_.is_number()) fail("a number");
    return json_.get<double>();
  }
  bool boolean() const {
    if (!json_.is_boolean()) fail("true or false");
    return json_.get<bool>();
  }
  // An index into an array of `size`; or -1 where that is allowed.
  int index(size_t size, int least = 0) const {
    int64_t value = integer();
    if (value < least || value >= static_cast<int64_t>(size)) fail(fmt::format("an index below {}", size));
    return static_cast<int>(value);
  }
  Dtype dtype() const {
    std::optional<Dtype> dtype = parse_dtype(text());
    if (!dtype) fail("a dtype");
    return *dtype;
  }
  Shape shape() const {
    Shape shape;
    each([&](const Field& dim) {
      shape.push_back(dim.integer());
      if (shape.back() < 0) dim.fail("a length");
    });
    return shape;
  }
  template <class IdType = int>
  std::vector<IdType> indices(size_t size, int least = 0) const {
    std::vector<IdType> out;
    each([&](const Field& item) { out.push_back(item.index(size, least)); });
    return out;
  }
  const Json& json() const { return json_; }
  [[noreturn]] void fail(const std::string& expected) const {
    std::string found = json_.dump();
    if (found.size() > 60) found = found.substr(0, 57) + "...";
    throw plan_error(fmt::format("the plan's {} should be {}, is {}", path_, expected, found));
  }

 private:
  std::string below(const char* name) const { return path_.empty() ? name : path_ + "." + name; }

  const Json& json_;
  std::string path_;
};

std::string text_or(const Field& field, const char* name, std::string fallback) {
  return field.has(name) ? field.at(name).text() : std::move(fallback);
}
int64_t integer_or(const Field& field, const char* name, int64_t fallback) {
  return field.has(name) ? field.at(name).integer() : fallback;
}
double number_or(const Field& field, const char* name, double fallback) {
  return field.has(name) ? field.at(name).number() : fallback;
}
bool boolean_or(const Field& field, const char* name, bool fallback) {
  return field.has(name) ? field.at(name).boolean() : fallback;
}

int small_integer(const Field& field, const char* name, int fallback) {
  int64_t value = integer_or(field, name, fallback);
  if (value != static_cast<int>(value)) field.at(name).fail("a smaller number");
  return static_cast<int>(value);
}

Site read_site(const Field& parent, const char* name = "site") {
  if (!parent.has(name)) return {};
  const Json& json = parent.at(name).json();
  if (!json.is_array() || json.size() != 2 || !json[0].is_string() || !json[1].is_number_integer())
    parent.at(name).fail("[file, line]");
  return {json[0].get<std::string>(), json[1].get<int>()};
}

// A whole number serves as a double, never the other way round: whatever is whole becomes an integer.
Attr read_attr(const Field& field) {
  const Json& json = field.json();
  if (json.is_string()) return json.get<std::string>();
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

Attrs read_attrs(const Field& parent) {
  Attrs attrs;
  if (!parent.has("attrs")) return attrs;
  const Field field = parent.at("attrs");
  if (field.json().is_array() && field.json().empty()) return attrs;
  if (!field.json().is_object()) field.fail("a table");
  for (const auto& item : field.json().items()) attrs.set(item.key(), read_attr(field.at(item.key().c_str())));
  return attrs;
}

const OpDef* read_kind(const Field& field) {
  const OpDef* op = find_op(field.text());
  if (!op) field.fail("an op's name");
  return op;
}

ValueKind read_value_kind(const Field& field) {
  std::string kind = field.text();
  if (kind == "input") return ValueKind::input;
  if (kind == "parameter") return ValueKind::parameter;
  if (kind == "activation") return ValueKind::activation;
  field.fail("input, parameter or activation");
}

std::vector<int64_t> read_blocks(const Field& field, const TensorType& type) {
  std::vector<int64_t> blocks;
  field.each([&](const Field& size) { blocks.push_back(size.integer()); });
  int64_t width = type.shape.empty() ? 1 : type.shape.back();
  if (std::accumulate(blocks.begin(), blocks.end(), int64_t{0}) != width)
    field.fail(fmt::format("sizes that add up to {}", width));
  return blocks;
}

Value read_value(const Field& field, size_t units) {
  Value value;
  value.name = field.at("name").text();
  value.type = {field.at("dtype").dtype(), field.at("shape").shape()};
  value.kind = read_value_kind(field.at("kind"));
  if (field.has("unit")) value.unit = field.at("unit").index(units, -1);
  if (field.has("init")) {
    Field init = field.at("init");
    value.init = {init.at("kind").text(), number_or(init, "scale", 0)};
    if (value.init.kind != "zeros" && value.init.kind != "ones" && value.init.kind != "constant" &&
        value.init.kind != "normal" && value.init.kind != "uniform")
      init.at("kind").fail("zeros, ones, constant, normal or uniform");
  }
  if (field.has("blocks")) value.blocks = read_blocks(field.at("blocks"), value.type);
  value.site = read_site(field);
  return value;
}

// The types of a node's outputs are what the op infers: the document's are checked against it.
void check_types(const Field& field, const Graph& graph, const Node& node) {
  if (!node.op->infer) field.at("op").fail("an op of a model");
  std::vector<TensorType> inputs, outputs;
  for (int id : node.inputs) inputs.push_back(graph.values[id].type);
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

// Nodes stand in execution order and values are assigned once.
void check_defined_once(const Field& field, const Graph& graph, const Node& node, std::vector<bool>& defined) {
  for (int id : node.inputs)
    if (!defined[id]) field.at("inputs").fail(fmt::format("values made before ({} is not)", graph.values[id].name));
  for (int id : node.outputs) {
    if (defined[id]) field.at("outputs").fail(fmt::format("new values ({} is not)", graph.values[id].name));
    defined[id] = true;
  }
}

// Only a loss can be differentiated with seed 1 and be scaled to the mean over all ranks.
void check_loss(const Graph& graph) {
  static const std::vector<std::string> kLosses = {"cross_entropy", "mse", "mean_square", "mean"};
  for (const Node& node : graph.nodes)
    for (int output : node.outputs)
      if (output == graph.loss && std::find(kLosses.begin(), kLosses.end(), node.op->name) == kLosses.end())
        throw plan_error(fmt::format("the model returns the result of {}, it should return a loss (one of: {})",
                                     node.op->name, join(kLosses, ", ")),
                         node.site);
  const Value& loss = graph.values[graph.loss];
  if (loss.kind != ValueKind::activation || !loss.type.shape.empty())
    throw plan_error(
        fmt::format("the model returns {}, it should return a loss (one of: {})", loss.name, join(kLosses, ", ")),
        loss.site);
}

Graph read_graph(const Field& root) {
  Graph graph;
  size_t units = root.at("units").size(), calls = root.at("calls").size();
  root.at("values").each([&](const Field& field) { graph.values.push_back(read_value(field, units)); });
  root.at("units").each([&](const Field& field) {
    Unit unit;
    unit.name = field.at("name").text();
    unit.unit_class = field.at("class").text();
    unit.parameters = field.at("parameters").indices<ValueId>(graph.values.size());
    graph.units.push_back(std::move(unit));
  });
  root.at("calls").each([&](const Field& field) { graph.calls.push_back({.unit = field.at("unit").index(units)}); });
  std::vector<bool> defined;
  for (const Value& value : graph.values) defined.push_back(value.kind != ValueKind::activation);
  root.at("nodes").each([&](const Field& field) {
    Node node;
    node.op = read_kind(field.at("op"));
    node.inputs = field.at("inputs").indices<ValueId>(graph.values.size());
    node.outputs = field.at("outputs").indices<ValueId>(graph.values.size());
    node.attrs = read_attrs(field);
    node.call = field.at("call").index(calls, -1);
    node.site = read_site(field);
    check_types(field, graph, node);
    check_defined_once(field, graph, node, defined);
    graph.nodes.push_back(std::move(node));
  });
  graph.loss = root.at("loss").index(graph.values.size());
  check_loss(graph);
  return graph;
}

HookAction read_action(const Field& field) {
  HookAction action;
  action.kind = field.at("kind").text();
  action.target = text_or(field, "target", "");
  action.handle = small_integer(field, "handle", -1);
  action.axis = text_or(field, "axis", "");
  action.stream = text_or(field, "stream", "");
  action.op = text_or(field, "op", "sum");
  action.text = text_or(field, "text", "");
  action.prefetch = small_integer(field, "prefetch", 0);
  action.inflight = small_integer(field, "inflight", 1);
  action.bucket = integer_or(field, "bucket", 0);
  action.first = integer_or(field, "first", 0);
  action.keep = boolean_or(field, "keep", false);
  action.wire = text_or(field, "wire", "");
  action.keep_last = boolean_or(field, "keep_last", false);
  action.site = read_site(field);
  return action;
}

Hook read_hook(const Field& field) {
  Hook hook;
  std::string when = field.at("when").text(), phase = field.at("phase").text();
  if (when != "before" && when != "after") field.at("when").fail("before or after");
  if (phase != "forward" && phase != "backward") field.at("phase").fail("forward or backward");
  hook.after = when == "after";
  hook.phase = phase == "forward" ? Phase::forward : Phase::backward;
  field.at("intents").each([&](const Field& item) { hook.actions.push_back(read_action(item)); });
  return hook;
}

std::vector<Placement> read_placements(const Field& field, const char* name) {
  std::vector<Placement> placements;
  if (!field.has(name)) return placements;
  field.at(name).each([&](const Field& item) {
    placements.push_back(
        {text_or(item, "layer", ""), item.at("axis").text(), small_integer(item, "dim", 0), read_site(item)});
  });
  return placements;
}

std::vector<std::string> read_texts(const Field& field) {
  std::vector<std::string> texts;
  field.each([&](const Field& item) { texts.push_back(item.text()); });
  return texts;
}

Strategy read_strategy(const Field& field) {
  Strategy strategy;
  strategy.name = field.at("name").text();
  strategy.axes = read_texts(field.at("axes"));
  const std::string splits = field.at("splits").text();
  if (splits == "batch")
    strategy.splits = Splits::batch;
  else if (splits == "tokens")
    strategy.splits = Splits::tokens;
  else if (splits == "nothing")
    strategy.splits = Splits::nothing;
  else
    field.at("splits").fail("batch, tokens or nothing");
  strategy.site = read_site(field);
  field.at("units").each([&](const Field& item) {
    StrategyUnit unit;
    unit.unit_class = item.at("class").text();
    unit.sharded = boolean_or(item, "sharded", false);
    unit.shard_axis = text_or(item, "shard_axis", "");
    unit.shard_least = integer_or(item, "shard_least", 0);
    unit.accumulate = boolean_or(item, "accumulate", false);
    unit.recompute = boolean_or(item, "recompute", false);
    if (item.has("offload")) {
      const Field& offload = item.at("offload");
      unit.offload = true;
      unit.offload_ahead = static_cast<int>(offload.at("ahead").integer());
      unit.offload_piece = offload.at("piece").integer();
      unit.offload_site = read_site(offload);
    }
    unit.sync_every = integer_or(item, "sync_every", 0);
    if (item.has("sync")) item.at("sync").each([&](const Field& action) { unit.sync.push_back(read_action(action)); });
    unit.layers = read_placements(item, "layers");
    unit.activations = read_placements(item, "activations");
    unit.shard_site = read_site(item);
    item.at("hooks").each([&](const Field& hook) { unit.hooks.push_back(read_hook(hook)); });
    strategy.units.push_back(std::move(unit));
  });
  return strategy;
}

// `steps`: of the plan, which a schedule takes unless it says otherwise.
LearningRate read_learning_rate(const Field& optimizer, int64_t steps) {
  LearningRate rate{.peak = number_or(optimizer, "lr", 0)};
  if (!optimizer.has("schedule")) return rate;
  const Field field = optimizer.at("schedule");
  std::optional<RateKind> kind = parse_rate_kind(field.at("kind").text());
  if (!kind) field.at("kind").fail("constant, warmup, linear or cosine");
  rate.kind = *kind;
  rate.warmup = integer_or(field, "warmup", 0);
  rate.steps = integer_or(field, "steps", steps);
  rate.least = number_or(field, "least", 0);
  const bool falls = rate.kind == RateKind::linear || rate.kind == RateKind::cosine;
  if (rate.warmup < 0 || (falls && rate.warmup > rate.steps))
    field.at("warmup").fail(fmt::format("from 0 to the schedule's {} steps", rate.steps));
  if (rate.least < 0 || rate.least > rate.peak) field.at("least").fail(fmt::format("from 0 to lr, {}", rate.peak));
  return rate;
}

Optimizer read_optimizer(const Field& field, int64_t steps) {
  Optimizer optimizer;
  optimizer.kind = field.at("kind").text();
  if (optimizer.kind != "sgd" && optimizer.kind != "adamw") field.at("kind").fail("sgd or adamw");
  optimizer.lr = read_learning_rate(field, steps);
  optimizer.momentum = number_or(field, "momentum", 0);
  optimizer.eps = number_or(field, "eps", optimizer.eps);
  optimizer.weight_decay = number_or(field, "weight_decay", 0);
  optimizer.clip = number_or(field, "clip", 0);
  if (field.has("betas")) {
    std::vector<double> betas;
    field.at("betas").each([&](const Field& item) { betas.push_back(item.number()); });
    if (betas.size() != 2) field.at("betas").fail("two numbers");
    optimizer.beta1 = betas[0];
    optimizer.beta2 = betas[1];
  }
  optimizer.site = read_site(field);
  return optimizer;
}

Pipeline read_pipeline(const Field& field, int microbatches) {
  Pipeline pipeline;
  pipeline.axis = field.at("axis").text();
  pipeline.schedule = field.at("schedule").text();
  pipeline.chunks = small_integer(field, "chunks", 1);
  pipeline.v_placement = text_or(field, "placement", "round") == "v";
  pipeline.split_by_flops = text_or(field, "split", "layers") == "flops";
  pipeline.puts = text_or(field, "transfer", "send") == "put";
  pipeline.site = read_site(field);
  field.at("turns").each([&](const Field& rank) {
    std::vector<PipelineTurn>& turns = pipeline.turns.emplace_back();
    rank.each([&](const Field& item) {
      const std::vector<int> numbers = item.indices(INT32_MAX);
      if (numbers.size() != 3 || numbers[0] > 3 || numbers[1] >= microbatches || numbers[2] >= pipeline.chunks)
        item.fail("[kind, microbatch, chunk]");
      turns.push_back({static_cast<PipelineTurn::Kind>(numbers[0]), numbers[1], numbers[2]});
    });
  });
  return pipeline;
}

RankProgram read_rank_program(const Field& field) {
  RankProgram program;
  field.at("tensors").each([&](const Field& item) {
    program.tensors.push_back({item.at("name").text(), {item.at("dtype").dtype(), item.at("shape").shape()}});
  });
  field.at("ops").each([&](const Field& item) {
    ProgramOp op;
    op.kind = read_kind(item.at("op"))->name;
    op.inputs = item.at("inputs").indices<TensorId>(program.tensors.size());
    op.outputs = item.at("outputs").indices<TensorId>(program.tensors.size());
    op.attrs = read_attrs(item);
    op.axis = text_or(item, "axis", "");
    op.site = read_site(item);
    program.ops.push_back(std::move(op));
  });
  return program;
}

void read_mesh(const Field& field, Plan& plan) {
  std::vector<Axis> axes;
  field.at("axes").each([&](const Field& item) {
    const Json& json = item.json();
    if (!json.is_array() || json.size() != 2 || !json[0].is_string() || !json[1].is_number_integer() ||
        json[1].get<int64_t>() < 1 || json[1].get<int64_t>() > INT32_MAX)
      item.fail("[name, size]");
    axes.push_back({json[0].get<std::string>(), json[1].get<int>()});
  });
  plan.mesh = Mesh(std::move(axes));
  plan.mesh_site = read_site(field);
}

Data read_data(const Field& field) {
  Data data;
  data.kind = field.at("kind").text();
  data.path = text_or(field, "path", "");
  data.batch = field.at("batch").integer();
  data.file_bytes = integer_or(field, "file_bytes", 0);
  data.skip_bytes = integer_or(field, "skip_bytes", 0);
  data.vocab = integer_or(field, "vocab", 0);
  data.context = integer_or(field, "context", 0);
  data.site = read_site(field);
  return data;
}

Evaluation read_evaluation(const Field& field) {
  Evaluation evaluation{field.at("every").integer(), field.at("batches").integer(), read_data(field.at("data")),
                        read_site(field)};
  if (evaluation.every < 1) field.at("every").fail("at least 1");
  if (evaluation.batches < 1) field.at("batches").fail("at least 1");
  return evaluation;
}

void read_training(const Field& root, Plan& plan) {
  plan.graph = read_graph(root);
  plan.steps = root.at("steps").integer();
  plan.seed = static_cast<uint64_t>(root.at("seed").integer());
  plan.rank_order = text_or(root, "reduce", "any") == "rank_order";
  plan.param_dtype = root.at("dtype").dtype();
  plan.data = read_data(root.at("data"));
  if (root.has("eval")) plan.evaluation = read_evaluation(root.at("eval"));
  plan.optimizer = read_optimizer(root.at("optimizer"), plan.steps);
  root.at("strategies").each([&](const Field& item) { plan.strategies.push_back(read_strategy(item)); });
  plan.batch_axes = read_texts(root.at("batch_axes"));
  plan.microbatches = small_integer(root, "micro", 1);
  if (root.has("pipeline")) plan.pipeline = read_pipeline(root.at("pipeline"), plan.microbatches);
}

Json parse_cbor(std::string_view cbor) {
  try {
    return Json::from_cbor(cbor.begin(), cbor.end());
  } catch (const Json::exception& error) {
    throw plan_error(fmt::format("the script sent a plan that cannot be read: {}", error.what()));
  }
}

}  // namespace

Plan read_plan(std::string_view cbor) {
  const Json json = parse_cbor(cbor);
  const Field root(json, "");
  if (!json.is_object()) throw plan_error("the script sent no plan");
  Plan plan;
  plan.path = root.at("path").text();
  read_mesh(root.at("mesh"), plan);
  std::string kind = root.at("kind").text();
  if (kind == "plan") {
    read_training(root, plan);
  } else if (kind == "program") {
    root.at("programs").each([&](const Field& item) { plan.programs.push_back(read_rank_program(item)); });
    plan.program_of_rank = root.at("program_of_rank").indices(plan.programs.size());
  } else {
    root.at("kind").fail("plan or program");
  }
  return plan;
}

}  // namespace prun
