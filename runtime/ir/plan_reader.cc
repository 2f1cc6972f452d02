// Reads the plan that the script child sends, a CBOR document of the schema in plan_reader.h.
//
// Each struct has one `read`: need(name, member) for what the document must have, may(name, member) for what else keeps
// its default. What is wrong here is a mistake of a DSL module (the user's mistakes were caught in Lua), so that
// messages name the place in the document, "nodes[3].inputs", and the line of the plan that the nearest struct around
// it has as its site.
#include "ir/plan_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/text.h"
#include "ir/id_limits.h"

namespace prun {
namespace {

using Json = nlohmann::json;

// A value of the document and the path that leads to it.
class Field {
 public:
  Field(const Json& json, std::string path, const Json* site = nullptr)
      : json_(json), path_(std::move(path)), site_(has("site") ? &json.at("site") : site) {}

  bool has(const char* name) const { return json_.is_object() && json_.contains(name) && !json_.at(name).is_null(); }
  Field at(const char* name) const {
    if (!has(name)) throw plan_error(fmt::format("the plan has no {}", below(name)), site());
    return Field(json_.at(name), below(name), site_);
  }
  // Read what the document must have, or may have, into members: a name, the member, and so on.
  template <class T, class... Rest>
  void need(const char* name, T& member, Rest&&... rest) const {
    read(at(name), member);
    if constexpr (sizeof...(rest) > 0) need(rest...);
  }
  template <class T, class... Rest>
  void may(const char* name, T& member, Rest&&... rest) const {
    if (has(name)) read(at(name), member);
    if constexpr (sizeof...(rest) > 0) may(rest...);
  }
  // Calls `take` with each element.
  template <class Take>
  void each(Take take) const {
    // Lua cannot tell an empty list from an empty table.
    if (json_.is_object() && json_.empty()) return;
    if (!json_.is_array()) fail("a list");
    for (size_t i = 0; i < json_.size(); ++i) take(Field(json_[i], fmt::format("{}[{}]", path_, i), site_));
  }
  size_t size() const { return json_.size(); }

  std::string text() const {
    if (!json_.is_string()) fail("a text");
    std::string text = json_.get<std::string>();
    if (printable(text) != text) fail("a text without control characters");
    return text;
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
  // One of the words, by its number.
  int word(const std::vector<std::string>& words) const {
    const auto found = std::find(words.begin(), words.end(), text());
    if (found != words.end()) return static_cast<int>(found - words.begin());
    fail(join({words.begin(), words.end() - 1}, ", ") + " or " + words.back());
  }
  template <class Id>
  void indices(size_t size, std::vector<Id>& ids) const {
    each([&](const Field& item) { ids.push_back(item.index(size)); });
  }
  const Json& json() const { return json_; }
  std::optional<Site> as_site() const {
    if (!json_.is_array() || json_.size() != 2 || !json_[0].is_string() || !json_[1].is_number_integer())
      return std::nullopt;
    return Site{json_[0].get<std::string>(), json_[1].get<int>()};
  }
  [[noreturn]] void fail(const std::string& expected) const {
    std::string found = json_.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (found.size() > 60) found = found.substr(0, 57) + "...";
    throw plan_error(fmt::format("the plan's {} should be {}, is {}", path_, expected, found), site());
  }

 private:
  std::optional<Site> site() const { return site_ == nullptr ? std::nullopt : Field(*site_, "").as_site(); }
  std::string below(const char* name) const { return path_.empty() ? name : path_ + "." + name; }

  const Json& json_;
  std::string path_;
  const Json* site_;  // of the nearest struct around
};

void read(const Field& field, std::string& value) { value = field.text(); }
void read(const Field& field, bool& value) { value = field.boolean(); }
void read(const Field& field, double& value) {
  value = field.number();
  if (!std::isfinite(value)) field.fail("a finite number");
}
void read(const Field& field, int64_t& value) { value = field.integer(); }
void read(const Field& field, uint64_t& value) { value = static_cast<uint64_t>(field.integer()); }

void read(const Field& field, int& value) {
  const int64_t whole = field.integer();
  value = static_cast<int>(whole);
  if (value != whole) field.fail("a smaller number");
}

template <class T>
void read(const Field& field, std::vector<T>& items) {
  field.each([&](const Field& item) { read(item, items.emplace_back()); });
}

void read(const Field& field, Site& site) {
  const std::optional<Site> read = field.as_site();
  if (!read) field.fail("[file, line]");
  site = *read;
}

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

// A whole number serves as a double, never the other way round: whatever is whole becomes an integer.
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

Value read_value(const Field& field, size_t units) {
  Value value;
  field.need("name", value.name);
  field.may("init", value.init, "blocks", value.blocks, "site", value.site);
  read(field, value.type);
  value.kind = static_cast<ValueKind>(field.at("kind").word({"input", "parameter", "activation"}));
  if (field.has("unit")) value.unit = field.at("unit").index(units, -1);
  const int64_t width = value.type.shape.empty() ? 1 : value.type.shape.back();
  if (field.has("blocks") && std::accumulate(value.blocks.begin(), value.blocks.end(), int64_t{0}) != width)
    field.at("blocks").fail(fmt::format("sizes that add up to {}", width));
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
  std::vector<std::string> losses;
  for (const OpDef* op : all_ops())
    if (op->loss == Loss::loss) losses.emplace_back(op->name);
  const auto returns = [&](std::string_view what, const Site& site) {
    return plan_error(
        fmt::format("the model returns {}, it should return a loss (one of: {})", what, join(losses, ", ")), site);
  };
  for (const Node& node : graph.nodes)
    for (int output : node.outputs)
      if (output == graph.loss && node.op->loss != Loss::loss)
        throw returns(fmt::format("the result of {}", node.op->name), node.site);
  const Value& loss = graph.values[graph.loss];
  if (loss.kind != ValueKind::activation || !loss.type.shape.empty()) throw returns(loss.name, loss.site);
}

Graph read_graph(const Field& root) {
  Graph graph;
  size_t units = root.at("units").size(), calls = root.at("calls").size();
  root.at("values").each([&](const Field& field) { graph.values.push_back(read_value(field, units)); });
  root.at("units").each([&](const Field& field) {
    Unit unit;
    field.need("name", unit.name, "class", unit.unit_class);
    field.at("parameters").indices(graph.values.size(), unit.parameters);
    graph.units.push_back(std::move(unit));
  });
  root.at("calls").each([&](const Field& field) { graph.calls.push_back({.unit = field.at("unit").index(units)}); });
  std::vector<bool> defined;
  for (const Value& value : graph.values) defined.push_back(value.kind != ValueKind::activation);
  root.at("nodes").each([&](const Field& field) {
    Node node;
    field.need("op", node.op);
    field.may("attrs", node.attrs, "site", node.site);
    field.at("inputs").indices(graph.values.size(), node.inputs);
    field.at("outputs").indices(graph.values.size(), node.outputs);
    node.call = field.at("call").index(calls, -1);
    check_types(field, graph, node);
    check_defined_once(field, graph, node, defined);
    graph.nodes.push_back(std::move(node));
  });
  graph.loss = root.at("loss").index(graph.values.size());
  check_loss(graph);
  return graph;
}

void read(const Field& field, HookAction& action) {
  field.need("kind", action.kind);
  field.may("target", action.target, "handle", action.handle, "axis", action.axis, "stream", action.stream, "op",
            action.op, "text", action.text, "prefetch", action.prefetch, "inflight", action.inflight, "bucket",
            action.bucket, "first", action.first, "keep", action.keep, "wire", action.wire, "keep_last",
            action.keep_last, "site", action.site);
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
            unit.accumulate, "recompute", unit.recompute, "recompute_whole", unit.recompute_whole, "sync_every",
            unit.sync_every, "sync", unit.sync, "layers", unit.layers, "activations", unit.activations, "site",
            unit.shard_site);
  unit.offload = field.has("offload");
  if (!unit.offload) return;
  field.at("offload").need("ahead", unit.offload_ahead, "piece", unit.offload_piece);
  field.at("offload").may("site", unit.offload_site);
}

void read(const Field& field, Strategy& strategy) {
  strategy.splits = static_cast<Splits>(field.at("splits").word({"batch", "tokens", "nothing"}));
  field.need("name", strategy.name, "axes", strategy.axes, "units", strategy.units);
  field.may("site", strategy.site, "differs", strategy.differs);
}

// `steps`: of the plan, which a schedule takes unless it says otherwise.
LearningRate read_learning_rate(const Field& optimizer, int64_t steps) {
  LearningRate rate;
  optimizer.may("lr", rate.peak);
  if (!optimizer.has("schedule")) return rate;
  const Field field = optimizer.at("schedule");
  rate.kind = static_cast<RateKind>(field.at("kind").word({"constant", "warmup", "linear", "cosine"}));
  rate.steps = steps;
  field.may("warmup", rate.warmup, "steps", rate.steps, "least", rate.least);
  const bool falls = rate.kind == RateKind::linear || rate.kind == RateKind::cosine;
  if (rate.warmup < 0 || (falls && rate.warmup > rate.steps))
    field.at("warmup").fail(fmt::format("from 0 to the schedule's {} steps", rate.steps));
  if (rate.least < 0 || rate.least > rate.peak) field.at("least").fail(fmt::format("from 0 to lr, {}", rate.peak));
  return rate;
}

Optimizer read_optimizer(const Field& field, int64_t steps) {
  Optimizer optimizer;
  std::vector<std::string> kinds;
  for (const OpDef* op : all_ops())
    if (op->optimizer != nullptr && !op->optimizer->casts) kinds.emplace_back(op->name);
  optimizer.op = find_op(kinds[field.at("kind").word(kinds)]);
  optimizer.lr = read_learning_rate(field, steps);
  std::vector<double> betas;
  field.may("weight_decay", optimizer.weight_decay, "clip", optimizer.clip, "betas", betas, "site", optimizer.site);
  if (field.has("betas") && betas.size() != 2) field.at("betas").fail("two numbers");
  for (const OptimizerNumber& number : optimizer.op->optimizer->numbers) {
    double value = number.name == "beta1" && !betas.empty()   ? betas[0]
                   : number.name == "beta2" && !betas.empty() ? betas[1]
                                                              : number.usual;
    field.may(number.name.data(), value);
    optimizer.numbers.set(std::string(number.name), value);
  }
  if (optimizer.lr.peak < 0 || optimizer.weight_decay < 0 || optimizer.clip < 0)
    field.fail("of lr, weight_decay and clip from 0");
  return optimizer;
}

Pipeline read_pipeline(const Field& field, int microbatches) {
  Pipeline pipeline;
  std::string placement, split, transfer;
  field.need("axis", pipeline.axis, "schedule", pipeline.schedule);
  field.may("chunks", pipeline.chunks, "placement", placement, "split", split, "transfer", transfer, "site",
            pipeline.site);
  pipeline.v_placement = placement == "v";
  pipeline.split_by_flops = split == "flops";
  pipeline.puts = transfer == "put";
  field.at("turns").each([&](const Field& rank) {
    std::vector<PipelineTurn>& turns = pipeline.turns.emplace_back();
    rank.each([&](const Field& item) {
      std::vector<int> numbers;
      item.indices(INT32_MAX, numbers);
      if (numbers.size() != 3 || numbers[0] > 3 || numbers[1] >= microbatches || numbers[2] >= pipeline.chunks)
        item.fail("[kind, microbatch, chunk]");
      turns.push_back({static_cast<PipelineTurn::Kind>(numbers[0]), numbers[1], numbers[2]});
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

void read(const Field& field, Data& data) {
  field.need("kind", data.kind, "batch", data.global_batch);
  field.may("files", data.files, "vocab", data.vocab, "context", data.context, "order", data.order, "first", data.first,
            "count", data.count, "part", data.part, "scale", data.scale, "document_end", data.document_end, "site",
            data.site);
}

void read(const Field& field, Evaluation& evaluation) {
  field.need("every", evaluation.every, "batches", evaluation.batches, "data", evaluation.data);
  field.may("site", evaluation.site);
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
  field.may("memory_every", keeping.memory_every, "site", keeping.site);
}

void read(const Field& field, ModelDescription& model) { field.need("name", model.name, "arguments", model.arguments); }

void read(const Field& field, InitialWeights& weights) { field.need("path", weights.path, "site", weights.site); }

void read_training(const Field& root, Plan& plan) {
  std::string reduce;
  plan.graph = read_graph(root);
  root.need("steps", plan.steps, "seed", plan.seed, "dtype", plan.param_dtype, "data", plan.data, "strategies",
            plan.strategies, "batch_axes", plan.batch_axes);
  root.may("reduce", reduce, "micro", plan.microbatches, "model", plan.model);
  plan.rank_order = reduce == "rank_order";
  // Ids of arrays: as many as the model has rows for.
  for (const IdLimit& limit : id_limits(plan.graph))
    if (plan.data.kind == "arrays" && (plan.data.vocab == 0 || limit.size < plan.data.vocab))
      plan.data.vocab = limit.size;
  if (root.has("eval")) root.need("eval", plan.evaluation.emplace());
  if (root.has("initial_weights")) root.need("initial_weights", plan.initial_weights.emplace());
  if (root.has("report")) root.need("report", plan.report.emplace());
  if (root.has("checkpoint")) root.need("checkpoint", plan.keeping.emplace());
  plan.optimizer = read_optimizer(root.at("optimizer"), plan.steps);
  if (root.has("pipeline")) plan.pipeline = read_pipeline(root.at("pipeline"), plan.microbatches);
}

// As Json::from_cbor, which copies all of what it has read before it returns.
void parse_cbor(std::string_view cbor, Json& json) {
  nlohmann::detail::json_sax_dom_parser<Json> parser(json);
  try {
    Json::sax_parse(cbor.begin(), cbor.end(), &parser, Json::input_format_t::cbor);
  } catch (const Json::exception& error) {
    throw plan_error(fmt::format("the script sent a plan that cannot be read: {}", error.what()));
  }
}

}  // namespace

Plan read_plan(std::string_view cbor) {
  Json json;
  parse_cbor(cbor, json);
  const Field root(json, "");
  if (!json.is_object()) throw plan_error("the script sent no plan");
  Plan plan;
  root.need("path", plan.path, "mesh", plan.mesh);
  root.at("mesh").may("site", plan.mesh_site);
  if (root.at("kind").word({"plan", "program"}) == 0) {
    read_training(root, plan);
  } else {
    root.need("programs", plan.programs);
    root.at("program_of_rank").indices(plan.programs.size(), plan.program_of_rank);
  }
  return plan;
}

}  // namespace prun
