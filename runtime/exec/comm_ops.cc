// One table from op names to collectives; all_gather_v exchanges its counts first.
#include "exec/comm_ops.h"

#include <fmt/format.h>

#include <numeric>

namespace prun {
namespace {

struct CollRow {
  std::string_view op;
  CollKind kind;
};
constexpr CollRow kRows[] = {
    {"all_reduce", CollKind::all_reduce},
    {"all_gather", CollKind::all_gather},
    {"reduce_scatter", CollKind::reduce_scatter},
    {"broadcast", CollKind::broadcast},
    {"reduce", CollKind::reduce},
    {"gather", CollKind::gather},
    {"scatter", CollKind::scatter},
    {"all_to_all", CollKind::all_to_all},
    {"barrier", CollKind::barrier},
    {"send", CollKind::broadcast},
    {"recv", CollKind::broadcast},
    {"put", CollKind::broadcast},
    {"wait_signal", CollKind::broadcast},
};

class CollKernel final : public Kernel {
 public:
  CollKernel(Communicator& communicator, CollCall call) : communicator_(communicator), call_(call) {}
  void run() override { communicator_.run(call_); }

 private:
  Communicator& communicator_;
  CollCall call_;
};

class AllGatherV final : public Kernel {
 public:
  AllGatherV(Communicator& communicator, const RankMemory& memory, const Op& op)
      : communicator_(communicator), site_(op.site), max_(memory.program->tensors[op.reads[0]].count()) {
    send_ = memory.data(op.reads[0]);
    count_ = static_cast<const int64_t*>(memory.data(op.reads[1]));
    recv_ = memory.data(op.writes[0]);
    counts_ = static_cast<int64_t*>(memory.data(op.writes[1]));
    dtype_ = memory.program->tensors[op.reads[0]].dtype;
  }

  void run() override {
    CollCall sizes;
    sizes.kind = CollKind::all_gather;
    sizes.dtype = Dtype::i64;
    sizes.send = count_;
    sizes.recv = counts_;
    sizes.count = 1;
    communicator_.run(sizes);
    for (int i = 0; i < communicator_.size(); ++i)
      if (counts_[i] < 0 || counts_[i] > max_)
        throw Error(
            Exit::mismatch,
            fmt::format("all_gather_v: member {} has {} elements, the declared maximum is {}", i, counts_[i], max_),
            site_);
    CollCall call;
    call.kind = CollKind::all_gather_v;
    call.dtype = dtype_;
    call.send = send_;
    call.recv = recv_;
    call.count = *count_;
    call.counts = counts_;
    communicator_.run(call);
  }

 private:
  Communicator& communicator_;
  Site site_;
  int64_t max_;
  const void* send_;
  const int64_t* count_;
  void* recv_;
  int64_t* counts_;
  Dtype dtype_;
};

// put, signal and wait_signal where the transport has them.
class OneSided final : public Kernel {
 public:
  OneSided(PutChannel& channel, const RankMemory& memory, const Op& op) : channel_(channel) {
    const TensorId tensor = op.sends() ? op.reads[0] : op.writes[0];
    what_ = op.sends() ? What::put : op.offers() ? What::offer : What::arrive;
    data_ = memory.data(tensor);
    bytes_ = memory.program->tensors[tensor].bytes();
    offset_ = op.attrs.integer("offset");
  }
  void run() override {
    if (what_ == What::put) return channel_.put(data_, bytes_, offset_);
    what_ == What::offer ? channel_.offer() : channel_.arrive(bytes_);
  }

 private:
  enum class What { put, offer, arrive } what_;
  PutChannel& channel_;
  const void* data_;
  int64_t bytes_, offset_;
};

// An offer where messages go through a communicator: the receiver waits there anyway.
class Nothing final : public Kernel {
 public:
  void run() override {}
};

}  // namespace

PutChannel* put_channel_of(const RankMemory& memory, const Op& op, World& world) {
  if (!op.one_sided() || memory.tensors != nullptr) return nullptr;  // staged: the window would be the device's memory
  const std::vector<int> pair = members_of(memory.program->mesh, op, memory.rank);
  return world.put_channel(op.sends() ? pair[1] : pair[0], op.lane);
}

Communicator& communicator_of(const RankMemory& memory, const Op& op, World& world) {
  return world.communicator(members_of(memory.program->mesh, op, memory.rank), op.lane);
}

CollCall coll_call(const RankMemory& memory, const Op& op, int group_size) {
  CollCall call;
  for (const CollRow& row : kRows)
    if (row.op == op.def->name) call.kind = row.kind;
  call.redop = parse_redop(op.attrs.text("op", "sum")).value_or(RedOp::sum);
  call.root = static_cast<int>(op.attrs.integer("root"));
  call.rank_order = memory.program->rank_order;
  if (op.point_to_point()) {  // a broadcast in the pair, whose first member is the sender
    const TensorId tensor = op.sends() ? op.reads[0] : op.writes[0];
    call.dtype = memory.program->tensors[tensor].dtype;
    call.send = call.recv = memory.data(tensor);
    call.count = memory.program->tensors[tensor].count();
    return call;
  }
  if (op.reads.empty()) return call;  // barrier
  const Tensor& in = memory.program->tensors[op.reads[0]];
  call.dtype = in.dtype;
  call.send = memory.data(op.reads[0]);
  call.recv = op.writes.empty() ? nullptr : memory.data(op.writes[0]);
  bool divided =
      call.kind == CollKind::reduce_scatter || call.kind == CollKind::scatter || call.kind == CollKind::all_to_all;
  call.count = divided ? in.count() / group_size : in.count();
  return call;
}

std::unique_ptr<Kernel> make_comm_kernel(const RankMemory& memory, const Op& op, World& world) {
  if (PutChannel* channel = put_channel_of(memory, op, world)) return std::make_unique<OneSided>(*channel, memory, op);
  if (op.offers()) return std::make_unique<Nothing>();
  Communicator& communicator = communicator_of(memory, op, world);
  if (op.is("all_gather_v")) return std::make_unique<AllGatherV>(communicator, memory, op);
  return std::make_unique<CollKernel>(communicator, coll_call(memory, op, communicator.size()));
}

std::unique_ptr<Kernel> make_enqueued_kernel(const RankMemory& memory, const Op& op, World& world, prun_queue queue) {
  if (op.offers()) return std::make_unique<Nothing>();
  Communicator& communicator = communicator_of(memory, op, world);
  CollCall call = coll_call(memory, op, communicator.size());
  call.queue = queue;
  return std::make_unique<CollKernel>(communicator, call);
}

}  // namespace prun
