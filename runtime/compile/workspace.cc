// Adds the scratch of library kernels as buffers that live only while their op runs, so that ops of a stream share it.
#include <fmt/format.h>

#include "compile/compile_state.h"
#include "compile/ir_build.h"

namespace prun {

void add_workspaces(Program& program, const CompileOptions& options) {
  if (!options.workspace_bytes) return;
  SharedAttrs shared;
  for (Body& body : program.bodies) {
    for (Stream& stream : body.streams) {
      for (Op& op : stream.ops) {
        if (op.def->op_class != OpClass::compute) continue;
        int64_t bytes = options.workspace_bytes(program, op);
        if (bytes < 0)
          throw plan_error(fmt::format("{} would need more scratch than can be counted", op.def->name), op.site);
        if (bytes == 0) continue;
        TensorId tensor = add_tensor(program, "scratch", Role::workspace, {Dtype::u8, {bytes}}, false, op.site);
        op.writes.push_back(tensor);
        op.attrs = shared.with(op.attrs, "workspace", bytes);
      }
    }
  }
}

}  // namespace prun
