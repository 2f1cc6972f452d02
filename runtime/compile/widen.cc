// CompileOptions::widen: stores and sends every float as f64, so that only the order of sums affects rounding. A cast
// becomes a copy.
//
// All tensors of a buffer have one dtype, because a view has its base's; a buffer therefore grows by one factor.
#include <fmt/format.h>

#include <algorithm>

#include "compile/compile_state.h"

namespace prun {

void widen(CompileState& state) {
  if (!state.options.widen) return;
  Program& program = state.program;
  Table<BufferId, int64_t> factor(program.buffers.size(), 0);
  for (Tensor& tensor : program.tensors) {
    const int64_t wanted = computes(tensor.dtype) ? dtype_bytes(Dtype::f64) / dtype_bytes(tensor.dtype) : 1;
    int64_t& of_buffer = factor[tensor.buffer];
    PRUN_CHECK(of_buffer == 0 || of_buffer == wanted, fmt::format("{} is in a buffer of other floats", tensor.name));
    of_buffer = wanted;
    if (computes(tensor.dtype)) tensor.dtype = Dtype::f64;
    tensor.byte_offset *= wanted;
  }
  for (BufferId id : program.buffers.ids()) program.buffers[id].bytes *= std::max<int64_t>(factor[id], 1);
  for (size_t p = 0; p < program.pools.size(); p++) {
    program.pools[p].slot_bytes = 0;
    for (const Buffer& buffer : program.buffers)
      if (buffer.pool == static_cast<int>(p))
        program.pools[p].slot_bytes = std::max(program.pools[p].slot_bytes, buffer.bytes);
  }
}

}  // namespace prun
