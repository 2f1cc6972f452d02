// Collectives of memory that peers do not map: chunks through the members' blocks, one barrier per chunk.
//
//   step        t            t + 1               t + 2
//   chunk t     put input    reduce own slice    copy the others' slices    sliced reductions
//   chunk t     put input    take                                           other kinds
//
// Chunks rotate through rings larger than an L2, because writing a line that a peer still caches is about five times
// slower than writing an evicted one. A member uses its own buffers for its own data: it puts in only the bytes that
// others need and takes out only the bytes that others produced. With two ranks that halves the copying.
#include "shape.h"

namespace prun::shm {
namespace {

struct Chunks {
  size_t bytes, count;  // bytes and elements of one piece
  size_t begin(size_t t) const { return t * bytes; }
  size_t size(const Shape& s, size_t t) const { return std::min(bytes, s.piece - begin(t)); }
};

std::byte* in_of(const Comm& comm, size_t i, size_t t) { return comm.members[i].block->in + comm.chunk_at[t % 3]; }
std::byte* out_of(const Comm& comm, size_t i, size_t t) { return comm.members[i].block->out + comm.chunk_at[t % 3]; }

// Chooses the offset of chunk t, which is equal on all members. At least three chunks have passed since this memory was
// last used, so all members are done with it.
void place_chunk(Comm& comm, const Shape& s, const Chunks& chunks, size_t t) {
  const size_t bytes = (chunks.size(s, t) + (s.pieces() ? (s.n - 1) * chunks.bytes : 0) + 63) / 64 * 64;
  if (comm.ring_end + bytes > comm.ring) comm.ring_end = 0;
  comm.chunk_at[t % 3] = comm.ring_end;
  comm.ring_end += bytes;
}

Chunks chunks_of(const Comm& comm, const Shape& s) {
  const size_t bytes = comm.chunk / (s.pieces() ? s.n : 1) / 64 * 64;
  return {bytes, (s.piece + bytes - 1) / bytes};
}

// Copies chunk t of this rank's input into its block, except bytes that only this rank reads.
void put(const Comm& comm, const Shape& s, const Chunks& chunks, size_t t) {
  if (!s.gives(s.me)) return;
  std::byte* const to = in_of(comm, s.me, t);
  const std::byte* const from = send_of(comm) + chunks.begin(t);
  const size_t bytes = chunks.size(s, t);
  if (s.sliced()) {
    const Slice own = slice_of(bytes, s.n, s.me, 64);
    copy(to, from, own.begin, false);
    copy(to + own.end, from + own.end, bytes - own.end, false);
  } else if (s.pieces()) {
    for (size_t i = 0; i < s.n; i++)
      if (i != s.me) copy(to + i * chunks.bytes, from + i * s.piece, bytes, false);
  } else {
    copy(to, from, bytes, false);
  }
}

// Reduces this rank's slice of chunk t into its block for the others, and into its output.
void reduce_slice(const Comm& comm, const Shape& s, const Chunks& chunks, size_t t) {
  const Slice slice = slice_of(chunks.size(s, t), s.n, s.me, 64);
  const void* from[kMaxMembers];
  for (size_t i = 0; i < s.n; i++)
    from[i] = (i == s.me ? send_of(comm) + chunks.begin(t) : in_of(comm, i, t)) + slice.begin;
  void* to[2];
  int outputs = 0;
  if (s.kind == PRUN_ALL_REDUCE || s.me != s.root) to[outputs++] = out_of(comm, s.me, t) + slice.begin;
  if (s.recv_bytes() > 0) to[outputs++] = recv_of(comm) + chunks.begin(t) + slice.begin;
  sdk::reduce(reduction_of(comm), from, static_cast<int>(s.n), to, outputs, (slice.end - slice.begin) / s.element,
              false);
}

void take_slices(const Comm& comm, const Shape& s, const Chunks& chunks, size_t t) {
  if (s.recv_bytes() == 0) return;
  for (size_t k = 1; k < s.n; k++) {
    const size_t i = (s.me + k) % s.n;
    const Slice slice = slice_of(chunks.size(s, t), s.n, i, 64);
    copy(recv_of(comm) + chunks.begin(t) + slice.begin, out_of(comm, i, t) + slice.begin, slice.end - slice.begin,
         comm.stream);
  }
}

void take_pieces(const Comm& comm, const Shape& s, const Chunks& chunks, size_t t) {
  const std::byte* from[kMaxMembers] = {};
  for (size_t i = 0; i < s.n; i++)
    if (i != s.me) from[i] = in_of(comm, i, t) + s.share(chunks.bytes);
  if (s.gives(s.me)) from[s.me] = send_of(comm) + s.share(s.piece) + chunks.begin(t);
  take(comm, s, from, chunks.begin(t), chunks.size(s, t), comm.stream);
}

}  // namespace

// Chunk t is put in at step t. Sliced reductions compute it at t + 1 and copy it out at t + 2; other kinds copy it out
// at t + 1.
size_t steps_staged(const Comm& comm, const Shape& s) { return chunks_of(comm, s).count + (s.sliced() ? 2 : 1); }

void work_staged(Comm& comm, const Shape& s, size_t t) {
  const Chunks chunks = chunks_of(comm, s);
  if (t < chunks.count) {
    place_chunk(comm, s, chunks, t);
    put(comm, s, chunks, t);
  }
  if (!s.sliced()) {
    if (t >= 1) take_pieces(comm, s, chunks, t - 1);
    return;
  }
  if (t >= 1 && t - 1 < chunks.count) reduce_slice(comm, s, chunks, t - 1);
  if (t >= 2) take_slices(comm, s, chunks, t - 2);
}

}  // namespace prun::shm
