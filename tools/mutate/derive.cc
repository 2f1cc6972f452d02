// Edges and offsets as the compiler's passes derive them.
#include <map>

#include "compile/draft.h"
#include "compile/record.h"
#include "ir/order.h"
#include "mutant.h"

namespace prun::mutate {

void derive_anew(Program& program, const Body& recorded) {
  const Body from = recorded;
  const Order order(from);
  Body to;
  for (const Stream& stream : from.streams) to.streams.push_back({stream.name, {}});
  OpRecorder recorder(program, to);
  std::map<std::pair<int, int>, int> occupants;  // slot of a pool -> buffer
  for (const OpRef ref : order.sequence()) {
    Op op = from.streams[static_cast<size_t>(ref.stream)].ops[static_cast<size_t>(ref.index)];
    op.waits.clear();
    for (const std::vector<int>* ids : {&op.reads, &op.writes}) {
      for (const int id : *ids) {
        const int buffer = program.tensors[static_cast<size_t>(id)].buffer;
        const Buffer& b = program.buffers[static_cast<size_t>(buffer)];
        if (b.pool < 0) continue;
        const auto [slot, fresh] = occupants.try_emplace({b.pool, b.slot}, buffer);
        if (fresh || slot->second == buffer) continue;
        recorder.take_over(buffer, slot->second);
        slot->second = buffer;
      }
    }
    recorder.record(ref.stream, std::move(op));
  }
  program.step = std::move(to);
  join_step(program);
  assign_memory(program);
}

}  // namespace prun::mutate
