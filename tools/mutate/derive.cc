// Derives edges and offsets as the compiler's passes do.
#include <map>

#include "compile/compile_state.h"
#include "compile/edge_builder.h"
#include "ir/order.h"
#include "mutant.h"

namespace prun::mutate {

namespace {

// add_step_barrier ends a step with the compute stream, so no op may have to wait for that stream's last op.
bool can_be_joined(const Body& body) {
  const Order order(body);
  if (body.streams.empty() || body.streams[0].ops.empty() || !order.stuck().empty()) return false;
  const OpRef last{0, static_cast<int>(body.streams[0].ops.size()) - 1};
  for (int s = 1; s < static_cast<int>(body.streams.size()); s++) {
    const std::vector<Op>& ops = body.streams[static_cast<size_t>(s)].ops;
    if (!ops.empty() && order.before(last, {s, static_cast<int>(ops.size()) - 1})) return false;
  }
  return true;
}

}  // namespace

bool derive_anew(Program& program, const Body& recorded) {
  const Body from = recorded;
  const Order order(from);
  Body to;
  for (const Stream& stream : from.streams) to.streams.push_back({stream.name, {}});
  EdgeBuilder recorder(program, to);
  std::map<std::pair<int, int>, BufferId> occupants;  // slot of a pool -> buffer
  for (const OpRef ref : order.sequence()) {
    Op op = from.streams[ref.stream].ops[ref.index];
    op.waits.clear();
    for (const std::vector<TensorId>* ids : {&op.reads, &op.writes}) {
      for (const TensorId id : *ids) {
        const BufferId buffer = program.tensors[id].buffer;
        const Buffer& b = program.buffers[buffer];
        if (b.pool < 0) continue;
        const auto [slot, fresh] = occupants.try_emplace({b.pool, b.slot}, buffer);
        if (fresh || slot->second == buffer) continue;
        recorder.take_over(buffer, slot->second);
        slot->second = buffer;
      }
    }
    recorder.append(ref.stream, std::move(op));
  }
  if (!can_be_joined(to)) return false;
  program.step().streams = std::move(to.streams);
  add_step_barrier(program, true);
  assign_memory(program);
  return true;
}

}  // namespace prun::mutate
