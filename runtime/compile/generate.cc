// The bodies of a generation. The step decodes: it feeds one token, runs the model and samples the next token. The
// prompt body precedes it (prefill): it runs the model on all prompt tokens but the last, in chunks, and fills the KV
// caches.
//
// Surprising fact: all chunks have one size. If it does not divide the prompt, the last tokens are computed twice, with
// equal results. A prompt shorter than a chunk is padded; the padding's cache entries are overwritten before a token
// attends to them.
#include <fmt/format.h>

#include <algorithm>

#include "compile/compile_state.h"
#include "compile/generation.h"
#include "compile/ir_build.h"
#include "compile/op_emitter.h"
#include "ir/batch_inputs.h"
#include "ir/ops.h"

namespace prun {
namespace {

constexpr int64_t kChunk = 64;  // prompt tokens per chunk: amortizes reading the weights

class GenerationBody {
 public:
  // `caches`: KV caches of the attention layers in their order; missing ones are created.
  GenerationBody(CompileState& state, Body& body, std::vector<TensorId>& caches)
      : state_(state), emitter_(state, body), caches_(caches) {
    for (const UnitId unit : state.graph.units.ids())
      for (int p = 0; p < std::ssize(state.graph.units[unit].parameters); ++p)
        place_of_[state.graph.units[unit].parameters[p]] = {unit, p};
  }

  void run() {
    feed();
    for (const Node& node : state_.graph.nodes) lower(node);
  }

 private:
  void feed() {
    Op op = make_op(ops::feed_tokens, {}, {}, Phase::data, state_.plan.data.site);
    for (const std::string_view name : {std::string_view("tokens"), kPositions})
      for (const ValueId id : state_.graph.values.ids()) {
        const Value& value = state_.graph.values[id];
        if (value.kind != ValueKind::input || value.name != name) continue;
        op.writes.push_back(add_tensor(state_.program, value.name, Role::data, value.type, false, op.site));
        emitter_.tensor_of(id, 0) = op.writes.back();
      }
    emitter_.compute(std::move(op));
  }

  TensorId read(ValueId value) {
    const auto parameter = place_of_.find(value);
    if (parameter == place_of_.end()) return emitter_.input_of(value, 0);
    const auto [unit, p] = parameter->second;
    return emitter_.parameter_view(unit, p, state_.storage[unit].read(), state_.graph.values[value].name);
  }

  TensorId next_cache(const Value& value) {
    if (cache_ == caches_.size()) {
      caches_.push_back(add_tensor(state_.program, value.name, Role::cache, value.type, true, value.site));
      state_.program.init().streams[0].ops.push_back(make_zero(caches_.back(), Phase::init, value.site));
    }
    return caches_[cache_++];
  }

  void lower(const Node& node) {
    if (node.op == &ops::enter) {  // an alias of an existing value
      emitter_.tensor_of(node.outputs[0], 0) = emitter_.input_of(node.inputs[0], 0);
      return;
    }
    const ScheduleStep step{Phase::forward, node.call, 0};
    Op op = emitter_.op(*node.op, {}, {}, step, node.site);
    op.attrs = node.attrs;
    for (const ValueId input : node.inputs) op.reads.push_back(read(input));
    if (op.is(ops::cached_attention)) op.reads.push_back(next_cache(state_.graph.values[node.outputs[1]]));
    for (const ValueId output : node.outputs) {
      const bool in_place = op.is(ops::all_reduce), cache = op.is(ops::cached_attention) && output == node.outputs[1];
      const TensorId tensor = in_place ? op.reads[0]
                              : cache  ? op.reads.back()
                                       : emitter_.activation(state_.graph.values[output], 0);
      op.writes.push_back(emitter_.tensor_of(output, 0) = tensor);
    }
    if (!op.communicates()) return emitter_.compute(std::move(op));
    const std::string axis = op.axis = op.attrs.text("axis");
    op.attrs.erase("axis");
    op.attrs.erase("gradient");
    emitter_.communicate(axis, std::move(op));
  }

  CompileState& state_;
  OpEmitter emitter_;
  std::vector<TensorId>& caches_;
  size_t cache_ = 0;
  std::map<ValueId, std::pair<UnitId, int>> place_of_;  // parameter -> unit, index in the unit
};

}  // namespace

void generate(CompileState& state) {
  std::vector<TensorId> caches;
  GenerationBody(state, state.program.step(), caches).run();
  state.program.tokens_per_step = 1;
  const int64_t before = state.options.generation->prompt - 1;
  if (before == 0) return;
  CompileState wide = state;
  const int64_t chunk = std::min(kChunk, text_of(state.plan, *state.options.generation));
  wide.graph = state.plan.graph;
  pad_vocabulary(wide);
  decode_graph(wide.graph, chunk, text_of(state.plan, *state.options.generation), false);
  distribute(wide);
  fuse(wide);
  wide.program.bodies.push_back({"prompt", {0, (before + chunk - 1) / chunk}, {}, {}, {}});
  GenerationBody(wide, wide.program.bodies.back(), caches).run();
  state.program = std::move(wide.program);
}

}  // namespace prun
