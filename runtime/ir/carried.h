// Ops that are carried over the end of a step: the last collectives of a stream and their casts, if the last op of
// stream 0 does not wait for them. Ops of the next step that access the same bytes wait instead (Edge::back).
//
// Surprising fact: checking two consecutive steps covers all steps. A carried op has ended when the next step ends, so
// that no op of the step after that can conflict with it.
#pragma once
#include <optional>

#include "ir/order.h"
#include "ir/program.h"

namespace prun {

// Returns for each stream the number of its ops that have completed when the body ends; the others are carried over.
// Counts all ops if stream 0 is empty. The waits of `body` must have no cycle.
Table<StreamId, int> ended_with(const Body& body);
// Returns whether any op is carried over.
bool goes_on(const Body& body);

// Happens-before between two consecutive steps.
class TwoSteps {
 public:
  explicit TwoSteps(const Body& body);
  // Returns whether `a` of a step has completed before `b` of the next one begins, in every execution.
  bool before(OpRef a, OpRef b) const;

 private:
  static Body in_a_row(const Body& body);
  Table<StreamId, int> ops_;  // per step
  Order order_;
};

// An op of the next step that may run concurrently with a carried op, and must not, because it accesses the same bytes,
// shares its lane, or ends that step. `tensor`: its operand on these bytes; none if bytes are not the reason.
struct Overtaking {
  OpRef op;
  TensorId tensor;
};
std::optional<Overtaking> overtaking(const Program& program, const Body& body, const TwoSteps& steps, OpRef carried);

}  // namespace prun
