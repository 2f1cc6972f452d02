// Compute ops read tensors as they were written: parameters and results as a whole, batches in samples, and results
// under the name of their writer. An in-place op (a gradient over logits) gives its output a name of its own, so a read
// that comes too early or too late is detected as a read of another value.
//
// Surprising fact: a view that is too short still fits an op that takes any size: a table with fewer rows, rows with
// fewer columns.
#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"
#include "verify/values.h"

namespace prun::verify {
namespace {

// Returns the writer's output that covers the first byte; null if the writer is of another step or missing.
const Tensor* written_as(const OpContext& context, const Tensor& read, const ValueState& state) {
  if (state.writer.stream < 0) return nullptr;
  for (const TensorId id : context.body.op(state.writer).writes) {
    const Tensor& tensor = context.body.program->tensors[id];
    const bool covers = tensor.buffer == read.buffer && tensor.byte_offset <= read.byte_offset &&
                        read.byte_offset < tensor.byte_offset + tensor.bytes();
    if (covers) return &tensor;
  }
  return nullptr;
}

bool same_rows(const Shape& a, const Shape& b) {
  return a.size() == b.size() && std::equal(a.begin() + 1, a.end(), b.begin() + 1);
}

}  // namespace

void check_reads(const OpContext& context) {
  if (context.op.def->op_class != OpClass::compute || context.op.is(ops::norm2) || is_check(context.op)) return;
  for (size_t r = 0; r < context.reads.size(); r++) {
    const Tensor& read = *context.read_tensors[r];
    if (context.reads[r].empty()) continue;
    const ValueState& state = context.reads[r].front().state;
    const int64_t piece = state.placement.piece_count;
    if (piece > 0 && read.count() != piece && find_elementwise_rule(*context.op.def) == nullptr &&
        !finds_matrices(context.op) && !is_factored(context.op)) {
      context.report("part of a tensor",
                     fmt::format("reads {} elements of buffer '{}' where a parameter of {} begins", read.count(),
                                 context.body.buffer_name(read.buffer), piece),
                     state);
      return;
    }
    const Tensor* written = written_as(context, read, state);
    const Program& program = *context.body.program;
    const bool is_result = program.buffers[read.buffer].role == Role::activation;
    if (written != nullptr && written != &read && is_result && read.shape == written->shape) {
      context.report("another value", fmt::format("reads '{}' at the place of '{}'", read.name, written->name), state);
      return;
    }
    if (written == nullptr || read.shape.size() < 2 || written->shape.size() < 2) continue;
    const bool samples = context.body.op(state.writer).is(ops::next_batch) && same_rows(read.shape, written->shape);
    if (read.count() >= written->count() || samples) continue;
    context.report("part of a tensor",
                   fmt::format("reads {} of what is {}", shape_text(read.shape), shape_text(written->shape)), state);
    return;
  }
}

}  // namespace prun::verify
