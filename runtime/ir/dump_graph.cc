// The text form of a model graph: parameters by unit, then the nodes in execution order, call by call.
#include <fmt/format.h>

#include <algorithm>

#include "ir/graph.h"
#include "ir/split_axes.h"

namespace prun {
namespace {

std::string values_text(const Graph& graph, const std::vector<ValueId>& ids, bool typed) {
  std::string out;
  for (ValueId id : ids) {
    const Value& value = graph.values[id];
    const bool known = !typed && value.kind != ValueKind::input;
    out += (out.empty() ? "" : ", ") + value.name;
    if (!known) out += fmt::format(":{}[{}]", dtype_name(value.type.dtype), fmt::join(value.type.shape, ","));
  }
  return out;
}

void add_unit(std::string& out, const Graph& graph, UnitId id) {
  const Unit& unit = graph.units[id];
  out += fmt::format("\nunit {} of class {}", unit.name, unit.unit_class);
  if (unit.twin_of >= 0) out += ", a twin of " + graph.units[unit.twin_of].name;
  if (unit.part_of >= 0) out += ", a part of " + graph.units[unit.part_of].name;
  out += "\n";
  for (ValueId parameter : unit.parameters) {
    const Value& value = graph.values[parameter];
    out += "  " + values_text(graph, {parameter}, true);
    const SplitAxes axes(value.split_axis);
    if (!axes.part.empty()) out += fmt::format("  S(0) over {}", axes.part);
    if (!axes.split.empty()) out += fmt::format("  S({}) over {}", value.split_dim, axes.split);
    if (value.grain > 1) out += fmt::format("  padded from {}", shape_text(value.whole));
    if (!value.partial_over.empty())
      out += fmt::format("  gradient partial over {}", fmt::join(value.partial_over, ", "));
    out += "\n";
  }
}

void add_nodes(std::string& out, const Graph& graph, const std::vector<Node>& nodes, std::string_view phase) {
  size_t width = 0;
  for (const Node& node : nodes) width = std::max(width, node.op->name.size());
  CallId call;
  for (const Node& node : nodes) {
    if (node.call != call)
      out += fmt::format("\n{} {} (call {}, stage {})\n", phase, graph.units[graph.calls[node.call].unit].name,
                         node.call.index(), graph.calls[node.call].stage);
    call = node.call;
    std::string attrs;
    for (const auto& [name, value] : node.attrs.values())
      attrs += fmt::format("{}{}={}", attrs.empty() ? "  {" : " ", name, attr_text(value));
    out += fmt::format("  {:<{}}  {} -> {}{}{}\n", node.op->name, width, values_text(graph, node.inputs, false),
                       values_text(graph, node.outputs, true), attrs.empty() ? "" : attrs + "}",
                       node.site.known() ? "  [" + node.site.text() + "]" : "");
  }
}

}  // namespace

std::string dump_graph(const Graph& graph, const std::vector<Node>& backward) {
  std::string out = fmt::format("loss {}\n", values_text(graph, {graph.loss}, true));
  for (UnitId unit : graph.units.ids()) add_unit(out, graph, unit);
  add_nodes(out, graph, graph.nodes, "forward");
  add_nodes(out, graph, backward, "backward");
  return out;
}

}  // namespace prun
