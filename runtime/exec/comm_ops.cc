// Communication calls of ops. all_gather_v exchanges its counts first.
#include "exec/comm_ops.h"

#include <fmt/format.h>

#include "exec/row_exchange.h"
#include "ir/ops.h"

namespace prun {
namespace {

std::unique_ptr<Kernel> make_all_gather_v(Communicator& communicator, const RankMemory& memory, const Op& op) {
  const Tensor& in = memory.program->tensors[op.reads[0]];
  auto* counts = static_cast<int64_t*>(memory.data(op.writes[1]));
  CollCall sizes;
  sizes.kind = CollKind::all_gather;
  sizes.dtype = Dtype::i64;
  sizes.send = memory.data(op.reads[1]);
  sizes.recv = counts;
  sizes.count = 1;
  CollCall call;
  call.kind = CollKind::all_gather_v;
  call.dtype = in.dtype;
  call.send = memory.data(op.reads[0]);
  call.recv = memory.data(op.writes[0]);
  call.counts = counts;
  return kernel_of([&communicator, exchange = communicator.prepare(sizes), call, max = in.count(),
                    site = op.site]() mutable {
    communicator.run(exchange);
    for (int i = 0; i < communicator.size(); ++i)
      if (call.counts[i] < 0 || call.counts[i] > max)
        throw Error(
            Exit::mismatch,
            fmt::format("all_gather_v: member {} has {} elements, the declared maximum is {}", i, call.counts[i], max),
            site);
    call.count = call.counts[communicator.index()];
    communicator.run(call);
  });
}

// Uses put, signal and wait_signal of a transport that has them.
std::unique_ptr<Kernel> make_one_sided(PutChannel& channel, const RankMemory& memory, const Op& op) {
  if (op.offers()) return kernel_of([&channel] { channel.offer(); });
  const TensorId tensor = op.sends() ? op.reads[0] : op.writes[0];
  const int64_t bytes = memory.program->tensors[tensor].bytes();
  if (op.receives()) return kernel_of([&channel, bytes] { channel.arrive(bytes); });
  return kernel_of([&channel, data = memory.data(tensor), bytes, offset = op.attrs.integer("offset")] {
    channel.put(data, bytes, offset);
  });
}

}  // namespace

PutChannel* put_channel_of(const RankMemory& memory, const Op& op, World& world) {
  if (!op.one_sided() || memory.tensors != nullptr) return nullptr;  // staged: the window would be device memory
  const std::vector<int> pair = members_of(memory.program->mesh, op, memory.rank);
  return world.put_channel(op.sends() ? pair[1] : pair[0], op.lane);
}

Communicator& communicator_of(const RankMemory& memory, const Op& op, World& world) {
  return world.communicator(members_of(memory.program->mesh, op, memory.rank), op.lane);
}

CollCall coll_call(const RankMemory& memory, const Op& op, int group_size) {
  PRUN_CHECK(op.def->coll.has_value(), std::string(op.def->name) + " is no collective");
  CollCall call;
  call.kind = *op.def->coll;
  call.redop = parse_redop(op.attrs.text("op", "sum")).value_or(RedOp::sum);
  call.root = static_cast<int>(op.attrs.integer("root"));
  call.rank_order = memory.program->rank_order;
  if (call.kind == CollKind::barrier) return call;
  // Either end of a message has one tensor: the sender reads it, the receiver writes it.
  const TensorId in = op.receives() ? op.writes[0] : op.reads[0];
  const Tensor& tensor = memory.program->tensors[in];
  call.dtype = tensor.dtype;
  call.send = memory.data(in);
  if (op.point_to_point())
    call.recv = memory.data(in);
  else if (!op.writes.empty())
    call.recv = memory.data(op.writes[0]);
  call.count = traits(call.kind).whole_input ? tensor.count() / group_size : tensor.count();
  return call;
}

std::unique_ptr<Kernel> make_comm_kernel(const RankMemory& memory, const Op& op, World& world) {
  if (PutChannel* channel = put_channel_of(memory, op, world)) return make_one_sided(*channel, memory, op);
  if (op.is(ops::exchange_rows))
    return make_counted_kernel(memory, op, world, memory.data(op.reads[1]), {PRUN_MEM_HOST, nullptr});
  return op.def->coll == CollKind::all_gather_v ? make_all_gather_v(communicator_of(memory, op, world), memory, op)
                                                : make_enqueued_kernel(memory, op, world, {PRUN_MEM_HOST, nullptr});
}

std::unique_ptr<Kernel> make_enqueued_kernel(const RankMemory& memory, const Op& op, World& world, prun_queue queue) {
  if (op.offers()) return kernel_of([] {});  // messages go through a communicator, where the receiver waits anyway
  Communicator& communicator = communicator_of(memory, op, world);
  CollCall call = coll_call(memory, op, communicator.size());
  call.queue = queue;
  return kernel_of([&communicator, prepared = communicator.prepare(call)] { communicator.run(prepared); });
}

std::unique_ptr<Kernel> make_counted_kernel(const RankMemory& memory, const Op& op, World& world, const void* counts,
                                            prun_queue queue) {
  return make_row_exchange(communicator_of(memory, op, world), memory, op, static_cast<const int32_t*>(counts), queue);
}

void connect_pairs(Communicator& communicator) {
  const std::vector<uint8_t> out(communicator.size());
  std::vector<uint8_t> in(communicator.size());
  CollCall call;
  call.kind = CollKind::all_to_all;
  call.dtype = Dtype::u8;
  call.send = out.data();
  call.recv = in.data();
  call.count = 1;
  communicator.run(call);
}

}  // namespace prun
