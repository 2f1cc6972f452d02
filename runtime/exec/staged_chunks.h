// A large collective staged through host memory in chunks: while one is on the wire, the next is copied to the host and
// the previous one to the device.
//
// Each chunk is a collective on some of the elements, at the same offsets of the same memory.
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
  std::vector<Copy> out, in;  // device to host before the call, host to device after it
  CollCall call;
};

// Returns the chunks of an op whose tensors are in both memories: at least two, or none if it is small, of a kind that
// is not divided, or if chunks would change the rounding of its sums. Equal on every member.
std::vector<StagedChunk> chunks_of(const RankMemory& host, const RankMemory& device, const Op& op, World& world);

// Returns a kernel whose every run() makes the call of the next chunk, cyclically.
std::unique_ptr<Kernel> make_chunks_kernel(const RankMemory& host, const Op& op, World& world,
                                           const std::vector<StagedChunk>& chunks);

}  // namespace prun
