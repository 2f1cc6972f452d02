// Gradients of weights hide the sums of dx: where a layer's dx is reduced over ranks, its dw moves behind that
// reduction. Both halves of a tensor parallel block do so, and layers that read the same x hide one sum behind all
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

// Where the dw at `from` can go: right behind the reduction of what the dx before it made. Where it is when there is
// none in this call, or something on the way needs dw or takes the place of what dw reads.
size_t behind_reduction(const std::vector<Node>& nodes, size_t from) {
  const Node& dw = nodes[from];
  size_t dx =
      from - (from > 1 && nodes[from - 1].op == &ops::add ? 2 : 1);  // x with other readers: dx is added to theirs
  if (nodes[dx].op != &ops::linear_dx) return from;
  std::vector<ValueId> follows = nodes[from - 1].outputs;
  for (size_t i = from + 1; i < nodes.size() && nodes[i].call == dw.call; ++i) {
    if (shares(nodes[i].inputs, dw.outputs)) return from;
    bool on_the_way = shares(nodes[i].inputs, follows);
    if (on_the_way && nodes[i].op->op_class == OpClass::communication)
      return shares(nodes[i].inputs, dw.inputs) ? from : i;
    // Only what is cheap may come first: pieces are cut, the gradients of other readers of x are made and added.
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
