// The kernel of another op as a part of a kernel. A computation that a library does not fuse runs the kernel of the
// separate op, so that each computation has one kernel.
#pragma once
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "op.h"

namespace prun::cuda {

struct Part {
  const char* kind;
  std::vector<Tensor> reads, writes;
  const char* approximate = nullptr;  // gelu's attribute
};

size_t part_workspace(const Part& part);
// Throws Failure as the op's own maker does.
std::unique_ptr<Kernel> make_part(Context& context, const Part& part, const Scratch& scratch, size_t scratch_bytes);

}  // namespace prun::cuda
