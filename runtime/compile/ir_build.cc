// Buffers come in whole cache lines, so that two of them never share one.
#include "compile/ir_build.h"

#include <fmt/format.h>

#include <algorithm>

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
  return static_cast<int>(program.buffers.size()) - 1;
}

TensorId add_tensor(Program& program, const std::string& name, Role role, TensorType type, bool persistent,
                    const Site& site) {
  Tensor tensor;
  tensor.name = name;
  tensor.dtype = type.dtype;
  tensor.shape = std::move(type.shape);
  tensor.buffer = add_buffer(program, name, role, tensor.bytes(), persistent, site);
  program.tensors.push_back(std::move(tensor));
  return static_cast<int>(program.tensors.size()) - 1;
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
  return static_cast<int>(program.tensors.size()) - 1;
}

}  // namespace prun
