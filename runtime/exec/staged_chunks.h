// A large collective through the host's memory in chunks: while one is on the wire, the next is copied to the host and
// the one before it to the device.
//
// Each chunk is a collective of its own, of some of the elements, in the same places of the same memory.
#pragma once
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "device/device.h"

namespace prun {

struct Copy {
  void* to;
  const void* from;
  int64_t bytes;
};

struct StagedChunk {
  std::vector<Copy> out, in;  // to the host before the call, to the device behind it
  CollCall call;
};

// The chunks of an op whose tensors lie in both memories: at least two, or none where it is small, of a kind that is
// not divided, or its sums would have other bits. The same on every member.
std::vector<StagedChunk> chunks_of(const RankMemory& host, const RankMemory& device, const Op& op, World& world);

// A kernel whose every run() makes the call of the next chunk; behind the last comes the first.
std::unique_ptr<Kernel> make_chunks_kernel(const RankMemory& host, const Op& op, World& world,
                                           const std::vector<StagedChunk>& chunks);

}  // namespace prun
