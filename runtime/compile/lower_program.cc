// Level 3: lowers the recorded ops of one rank to one stream, in their order.
#include <fmt/format.h>

#include "compile/compile_state.h"
#include "compile/edge_builder.h"
#include "compile/ir_build.h"

namespace prun {

void lower_program(CompileState& state) {
  const RankProgram& source = *state.source;
  Program& program = state.program;
  program.schedule.steps = 1;
  EdgeBuilder edges(program, program.step());
  edges.stream("compute");
  program.init().streams.push_back({"compute", {}});
  Table<TensorId, TensorId> tensor_of;
  for (const ProgramTensor& tensor : source.tensors)
    tensor_of.push_back(add_tensor(program, tensor.name, Role::activation, tensor.type, false,
                                   source.ops.empty() ? Site() : source.ops.front().site));
  for (const ProgramOp& from : source.ops) {
    const OpDef* def = find_op(from.kind);
    if (!def) throw plan_error(fmt::format("there is no op '{}'", from.kind), from.site);
    Op op = make_op(*def, {}, {}, Phase::program, from.site);
    op.attrs = from.attrs;
    for (TensorId input : from.inputs) op.reads.push_back(tensor_of[input]);
    for (TensorId output : from.outputs) op.writes.push_back(tensor_of[output]);
    if (def->op_class == OpClass::communication) op.axis = from.axis.empty() ? kWorld : from.axis;
    if (op.communicates())
      edges.communicate("", std::move(op));
    else
      edges.append(0, std::move(op));
  }
}

}  // namespace prun
