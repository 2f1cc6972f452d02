// Buffers are rounded up to whole cache lines, so that two of them never share one.
#include "compile/ir_build.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"

namespace prun {

BufferId add_buffer(Program& program, const std::string& name, Role role, int64_t bytes, bool persistent,
                    const Site& site) {
  Buffer buffer;
  buffer.name = name;
  buffer.role = role;
  buffer.bytes = round_up(std::max<int64_t>(bytes, 1), kAlignBytes);
  buffer.persistent = persistent;
  buffer.site = site;
  program.buffers.push_back(std::move(buffer));
  return program.buffers.last();
}

TensorId add_tensor(Program& program, const std::string& name, Role role, TensorType type, bool persistent,
                    const Site& site) {
  const std::optional<int64_t> bytes = byte_count(type.dtype, type.shape);
  if (!bytes)
    throw plan_error(fmt::format("'{}' would be {}{}: more bytes than a program can have", name, dtype_name(type.dtype),
                                 shape_text(type.shape)),
                     site);
  Tensor tensor;
  tensor.name = name;
  tensor.dtype = type.dtype;
  tensor.shape = std::move(type.shape);
  tensor.buffer = add_buffer(program, name, role, *bytes, persistent, site);
  program.tensors.push_back(std::move(tensor));
  return program.tensors.last();
}

TensorId add_view(Program& program, const std::string& name, TensorId of, int64_t first, const Shape& shape) {
  const Tensor& base = program.tensors[of];
  Tensor tensor;
  tensor.name = name;
  tensor.buffer = base.buffer;
  tensor.dtype = base.dtype;
  tensor.byte_offset = base.byte_offset + first * dtype_bytes(base.dtype);
  tensor.shape = shape;
  PRUN_CHECK(
      first >= 0 && first + tensor.count() <= base.count(),
      fmt::format("view {} of {}: elements {} + {} of {}", name, base.name, first, tensor.count(), base.count()));
  program.tensors.push_back(std::move(tensor));
  return program.tensors.last();
}

Op make_op(const OpDef& def, std::vector<TensorId> reads, std::vector<TensorId> writes, Phase phase, const Site& site) {
  Op op;
  op.def = &def;
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  op.phase = phase;
  op.site = site;
  return op;
}

Op make_cast(const Program& program, TensorId from, TensorId to, Phase phase, const Site& site) {
  Op op = make_op(ops::cast, {from}, {to}, phase, site);
  op.attrs.set("dtype", std::string(dtype_name(program.tensors[to].dtype)));
  return op;
}

Op make_all_reduce(TensorId tensor, const std::string& how, const std::string& axis, Phase phase, const Site& site) {
  Op op = make_op(ops::all_reduce, {tensor}, {tensor}, phase, site);
  op.attrs.set("op", how);
  op.axis = axis;
  return op;
}

Op make_zero(TensorId tensor, Phase phase, const Site& site) {
  Op op = make_op(ops::fill, {}, {tensor}, phase, site);
  op.attrs.set("value", 0.0);
  return op;
}

}  // namespace prun
