// The terms of a loss and the named numbers of a plan's model: reads them, and adds the nodes of penalties.
//
// Surprising fact: a penalty (L2) lists parameters, and its nodes are added here, each to the first call of its
// parameter's unit, so that the stage and the gathers of that unit serve it.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ir/loss_reader.h"
#include "ir/ops.h"

namespace prun {

std::vector<LossTerm> loss_terms(const Graph& graph) {
  if (!graph.terms.empty()) return graph.terms;
  return {LossTerm{.values = {graph.loss}}};
}

namespace plan_document {
namespace {

ValueId add_output(Graph& graph, Node& node, const std::string& name) {
  std::vector<TensorType> inputs;
  for (const ValueId input : node.inputs) inputs.push_back(graph.values[input].type);
  Value value;
  value.name = name;
  value.type = node.op->infer(inputs, node.attrs).front();
  value.site = node.site;
  node.outputs.push_back(graph.values.next());
  graph.values.push_back(std::move(value));
  return node.outputs.back();
}

// Adds Σ w² of each parameter to the first call of its unit; returns the scalars.
std::vector<ValueId> add_penalty(Graph& graph, const std::vector<ValueId>& parameters, const Site& site, int number) {
  std::vector<ValueId> values;
  std::map<CallId, std::vector<Node>> made;
  for (const ValueId parameter : parameters) {
    CallId call;
    for (const CallId id : graph.calls.ids())
      if (call.none() && graph.calls[id].unit == graph.values[parameter].unit) call = id;
    const std::string name =
        fmt::format("{}.l2{}", graph.values[parameter].name, number > 0 ? std::to_string(number) : "");
    Node squares{&ops::squares, {parameter}, {}, {}, call, site};
    Node mean{&ops::mean, {add_output(graph, squares, name + ".squares")}, {}, {}, call, site};
    values.push_back(add_output(graph, mean, name));
    made[call].push_back(std::move(squares));
    made[call].push_back(std::move(mean));
  }
  std::vector<Node> nodes;
  const auto add_until = [&](CallId call) {
    while (!made.empty() && made.begin()->first < call) {
      nodes.insert(nodes.end(), made.begin()->second.begin(), made.begin()->second.end());
      made.erase(made.begin());
    }
  };
  for (Node& node : graph.nodes) {
    add_until(node.call);
    nodes.push_back(std::move(node));
  }
  add_until(graph.calls.next());
  graph.nodes = std::move(nodes);
  return values;
}

std::vector<NamedNumber::Part> read_parts(const Field& field, size_t terms) {
  std::vector<NamedNumber::Part> parts;
  field.each([&](const Field& item) { parts.push_back({item.at("term").index(terms), item.at("factor").number()}); });
  return parts;
}

}  // namespace

void read_loss_terms(const Field& root, Graph& graph) {
  if (!root.has("terms")) return;
  int penalties = 0;
  root.at("terms").each([&](const Field& field) {
    LossTerm term;
    term.coefficient = field.at("coefficient").number();
    term.optimised = field.at("optimised").boolean();
    term.in_steps = field.at("steps").boolean();
    if (field.has("parameters")) {
      std::vector<ValueId> parameters;
      field.at("parameters").indices(graph.values.size(), parameters);
      for (const ValueId parameter : parameters)
        if (graph.values[parameter].kind != ValueKind::parameter) field.at("parameters").fail("parameters");
      term.values = add_penalty(graph, parameters, field.at("site").as_site().value_or(Site{}), penalties++);
    } else {
      term.values = {field.at("id").index(graph.values.size())};
    }
    graph.terms.push_back(std::move(term));
  });
  for (const LossTerm& term : graph.terms)
    if (!term.values.empty()) {
      graph.loss = term.values.front();
      break;
    }
  for (Node& node : graph.nodes)
    for (const LossTerm& term : graph.terms)
      if (term.coefficient != 1 && std::ranges::find(term.values, node.outputs.front()) != term.values.end())
        node.attrs.set("coefficient", term.coefficient);
  if (!root.has("named")) return;
  root.at("named").each([&](const Field& field) {
    NamedNumber named;
    named.name = field.at("name").text();
    named.in_steps = field.at("steps").boolean();
    named.terms = read_parts(field.at("terms"), graph.terms.size());
    if (field.has("over")) named.over = read_parts(field.at("over"), graph.terms.size());
    graph.named.push_back(std::move(named));
  });
}

}  // namespace plan_document
}  // namespace prun
