// Sizes and participants of a collective call, shared by its three implementations.
#pragma once
#include <algorithm>

#include "comm.h"
#include "prun/sdk/reduce.h"

namespace prun::shm {

using sdk::copy;

inline constexpr int kMaxMembers = 1024;  // members per group

struct Shape {
  int kind;
  size_t element, piece;  // `piece`: bytes of `count` elements
  size_t n, me, root;
  bool pieces() const {  // returns whether the input consists of n pieces
    return kind == PRUN_REDUCE_SCATTER || kind == PRUN_SCATTER || kind == PRUN_ALL_TO_ALL;
  }
  bool sliced() const {
    return kind == PRUN_ALL_REDUCE || kind == PRUN_REDUCE;
  }  // returns whether each member reduces a slice for the others
  bool reduces() const { return sliced() || kind == PRUN_REDUCE_SCATTER; }
  bool gives(size_t i) const { return (kind != PRUN_BROADCAST && kind != PRUN_SCATTER) || i == root; }
  size_t input() const { return kind == PRUN_BARRIER ? 0 : piece * (pieces() ? n : 1); }
  size_t send_bytes() const { return gives(me) ? input() : 0; }
  size_t recv_bytes() const {
    const bool only_root = kind == PRUN_REDUCE || kind == PRUN_GATHER;
    if (kind == PRUN_BARRIER || (only_root && me != root)) return 0;
    return piece * (kind == PRUN_ALL_GATHER || kind == PRUN_GATHER || kind == PRUN_ALL_TO_ALL ? n : 1);
  }
  // Returns the offset of this rank's share in an input whose pieces are `stride` bytes apart.
  size_t share(size_t stride) const { return pieces() ? me * stride : 0; }
};

inline Shape shape_of(const Comm& comm) {
  const prun_coll_params& p = comm.params;
  const size_t element = sdk::dtype_bytes(p.dtype);
  return {p.kind, element, p.count * element, comm.size(), static_cast<size_t>(comm.me), static_cast<size_t>(p.root)};
}

inline const std::byte* send_of(const Comm& comm) { return static_cast<const std::byte*>(comm.params.send); }
// Returns the reduction of a call; averages divide by the number of members.
inline sdk::Reduction reduction_of(const Comm& comm) {
  return {comm.params.dtype, comm.params.redop, static_cast<int>(comm.size())};
}
inline std::byte* recv_of(const Comm& comm) { return static_cast<std::byte*>(comm.params.recv); }
inline CallLine& line_of(const Comm& comm, const Member& m) { return m.block->line[comm.calls & 1]; }

// The part of `bytes` that member i reduces: a multiple of `grain`, so that no two ranks write the same cache line.
struct Slice {
  size_t begin, end;
};
inline Slice slice_of(size_t bytes, size_t n, size_t i, size_t grain) {
  const size_t each = ((bytes + n - 1) / n + grain - 1) / grain * grain;
  return {std::min(bytes, i * each), std::min(bytes, (i + 1) * each)};
}

// Writes [offset, offset + bytes) of each piece of this rank's output; from[i] is the matching input of member i.
// Sliced reductions do not use it.
void take(const Comm& comm, const Shape& s, const std::byte* const* from, size_t offset, size_t bytes, bool stream);

// Returns whether outputs should be written with non-temporal stores: they have not been read before, and all members'
// buffers together exceed the last-level cache.
bool streams(const Context& c, const Comm& comm, const Shape& s);

// The direct path. resolve maps the members' buffers and returns whether the direct path applies. work_direct does one
// unit of work in the buffers and returns false if none is left.
bool resolve(Context& c, Comm& comm, const Shape& s);
bool work_direct(Comm& comm, const Shape& s);

// The staged path: chunk by chunk through the blocks. work_staged does this rank's part of step t < steps_staged(); all
// members synchronize between two steps.
size_t steps_staged(const Comm& comm, const Shape& s);
void work_staged(Comm& comm, const Shape& s, size_t t);

}  // namespace prun::shm
