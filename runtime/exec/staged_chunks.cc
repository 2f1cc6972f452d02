#include "exec/staged_chunks.h"

#include <algorithm>

#include "exec/comm_ops.h"

namespace prun {
namespace {

// The first chunk's way to the host and the last one's way back are not hidden: 160 µs each on PCIe 4.0. A smaller one
// would not be worth what each costs beside its bytes: a call of the host in the stream, threads that wake, frames.
constexpr int64_t kChunkBytes = int64_t{4} << 20;

// all_gather and reduce_scatter not: a chunk of theirs is a slice of every member's share, so that their larger side
// goes in many copies, which ate up the gain (runtime/decisions/0063).
bool divided(const Op& op, CollKind kind) {
  return !op.is("all_gather_v") &&
         (kind == CollKind::all_reduce || kind == CollKind::reduce || kind == CollKind::broadcast);
}

// Elements of a chunk; 0: it stays whole.
int64_t chunk_length(const Communicator& communicator, const CollCall& call) {
  const int64_t item = dtype_bytes(call.dtype), line = kAlignBytes / item;
  for (int64_t chunks = call.count * item / kChunkBytes; chunks > 1; chunks /= 2) {
    CollCall first = call, last = call;
    first.count = round_up((call.count + chunks - 1) / chunks, line);
    last.count = (call.count - 1) % first.count + 1;
    if (communicator.divides(call, first) && communicator.divides(call, last)) return first.count;
  }
  return 0;
}

void* behind(const void* base, int64_t bytes) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(base)) + bytes;
}

class Chunks final : public Kernel {
 public:
  Chunks(Communicator& communicator, const std::vector<StagedChunk>& chunks) : communicator_(communicator) {
    for (const StagedChunk& chunk : chunks) calls_.push_back(chunk.call);
  }
  void run() override {
    communicator_.run(calls_[next_]);
    next_ = (next_ + 1) % calls_.size();
  }

 private:
  Communicator& communicator_;
  std::vector<CollCall> calls_;
  size_t next_ = 0;
};

}  // namespace

std::vector<StagedChunk> chunks_of(const RankMemory& host, const RankMemory& device, const Op& op, World& world) {
  std::vector<StagedChunk> chunks;
  if (!op.communicates() || op.offers()) return chunks;
  const Communicator& communicator = communicator_of(host, op, world);
  const CollCall call = coll_call(host, op, communicator.size()), there = coll_call(device, op, communicator.size());
  if (!divided(op, call.kind)) return chunks;
  const int64_t item = dtype_bytes(call.dtype), length = chunk_length(communicator, call);
  for (int64_t begin = 0; length > 0 && begin < call.count; begin += length) {
    StagedChunk& chunk = chunks.emplace_back();
    chunk.call = call;
    chunk.call.count = std::min(length, call.count - begin);
    chunk.call.send = behind(call.send, begin * item);
    if (call.recv != nullptr) chunk.call.recv = behind(call.recv, begin * item);
    const int64_t bytes = chunk.call.count * item;
    if (!op.receives()) chunk.out.push_back({behind(call.send, begin * item), behind(there.send, begin * item), bytes});
    if (!op.writes.empty())
      chunk.in.push_back({behind(there.recv, begin * item), behind(call.recv, begin * item), bytes});
  }
  return chunks;
}

std::unique_ptr<Kernel> make_chunks_kernel(const RankMemory& host, const Op& op, World& world,
                                           const std::vector<StagedChunk>& chunks) {
  return std::make_unique<Chunks>(communicator_of(host, op, world), chunks);
}

}  // namespace prun
