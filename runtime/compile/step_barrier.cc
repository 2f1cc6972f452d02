// Streams meet at the end of a step, and of each batch of an evaluation: the last op of stream 0 waits for the last op
// of every other stream, and the first op of every other stream waits for that op of the step before. One step's order
// then proves every step's.
#include "compile/compile_state.h"
#include "compile/ir_build.h"
#include "ir/ops.h"
#include "ir/order.h"

namespace prun {

namespace {

// Something waits for the last op of stream 0, or there is none: where a rank of a pipeline trains nothing.
bool ends_elsewhere(const Body& body, const Order& order) {
  const int last = std::ssize(body.streams[0].ops) - 1;
  for (int s = 1; s < std::ssize(body.streams); ++s) {
    const int tail = std::ssize(body.streams[s].ops) - 1;
    if (tail >= 0 && (last < 0 || order.before({0, last}, {s, tail}))) return true;
  }
  return false;
}

void join(Program& program, Body& body) {
  if (body.streams.empty()) return;
  Order order(body);
  if (!order.stuck().empty()) return;  // verify says it better
  std::vector<Op>& main = body.streams[0].ops;
  if (ends_elsewhere(body, order)) {
    const TensorId end = add_tensor(program, "end", Role::workspace, {Dtype::f32, {}}, false, {});
    main.push_back(make_zero(end, Phase::step, {}));
    order = Order(body);
  }
  if (main.empty()) return;
  OpRef last{0, static_cast<int>(main.size()) - 1};
  for (int s = 1; s < std::ssize(body.streams); ++s) {
    std::vector<Op>& ops = body.streams[s].ops;
    if (ops.empty()) continue;
    OpRef tail{s, static_cast<int>(ops.size()) - 1};
    if (!order.before(tail, last)) main.back().waits.push_back({s, tail.index, 0});
    ops.front().waits.push_back({0, last.index, 1});
  }
}

}  // namespace

void add_step_barrier(Program& program) {
  for (Body& body : program.bodies)
    if (body.when.every > 0) join(program, body);
}

}  // namespace prun
