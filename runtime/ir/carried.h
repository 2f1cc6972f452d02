// What goes on over the end of a step: the last collectives of a stream, and casts for them, where the last op of
// stream 0 does not wait for them. Ops of the next step that touch the same bytes do (Edge::back).
//
// Surprising fact: two steps in a row are enough to judge all of them. What goes on has ended when the next step ends,
// so no op of the step after that can meet it.
#pragma once
#include <optional>

#include "ir/order.h"
#include "ir/program.h"

namespace prun {

// Of each stream how many of its ops have completed when the body ends; those behind them go on. All where stream 0 has
// no ops.
Table<StreamId, int> ended_with(const Body& body, const Order& order);
// Whether anything goes on.
bool goes_on(const Body& body);

// Happens-before from a step to the one behind it.
class TwoSteps {
 public:
  explicit TwoSteps(const Body& body);
  // True when `a` of a step has completed before `b` of the next one begins, on every execution.
  bool before(OpRef a, OpRef b) const;

 private:
  static Body in_a_row(const Body& body);
  Table<StreamId, int> ops_;  // of one step
  Order order_;
};

// An op of the next step that may run beside one that goes on, and must not: it touches the same bytes, shares its
// lane, or ends that step. `tensor`: what of it lies on these bytes; none for the others.
struct Overtaking {
  OpRef op;
  TensorId tensor;
};
std::optional<Overtaking> overtaking(const Program& program, const Body& body, const TwoSteps& steps, OpRef carried);

}  // namespace prun
