// Optimizer state in host memory (offload = "optimizer", after ZeRO-Offload, Ren et al. 2021): pieces are loaded to the
// device, updated there, and stored back. Each direction has its own stream, and a pool has ahead + 1 slots of one
// piece:
//
//   load      piece 2    piece 3    piece 4     waits until its slot's previous piece is stored
//   compute   update 1   update 2   update 3
//   store     piece 0    piece 1    piece 2
//
// The first pieces load while forward still runs.
#include <fmt/format.h>

#include <algorithm>

#include "compile/ir_build.h"
#include "compile/optimizer_step.h"
#include "ir/ops.h"

namespace prun {

void OptimizerStep::transfer(const OpDef& def, TensorId from, TensorId to, StreamId stream, UnitId unit) {
  Op op = make_op(def, {from}, {to}, Phase::step, state_.storage[unit].offload->offload_site);
  op.unit = state_.unit_name(unit);
  emitter_.append(stream, std::move(op));
}

// The compute stream must end the step, so it also stores the last piece, after the last update.
void OptimizerStep::update_offloaded(UnitId unit, TensorId clip, bool last) {
  const UnitStorage& storage = state_.storage[unit];
  const StrategyUnit& offload = *storage.offload;
  const Dtype dtype = state_.master_dtype();
  // Pieces begin on a cache line in every dtype involved.
  const int64_t line = kAlignBytes / dtype_bytes(Dtype::bf16);
  const int64_t most = std::max(line, offload.offload_piece / dtype_bytes(dtype) / line * line);
  std::vector<TensorId> away = storage.optimizer;
  if (storage.master_offloaded) away.insert(away.begin(), storage.master);
  const StreamId load = emitter_.stream(std::string(ops::load.name)),
                 store = emitter_.stream(std::string(ops::store.name));
  const int pool = emitter_.pool_of("optimizer.staged", Role::optimizer, int64_t{offload.offload_ahead} + 1);
  for (int64_t first = 0; first < storage.shard; first += most) {
    const Shape shape = {std::min(most, storage.shard - first)};
    const auto piece = [&](TensorId of) {
      if (of.none() || shape[0] == storage.shard) return of;
      return add_view(state_.program, fmt::format("{}[{}]", state_.program.tensors[of].name, first / most), of, first,
                      shape);
    };
    const int64_t stride = round_up(shape[0] * dtype_bytes(dtype), kAlignBytes) / dtype_bytes(dtype);
    const TensorId all = add_tensor(state_.program, state_.unit_name(unit) + ".staged", Role::optimizer,
                                    {dtype, {stride * static_cast<int64_t>(away.size())}}, false, offload.offload_site);
    emitter_.enter_pool(state_.program.tensors[all].buffer, pool, emitter_.next_slot(pool));
    std::vector<TensorId> home, here;
    for (size_t i = 0; i < away.size(); ++i) {
      home.push_back(piece(away[i]));
      here.push_back(add_view(state_.program, state_.program.tensors[home[i]].name + ".staged", all,
                              stride * static_cast<int64_t>(i), shape));
      transfer(ops::load, home[i], here[i], load, unit);
    }
    Updated what{piece(storage.grad), here.front(), here, piece(storage.compute), first};
    if (storage.master_offloaded)
      what.states.erase(what.states.begin());
    else
      what.master = piece(storage.master);
    update(unit, clip, what);
    const bool ends = last && first + most >= storage.shard;
    for (size_t i = 0; i < away.size(); ++i) transfer(ops::store, here[i], home[i], ends ? StreamId(0) : store, unit);
  }
}

}  // namespace prun
