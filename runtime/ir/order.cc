// Builds the vector clocks by walking every stream as far as its waits allow, in turns.
//
// Surprising fact: that walk is itself one legal execution, so a wait cycle shows as streams that cannot move on.
#include "ir/order.h"

#include <algorithm>

namespace prun {
namespace {

// An edge to the step before is always satisfied: streams meet at the end of every step.
bool satisfied(const Op& op, const std::vector<int>& done) {
  for (const Edge& edge : op.waits) {
    if (edge.back > 0) continue;
    if (edge.stream < 0 || static_cast<size_t>(edge.stream) >= done.size()) return false;
    if (done[edge.stream] <= edge.index) return false;
  }
  return true;
}

}  // namespace

Order::Order(const Body& body) : streams_(static_cast<int>(body.streams.size())) {
  const size_t width = body.streams.size();
  first_.resize(width);
  int total = 0;
  for (size_t s = 0; s < width; s++) {
    first_[s] = total;
    total += std::ssize(body.streams[s].ops);
  }
  clocks_.assign(static_cast<size_t>(total) * width, 0);
  sequence_.reserve(static_cast<size_t>(total));

  // An op's clock is the join of what its predecessor and the ops it waits for had seen, plus those ops themselves.
  const auto join = [&](int* into, OpRef op) {
    const int* from = clock(op);
    for (size_t s = 0; s < width; s++) into[s] = std::max(into[s], from[s]);
    into[op.stream] = std::max(into[op.stream], op.index + 1);
  };
  std::vector<int> done(width, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < width; s++) {
      const std::vector<Op>& ops = body.streams[s].ops;
      while (done[s] < std::ssize(ops) && satisfied(ops[done[s]], done)) {
        const OpRef self{static_cast<int>(s), done[s]};
        int* mine = &clocks_[static_cast<size_t>(first_[s] + self.index) * width];
        if (self.index > 0) join(mine, {self.stream, self.index - 1});
        for (const Edge& edge : ops[self.index].waits) {
          if (edge.back == 0) join(mine, {edge.stream, edge.index});
        }
        sequence_.push_back(self);
        done[s]++;
        moved = true;
      }
    }
  }
  for (size_t s = 0; s < width; s++) {
    if (done[s] < std::ssize(body.streams[s].ops)) stuck_.push_back({static_cast<int>(s), done[s]});
  }
}

}  // namespace prun
