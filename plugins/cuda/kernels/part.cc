#include "part.h"

#include <fmt/format.h>

namespace prun::cuda {
namespace {

prun_tensor plain(const Tensor& t) { return {t.ptr, t.shape.dims.data(), static_cast<int>(t.shape.rank()), t.dtype}; }

// Calls f(entry, op) with the op of the part.
template <class F>
auto with_op(const Part& part, const F& f) {
  const KernelEntry* entry = find_entry(part.kind);
  if (entry == nullptr) throw Failure(PRUN_ENOTSUP, fmt::format("there is no kernel for {}", part.kind));
  std::vector<prun_tensor> reads, writes;
  for (const Tensor& t : part.reads) reads.push_back(plain(t));
  for (const Tensor& t : part.writes) writes.push_back(plain(t));
  prun_op op{};
  op.size = sizeof op;
  op.kind = part.kind;
  op.reads = reads.data(), op.n_reads = reads.size();
  op.writes = writes.data(), op.n_writes = writes.size();
  prun_attr approximate{"approximate", PRUN_ATTR_TEXT, 0, 0, part.approximate, nullptr, nullptr, 0};
  op.attrs = &approximate, op.n_attrs = part.approximate != nullptr ? 1 : 0;
  return f(*entry, op);
}

}  // namespace

size_t part_workspace(const Part& part) {
  return with_op(part, [](const KernelEntry& entry, prun_op& op) {
    return entry.workspace == nullptr ? size_t{0} : entry.workspace(OpView(op, nullptr));
  });
}

std::unique_ptr<Kernel> make_part(Context& context, const Part& part, const Scratch& scratch, size_t scratch_bytes) {
  return with_op(part, [&](const KernelEntry& entry, prun_op& op) {
    op.workspace = scratch.data;
    op.workspace_bytes = scratch_bytes;
    return entry.make(OpView(op, &context));
  });
}

}  // namespace prun::cuda
