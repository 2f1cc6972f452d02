// Graph: each value has one producer, which precedes its readers, and the type that its op infers. Program: ids, byte
// ranges and edges refer to existing objects, and offsets are inside the arena.
#include <fmt/format.h>

#include "compile/compile_state.h"

namespace prun {
namespace {

class GraphCheck {
 public:
  GraphCheck(const Graph& graph, std::string_view pass) : graph_(graph), pass_(pass) {
    for (const Value& value : graph.values) made_.push_back(value.kind != ValueKind::activation);
  }

  // `infers`: also checks types. It is false for backward, because derivatives may omit dims of size 1 that op rules
  // infer.
  void check(const std::vector<Node>& nodes, bool infers) {
    for (const Node& node : nodes) {
      require(graph_.calls.has(node.call), node, "belongs to no call");
      std::vector<TensorType> inputs;
      for (ValueId input : node.inputs) {
        require(known(input) && made_[input], node, fmt::format("reads value {} too early", input.index()));
        inputs.push_back(graph_.values[input].type);
      }
      for (ValueId output : node.outputs) {
        require(known(output) && !made_[output], node, fmt::format("makes value {} again", output.index()));
        made_[output] = true;
      }
      if (infers && node.op->infer) check_types(node, inputs);
    }
  }

 private:
  bool known(ValueId value) const { return graph_.values.has(value); }
  void require(bool good, const Node& node, const std::string& what) const {
    PRUN_CHECK(good, fmt::format("after {}: {} at {} {}", pass_, node.op->name, node.site.text(), what));
  }
  void check_types(const Node& node, const std::vector<TensorType>& inputs) const {
    const std::vector<TensorType> types = node.op->infer(inputs, node.attrs);
    for (size_t i = 0; i < types.size(); ++i) {
      const TensorType& has = graph_.values[node.outputs[i]].type;
      require(has.dtype == types[i].dtype && has.shape == types[i].shape, node,
              fmt::format("makes {}, and infers {}", shape_text(has.shape), shape_text(types[i].shape)));
    }
  }

  const Graph& graph_;
  std::string_view pass_;
  Table<ValueId, bool> made_;
};

void check_program(const Program& program, std::string_view pass) {
  const auto require = [&](bool good, std::string_view what, const std::string& name) {
    PRUN_CHECK(good, fmt::format("after {}: {} of '{}'", pass, what, name));
  };
  for (const Tensor& tensor : program.tensors) {
    require(program.buffers.has(tensor.buffer), "no buffer", tensor.name);
    require(tensor.byte_offset >= 0 && tensor.byte_offset + tensor.bytes() <= program.buffers[tensor.buffer].bytes,
            "bytes outside the buffer", tensor.name);
  }
  for (const Buffer& buffer : program.buffers)
    if (buffer.offset >= 0 && program.arena_bytes > 0)
      require(buffer.offset % kAlignBytes == 0 && buffer.offset + buffer.bytes <= arena_bytes(program, buffer.space),
              "an offset outside the arena", buffer.name);
  for (const Body& body : program.bodies)
    for (const Stream& stream : body.streams)
      for (const Op& op : stream.ops) {
        for (const std::vector<TensorId>* ids : {&op.reads, &op.writes})
          for (TensorId id : *ids)
            require(program.tensors.has(id), "a tensor that is not there", std::string(op.def->name));
        for (const Edge& edge : op.waits)
          require(edge.stream < body.streams.next() && edge.index < std::ssize(body.streams[edge.stream].ops),
                  "an edge to no op", std::string(op.def->name));
      }
}

}  // namespace

void check_invariants(const CompileState& state, std::string_view pass) {
  if (state.program.tensors.empty()) {
    GraphCheck graph(state.graph, pass);
    graph.check(state.graph.nodes, true);
    graph.check(state.backward, false);
  }
  check_program(state.program, pass);
}

}  // namespace prun
