// Streams meet at the end of a step, and of each batch of an evaluation: the last op of stream 0 waits for the last op
// of every other stream, and the first op of every other stream waits for that op of the step before. One step's order
// then proves every step's.
#include "compile/compile_state.h"
#include "ir/order.h"

namespace prun {

namespace {

void join(Body& body) {
  if (body.streams.empty() || body.streams[0].ops.empty()) return;
  Order order(body);
  if (!order.stuck().empty()) return;  // verify says it better
  std::vector<Op>& main = body.streams[0].ops;
  OpRef last{0, static_cast<int>(main.size()) - 1};
  for (int s = 1; s < std::ssize(body.streams); ++s) {
    std::vector<Op>& ops = body.streams[s].ops;
    if (ops.empty()) continue;
    OpRef tail{s, static_cast<int>(ops.size()) - 1};
    if (!order.before(tail, last)) {
      PRUN_CHECK(!order.before(last, tail),
                 "a stream outlives the compute stream: nothing there may wait for its last op");
      main.back().waits.push_back({s, tail.index, 0});
    }
    ops.front().waits.push_back({0, last.index, 1});
  }
}

}  // namespace

void add_step_barrier(Program& program) {
  for (Body& body : program.bodies)
    if (body.when.every > 0) join(body);
}

}  // namespace prun
