// Collectives in arenas: members read inputs and write outputs in place.
//
//   all-reduce, 3 members           slice 0   slice 1   slice 2
//   inputs of members 0, 1, 2       read by 0 read by 1 read by 2    each owner reduces its slice
//   outputs of members 0, 1, 2      by 0      by 1      by 2         and writes it to all outputs
//
// Every byte is read once and written once, the lower bound.
#include "context.h"
#include "shape.h"

namespace prun::shm {
namespace {

constexpr size_t kUnit = 128 << 10;  // bytes between two reads of the clock

bool work_on_slice(Comm& comm, const Shape& s) {
  const Slice slice = slice_of(s.piece, s.n, s.me, 1024);
  const size_t at = slice.begin + comm.at;
  if (at >= slice.end) return false;
  const size_t bytes = std::min(slice.end - at, std::max<size_t>(kUnit / s.n, 8192) / 64 * 64);
  const void* from[kMaxMembers];
  void* to[kMaxMembers];
  int outputs = 0;
  for (size_t i = 0; i < s.n; i++) {
    const size_t k = (s.me + i) % s.n;
    from[i] = comm.members[i].send + at;
    if (s.kind == PRUN_ALL_REDUCE || k == s.root) to[outputs++] = comm.members[k].recv + at;
  }
  sdk::reduce(reduction_of(comm), from, static_cast<int>(s.n), to, outputs, bytes / s.element, comm.stream);
  comm.at += bytes;
  return true;
}

}  // namespace

bool resolve(Context& c, Comm& comm, const Shape& s) {
  bool all_send = true, all_recv = true, root_send = false, root_recv = false;
  for (size_t i = 0; i < s.n; i++) {
    Member& m = comm.members[i];
    const CallLine& line = line_of(comm, m);
    const Peer& peer = c.peers[m.local];
    m.send = line.send.arena >= 0 ? c.address_of(peer, line.send) : nullptr;
    m.recv = line.recv.arena >= 0 ? c.address_of(peer, line.recv) : nullptr;
    all_send &= m.send != nullptr;
    all_recv &= m.recv != nullptr;
    if (i == s.root) root_send = m.send, root_recv = m.recv;
    if (i == s.me) m.send = send_of(comm), m.recv = recv_of(comm);
  }
  if (s.n == 1) return true;
  switch (s.kind) {
    case PRUN_ALL_REDUCE:
      return all_send && all_recv;
    case PRUN_REDUCE:
      return all_send && root_recv;
    case PRUN_GATHER:
      return root_recv;
    case PRUN_BROADCAST:
    case PRUN_SCATTER:
      return root_send;
    default:
      return all_send;
  }
}

bool work_direct(Comm& comm, const Shape& s) {
  if (s.sliced()) return work_on_slice(comm, s);
  if (comm.at >= s.piece) return false;
  const size_t bytes = std::min(s.piece - comm.at, kUnit);
  if (s.kind == PRUN_GATHER) {  // each member writes its own share
    copy(comm.members[s.root].recv + s.me * s.piece + comm.at, send_of(comm) + comm.at, bytes, comm.stream);
  } else {
    const std::byte* from[kMaxMembers] = {};
    for (size_t i = 0; i < s.n; i++)
      if (s.gives(i)) from[i] = comm.members[i].send + s.share(s.piece) + comm.at;
    take(comm, s, from, comm.at, bytes, comm.stream);
  }
  comm.at += bytes;
  return true;
}

}  // namespace prun::shm
