// Overlaps dw GEMMs with the reductions of dx: the dw of a layer whose dx is reduced over ranks moves after that
// reduction. Both halves of a tensor-parallel block qualify; layers that read the same x hide one reduction behind all
// their dw.
#include <algorithm>

#include "compile/compile_state.h"
#include "ir/ops.h"

namespace prun {
namespace {

bool shares(const std::vector<ValueId>& a, const std::vector<ValueId>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](ValueId value) { return std::find(b.begin(), b.end(), value) != b.end(); });
}

// Returns the new position of the dw at `from`: right after the reduction of the preceding dx. Returns `from` if the
// call has no such reduction, if a node in between reads dw, or if the reduction overwrites an input of dw.
size_t behind_reduction(const std::vector<Node>& nodes, size_t from) {
  const Node& dw = nodes[from];
  // If x has other readers, an add to their gradients follows dx.
  size_t dx = from - (from > 1 && nodes[from - 1].op == &ops::add ? 2 : 1);
  if (nodes[dx].op != &ops::linear_dx) return from;
  std::vector<ValueId> follows = nodes[from - 1].outputs;
  for (size_t i = from + 1; i < nodes.size() && nodes[i].call == dw.call; ++i) {
    if (shares(nodes[i].inputs, dw.outputs)) return from;
    bool on_the_way = shares(nodes[i].inputs, follows);
    if (on_the_way && nodes[i].op->op_class == OpClass::communication)
      return shares(nodes[i].inputs, dw.inputs) ? from : i;
    // Allowed in between: add and cut_pieces of dx, and gradients of other readers of x.
    if (!on_the_way && nodes[i].op != &ops::linear_dx && nodes[i].op != &ops::linear_dw) return from;
    if (on_the_way && nodes[i].op != &ops::add && nodes[i].op != &ops::cut_pieces) return from;
    if (on_the_way) follows.insert(follows.end(), nodes[i].outputs.begin(), nodes[i].outputs.end());
  }
  return from;
}

}  // namespace

void overlap_dw(CompileState& state) {
  std::vector<Node>& nodes = state.backward;
  for (size_t i = nodes.size(); i-- > 1;) {
    if (nodes[i].op != &ops::linear_dw) continue;
    auto at = [&](size_t n) { return nodes.begin() + static_cast<std::ptrdiff_t>(n); };
    size_t to = behind_reduction(nodes, i);
    std::rotate(at(i), at(i + 1), at(to + 1));
  }
}

}  // namespace prun
