// Chooses the ops to divide, and their chunks.
#include "exec/staged_chunks.h"

#include <algorithm>

#include "exec/comm_ops.h"

namespace prun {
namespace {

// The copies of the first chunk to the host and of the last one back are exposed: 160 µs each on PCIe 4.0. Smaller
// chunks would not pay for their fixed costs: a host call in the stream, thread wake-ups, frames.
constexpr int64_t kChunkBytes = int64_t{4} << 20;

// A chunk of all_gather or reduce_scatter is a slice of every member's share, so its larger side needs many copies,
// which cost more than the overlap gains (runtime/design/12-cuda.md).
bool divided(CollKind kind) {
  return kind == CollKind::all_reduce || kind == CollKind::reduce || kind == CollKind::broadcast;
}

// Returns the elements of a chunk; 0: the call is not divided.
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

}  // namespace

std::vector<StagedChunk> chunks_of(const RankMemory& host, const RankMemory& device, const Op& op, World& world) {
  std::vector<StagedChunk> chunks;
  if (!op.def->coll || !divided(*op.def->coll)) return chunks;
  const Communicator& communicator = communicator_of(host, op, world);
  const CollCall call = coll_call(host, op, communicator.size()), there = coll_call(device, op, communicator.size());
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
  Communicator& communicator = communicator_of(host, op, world);
  std::vector<PreparedCall> calls;
  for (const StagedChunk& chunk : chunks) calls.push_back(communicator.prepare(chunk.call));
  return kernel_of([&communicator, calls, next = size_t{0}]() mutable {
    communicator.run(calls[next]);
    next = (next + 1) % calls.size();
  });
}

}  // namespace prun
