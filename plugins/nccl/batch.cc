// Issues the messages of a batch as one NCCL group per communicator. NCCL has no tags, so a lane is the communicator
// that was made for it.
#include <cstring>

#include "context.h"

namespace prun::nccl {
namespace {

struct Transfer {
  bool is_recv;
  int peer;  // rank in the communicator
  void* ptr;
  size_t bytes;
};

ncclResult_t run_group(const Nccl& nccl, ncclComm_t comm, cudaStream_t stream, const std::vector<Transfer>& transfers) {
  nccl.group_start();
  ncclResult_t first = ncclSuccess;
  for (const Transfer& t : transfers) {
    const ncclResult_t result = t.is_recv ? nccl.recv(t.ptr, t.bytes, ncclUint8, t.peer, comm, stream)
                                          : nccl.send(t.ptr, t.bytes, ncclUint8, t.peer, comm, stream);
    if (result != ncclSuccess && result != ncclInProgress && first == ncclSuccess) first = result;
  }
  const ncclResult_t ended = nccl.group_end();
  return first != ncclSuccess ? first : ended;
}

class Builder {
 public:
  Builder(Context& c, prun_queue queue) : c_(c), queue_(queue), request_(std::make_unique<Request>()) {}

  void send_to_itself(const prun_p2p& op) {
    SelfMessage message{nullptr, op.bytes};
    if (on_host(op)) {
      message.pinned = c_.memory.take_bounce(op.bytes);
      if (op.bytes > 0) std::memcpy(message.pinned, op.ptr, op.bytes);
    } else {
      enqueue_to_itself(op, message);
    }
    std::lock_guard lock(c_.to_itself.mutex);
    c_.to_itself.by_lane[op.tag].push_back(message);
  }
  // Copies on the device if the batch is in a queue and receives the message, too. Returns whether it did.
  bool copy_to_itself(const prun_p2p& send, const prun_p2p& receive) {
    if (queue_.kind != PRUN_MEM_CUDA || send.tag != receive.tag || send.bytes != receive.bytes) return false;
    const Cuda& cuda = c_.library->cuda();
    cudaStream_t stream = stream_of(*c_.world);
    c_.library->check("cudaMemcpyAsync",
                      cuda.memcpy_async(receive.ptr, send.ptr, send.bytes, cudaMemcpyDefault, stream));
    if (!c_.library->capturing(stream)) watch(stream);
    return true;
  }
  // Returns whether a message to itself, or the receive of one, is in flight.
  bool awaits_itself(uint64_t tag) const {
    std::lock_guard lock(c_.to_itself.mutex);
    return !c_.to_itself.by_lane[tag].empty() || c_.to_itself.awaited[tag] > 0;
  }
  void receive_from_itself(const prun_p2p& op) {
    {
      std::lock_guard lock(c_.to_itself.mutex);
      ++c_.to_itself.awaited[op.tag];
    }
    request_->from_itself.push_back({op.tag, op.ptr, op.bytes, on_host(op) ? nullptr : stream_of(*c_.world)});
  }

  void add(const prun_p2p& op) {
    const int lane = static_cast<int>(op.tag);
    Comm& comm = c_.comm_of(lane, op.peer);
    request_->peers.push_back(op.peer);
    if (c_.options.check && op.is_recv != 0)
      request_->arrivals.push_back({op.peer, lane, c_.board.expect(op.peer, lane), op.bytes});
    if (c_.options.check && op.is_recv == 0) {
      Note note;
      note.kind = Note::size;
      note.lane = lane;
      note.count = op.bytes;
      c_.control.send(op.peer, note);
    }
    if (op.bytes == 0) return;
    void* ptr = op.ptr;
    if (queue_.kind == PRUN_MEM_HOST && !c_.memory.reachable(ptr)) {
      ptr = c_.memory.take_bounce(op.bytes);
      if (op.is_recv == 0) std::memcpy(ptr, op.ptr, op.bytes);
      request_->bounces.push_back({ptr, op.bytes, op.is_recv != 0 ? op.ptr : nullptr});
    }
    transfers_of(comm).push_back({op.is_recv != 0, comm.index_of(op.peer), ptr, op.bytes});
  }

  std::unique_ptr<Request> start() {
    for (auto& [comm, transfers] : groups_) {
      cudaStream_t stream = stream_of(*comm);
      Request::Part& part = request_->parts.emplace_back();
      part.comm = comm;
      part.launch.call = "ncclGroupEnd";
      part.launch.stream = stream;
      for (const Transfer& t : transfers) part.launch.links.emplace_back(t.peer, t.is_recv);
      part.launch.issue = [nccl = &c_.library->nccl(), native = comm->native(), stream, list = std::move(transfers)] {
        return run_group(*nccl, native->handle, stream, list);
      };
    }
    for (Request::Part& part : request_->parts) part.comm->push(&part.launch);
    return std::move(request_);
  }

 private:
  // cudaMemcpyAsync between host buffers would wait for its stream, perhaps for another rank's message.
  bool on_host(const prun_p2p& op) const { return queue_.kind == PRUN_MEM_HOST && op.mem_kind == PRUN_MEM_HOST; }

  void enqueue_to_itself(const prun_p2p& op, SelfMessage& message) {
    const Cuda& cuda = c_.library->cuda();
    cudaStream_t stream = stream_of(*c_.world);
    message.captured = c_.library->capturing(stream);
    message.pinned = message.captured ? c_.memory.allocate_for_graph(op.bytes) : c_.memory.take_bounce(op.bytes);
    c_.library->check("cudaMemcpyAsync",
                      cuda.memcpy_async(message.pinned, op.ptr, op.bytes, cudaMemcpyDefault, stream));
    message.event = c_.take_event();
    c_.library->check("cudaEventRecord", cuda.event_record(message.event, stream));
    if (!message.captured) watch(stream);
  }
  // Ends the request only after the stream's work until now.
  void watch(cudaStream_t stream) {
    const SelfMessage watched{nullptr, 0, c_.take_event()};
    c_.library->check("cudaEventRecord", c_.library->cuda().event_record(watched.event, stream));
    request_->copies.push_back(watched);
  }

  cudaStream_t stream_of(const Comm& comm) const {
    return queue_.kind == PRUN_MEM_CUDA ? static_cast<cudaStream_t>(queue_.handle) : comm.stream();
  }
  std::vector<Transfer>& transfers_of(Comm& comm) {
    for (auto& [known, transfers] : groups_)
      if (known == &comm) return transfers;
    return groups_.emplace_back(&comm, std::vector<Transfer>()).second;
  }

  Context& c_;
  const prun_queue queue_;
  std::unique_ptr<Request> request_;
  std::vector<std::pair<Comm*, std::vector<Transfer>>> groups_;
};

}  // namespace

std::unique_ptr<Request> start_batch(Context& c, std::span<const prun_p2p> ops, prun_queue queue) {
  Builder builder(c, queue);
  std::vector<const prun_p2p*> sends, receives;  // between this rank and itself
  for (const prun_p2p& op : ops)
    if (op.peer == c.rank) (op.is_recv != 0 ? receives : sends).push_back(&op);
  // The usual batch has one message to itself, which no earlier one precedes.
  const bool direct = sends.size() == 1 && receives.size() == 1 && !builder.awaits_itself(sends[0]->tag) &&
                      builder.copy_to_itself(*sends[0], *receives[0]);
  if (!direct) {  // sends come first, so that receives of the same batch find them
    for (const prun_p2p* op : sends) builder.send_to_itself(*op);
    for (const prun_p2p* op : receives) builder.receive_from_itself(*op);
  }
  for (const prun_p2p& op : ops)
    if (op.peer != c.rank) builder.add(op);
  return builder.start();
}

}  // namespace prun::nccl
