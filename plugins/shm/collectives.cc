// Collectives over shared memory, as steps that test() resumes.
//
//   small   the input is posted with the call's flag; one barrier, then everybody computes what it needs
//   direct  the buffers lie in arenas: read where they are, and written where they go; two barriers
//   staged  anything else: chunks through the blocks, one barrier a chunk
// All members choose alike, from the posted call alone. Reductions go in rank order in each of the three.
#include <algorithm>
#include <cstring>

#include "comm.h"
#include "reduce.h"

namespace prun::shm {
namespace {

constexpr size_t kUnit = 128 << 10;         // bytes of direct work between two looks at the clock
constexpr size_t kStreamCopy = 16 << 20;    // outputs from this size on go past the caches
constexpr size_t kStreamSums = 2 << 20;     // sooner: they go to every member

// The shape of a call, in bytes.
struct Shape {
  int kind;
  size_t element, piece;  // `piece`: what count means
  size_t n, me, root;
  bool pieces() const {  // the input is n pieces
    return kind == PRUN_REDUCE_SCATTER || kind == PRUN_SCATTER || kind == PRUN_ALL_TO_ALL;
  }
  bool gives() const { return (kind != PRUN_BROADCAST && kind != PRUN_SCATTER) || me == root; }
  size_t input() const { return kind == PRUN_BARRIER ? 0 : piece * (pieces() ? n : 1); }
  size_t send_bytes() const { return gives() ? input() : 0; }
  size_t recv_bytes() const {
    const bool only_root = kind == PRUN_REDUCE || kind == PRUN_GATHER;
    if (kind == PRUN_BARRIER || (only_root && me != root)) return 0;
    return piece * (kind == PRUN_ALL_GATHER || kind == PRUN_GATHER || kind == PRUN_ALL_TO_ALL ? n : 1);
  }
};

Shape shape_of(const Comm& comm) {
  const prun_coll_params& p = comm.params;
  const size_t element = dtype_bytes(p.dtype);
  return {p.kind, element, p.count * element, comm.size(), static_cast<size_t>(comm.me), static_cast<size_t>(p.root)};
}

const std::byte* send_of(const Comm& comm) { return static_cast<const std::byte*>(comm.params.send); }
std::byte* recv_of(const Comm& comm) { return static_cast<std::byte*>(comm.params.recv); }

CallLine& line_of(const Comm& comm, const Member& m) { return m.block->line[comm.calls & 1]; }

// This rank's input, [offset, offset + bytes) of each piece, to `to` with `stride` between pieces.
void put(const Comm& comm, const Shape& s, std::byte* to, size_t stride, size_t offset, size_t bytes) {
  if (!s.gives()) return;
  for (size_t i = 0; i < (s.pieces() ? s.n : 1); i++)
    copy(to + i * stride, send_of(comm) + i * s.piece + offset, bytes, false);
}

// The same part of this rank's output, from all inputs; from[i] is member i's, at `offset` of its first piece.
void take(const Comm& comm, const Shape& s, const std::byte* const* from, size_t stride, size_t offset, size_t bytes,
          bool stream) {
  std::byte* to = s.recv_bytes() > 0 ? recv_of(comm) + offset : nullptr;
  const size_t mine = s.me * stride;
  switch (s.kind) {
    case PRUN_ALL_REDUCE:
    case PRUN_REDUCE:
    case PRUN_REDUCE_SCATTER: {
      if (!to) return;
      const void* inputs[kMaxMembers];
      for (size_t i = 0; i < s.n; i++) inputs[i] = from[i] + (s.pieces() ? mine : 0);
      void* const output = to;
      reduce(comm.params.dtype, comm.params.redop, inputs, static_cast<int>(s.n), &output, 1, bytes / s.element, stream);
      return;
    }
    case PRUN_ALL_GATHER:
    case PRUN_GATHER:
    case PRUN_ALL_TO_ALL:
      for (size_t k = 0; to && k < s.n; k++) {
        const size_t i = (s.me + k) % s.n;  // each begins with another member
        copy(to + i * s.piece, from[i] + (s.pieces() ? mine : 0), bytes, stream);
      }
      return;
    case PRUN_BROADCAST: copy(to, from[s.root], bytes, stream); return;
    case PRUN_SCATTER: copy(to, from[s.root] + mine, bytes, stream); return;
    default: return;
  }
}

// Which part of `bytes` member i reduces: whole lines, so that no two ranks write to one.
struct Slice { size_t begin, end; };
Slice slice_of(size_t bytes, size_t n, size_t i, size_t grain) {
  const size_t each = ((bytes + n - 1) / n + grain - 1) / grain * grain;
  return {std::min(bytes, i * each), std::min(bytes, (i + 1) * each)};
}

// Publishes this rank's progress and wakes members that sleep for it.
void ring_all(const Comm& comm) {
  for (const Member& m : comm.members)
    if (m.block != &comm.block()) ring(m.block->bell);
}

prun_status complete(Comm& comm, uint64_t steps) {
  Member& self = comm.members[static_cast<size_t>(comm.me)];
  comm.calls++;
  comm.steps += steps;
  comm.stage = Stage::idle;
  self.block->done.store(self.first_call + comm.calls, std::memory_order_release);
  return PRUN_OK;
}

// Waits until there(member) holds for each other member. PRUN_OK or what test returns.
template <class There>
prun_status wait_for_all(Context& c, Comm& comm, uint64_t& start, prun_result* result, There there) {
  auto ready = [&] {
    while (comm.waited < comm.size() &&
           (comm.waited == static_cast<size_t>(comm.me) || there(comm.members[comm.waited])))
      comm.waited++;
    return comm.waited == comm.size();
  };
  RankState how = RankState::running;
  int lost = -1;
  auto idle = [&] {
    std::vector<int> among;
    for (size_t i = comm.waited; i < comm.size(); i++)
      if (i != static_cast<size_t>(comm.me) && !there(comm.members[i])) among.push_back(comm.members[i].local);
    lost = c.lost_peer(among, how);
    return lost >= 0;
  };
  switch (wait_until(c.wait, comm.block().bell, comm.patience, start, ready, [&] { return c.stopped(); }, idle)) {
    case Wait::time: {
      const int rank = comm.members[comm.waited].rank;
      return fail(result, PRUN_AGAIN, rank, "waiting for rank %d", rank);
    }
    case Wait::aborted: comm.broken = true; return report_aborted(result);
    case Wait::lost: comm.broken = true; return report_lost(c, lost, how, result);
    case Wait::ready: break;
  }
  comm.waited = 0;
  comm.patience.progress();
  return PRUN_OK;
}

// Progress `step` of this call has been reached here.
void publish(Comm& comm, uint64_t step) {
  const Member& self = comm.members[static_cast<size_t>(comm.me)];
  self.block->progress.store(self.first_step + comm.steps + step, std::memory_order_seq_cst);
  ring_all(comm);
}

prun_status wait_for_step(Context& c, Comm& comm, uint64_t step, uint64_t& start, prun_result* result) {
  return wait_for_all(c, comm, start, result, [&](const Member& m) {
    return m.block->progress.load(std::memory_order_acquire) >= m.first_step + comm.steps + step;
  });
}

prun_status check_calls(Comm& comm, prun_result* result) {
  for (const Member& m : comm.members) {
    const CallLine& line = line_of(comm, m);
    if (line.fingerprint == comm.params.fingerprint && line.count == comm.params.count &&
        line.sequence == comm.params.sequence)
      continue;
    comm.seen = {sizeof(prun_coll_seen), line.fingerprint, line.count, line.sequence};
    comm.broken = true;
    return fail(result, PRUN_EMISMATCH, m.rank, "rank %d called another collective: count %llu, sequence %llu", m.rank,
                static_cast<unsigned long long>(line.count), static_cast<unsigned long long>(line.sequence));
  }
  return PRUN_OK;
}

bool is_small(const Context& c, const Shape& s) { return s.input() <= c.options.small; }

void take_small(const Comm& comm, const Shape& s) {
  const std::byte* from[kMaxMembers];
  for (size_t i = 0; i < s.n; i++) {
    const Member& m = comm.members[i];
    from[i] = s.input() <= kLinePayload ? line_of(comm, m).payload : m.block->slot[comm.calls & 1];
  }
  take(comm, s, from, s.piece, 0, s.piece, false);
}

// Where the members' buffers are, seen from here; true: the call can be done in them.
bool resolve(Context& c, Comm& comm, const Shape& s) {
  bool all_send = true, all_recv = true, root_send = false, root_recv = false;
  for (size_t i = 0; i < s.n; i++) {
    Member& m = comm.members[i];
    const CallLine& line = line_of(comm, m);
    const Peer& peer = c.peers[static_cast<size_t>(m.local)];
    m.send = line.send.arena >= 0 ? c.address_of(peer, line.send) : nullptr;
    m.recv = line.recv.arena >= 0 ? c.address_of(peer, line.recv) : nullptr;
    all_send &= m.send != nullptr;
    all_recv &= m.recv != nullptr;
    if (i == s.root) root_send = m.send, root_recv = m.recv;
    if (i == s.me) m.send = send_of(comm), m.recv = recv_of(comm);
  }
  if (s.n == 1) return true;
  switch (s.kind) {
    case PRUN_ALL_REDUCE: return all_send && all_recv;
    case PRUN_REDUCE: return all_send && root_recv;
    case PRUN_GATHER: return root_recv;
    case PRUN_BROADCAST:
    case PRUN_SCATTER: return root_send;
    default: return all_send;
  }
}

// The next unit of direct work, from comm.at on; false: there is none left.
bool work_direct(Comm& comm, const Shape& s) {
  const bool reduction = s.kind == PRUN_ALL_REDUCE || s.kind == PRUN_REDUCE || s.kind == PRUN_REDUCE_SCATTER;
  const bool stream = s.piece >= (reduction ? kStreamSums : kStreamCopy);
  const size_t n = s.n;
  if (s.kind == PRUN_ALL_REDUCE || s.kind == PRUN_REDUCE) {
    const Slice slice = slice_of(s.piece, n, s.me, 1024);
    const size_t at = slice.begin + comm.at;
    if (at >= slice.end) return false;
    const size_t bytes = std::min(slice.end - at, std::max<size_t>(kUnit / n, 8192) / 64 * 64);
    const void* from[kMaxMembers];
    void* to[kMaxMembers];
    int outputs = 0;
    for (size_t i = 0; i < n; i++) {
      const Member& m = comm.members[(s.me + i) % n];
      from[i] = comm.members[i].send + at;
      if (s.kind == PRUN_ALL_REDUCE || (s.me + i) % n == s.root) to[outputs++] = m.recv + at;
    }
    reduce(comm.params.dtype, comm.params.redop, from, static_cast<int>(n), to, outputs, bytes / s.element, stream);
    comm.at += bytes;
    return true;
  }
  if (comm.at >= s.piece) return false;
  const size_t bytes = std::min(s.piece - comm.at, kUnit);
  if (s.kind == PRUN_GATHER) {  // each writes its own share
    copy(comm.members[s.root].recv + s.me * s.piece + comm.at, send_of(comm) + comm.at, bytes, stream);
  } else {
    const std::byte* from[kMaxMembers];
    for (size_t i = 0; i < n; i++) from[i] = comm.members[i].send + comm.at;
    take(comm, s, from, s.piece, comm.at, bytes, stream);
  }
  comm.at += bytes;
  return true;
}

struct Chunks {
  size_t bytes, count;  // of one piece
  size_t begin(size_t t) const { return t * bytes; }
  size_t size(const Shape& s, size_t t) const { return std::min(bytes, s.piece - begin(t)); }
};

Chunks chunks_of(const Shape& s) {
  const size_t bytes = kStageBytes / (s.pieces() ? s.n : 1) / 64 * 64;
  return {bytes, (s.piece + bytes - 1) / bytes};
}

// Step t of a staged reduction: chunk t goes in, chunk t-1 is reduced, chunk t-2 comes out.
void work_staged_reduction(Comm& comm, const Shape& s, const Chunks& chunks, size_t t) {
  CommBlock& mine = comm.block();
  if (t < chunks.count) put(comm, s, mine.in[t & 1], 0, chunks.begin(t), chunks.size(s, t));
  if (t >= 1 && t - 1 < chunks.count) {
    const Slice slice = slice_of(chunks.size(s, t - 1), s.n, s.me, 64);
    const void* from[kMaxMembers];
    for (size_t i = 0; i < s.n; i++) from[i] = comm.members[i].block->in[(t - 1) & 1] + slice.begin;
    void* const to = mine.out[(t - 1) & 1] + slice.begin;
    reduce(comm.params.dtype, comm.params.redop, from, static_cast<int>(s.n), &to, 1,
           (slice.end - slice.begin) / s.element, false);
  }
  if (t >= 2 && s.recv_bytes() > 0) {
    for (size_t k = 0; k < s.n; k++) {
      const size_t i = (s.me + k) % s.n;
      const Slice slice = slice_of(chunks.size(s, t - 2), s.n, i, 64);
      copy(recv_of(comm) + chunks.begin(t - 2) + slice.begin, comm.members[i].block->out[t & 1] + slice.begin,
           slice.end - slice.begin, false);
    }
  }
}

prun_status test_staged(Context& c, Comm& comm, const Shape& s, uint64_t& start, prun_result* result) {
  const Chunks chunks = chunks_of(s);
  const bool reduction = s.kind == PRUN_ALL_REDUCE || s.kind == PRUN_REDUCE;
  const size_t barriers = chunks.count + (reduction ? 1 : 0);
  while (comm.step <= barriers) {
    const size_t t = comm.step;
    if (!comm.published) {
      if (reduction) {
        work_staged_reduction(comm, s, chunks, t);
      } else {
        if (t >= 1) {
          const std::byte* from[kMaxMembers];
          for (size_t i = 0; i < s.n; i++) from[i] = comm.members[i].block->in[(t - 1) & 1];
          take(comm, s, from, chunks.bytes, chunks.begin(t - 1), chunks.size(s, t - 1), false);
        }
        if (t < chunks.count) put(comm, s, comm.block().in[t & 1], chunks.bytes, chunks.begin(t), chunks.size(s, t));
      }
      if (t == barriers) break;
      publish(comm, t + 1);
      comm.published = true;
    }
    if (prun_status status = wait_for_step(c, comm, t + 1, start, result); status != PRUN_OK) return status;
    comm.published = false;
    comm.step++;
    if (start == 0) start = now_ns();
    if (now_ns() - start > c.wait.call_ns) return PRUN_AGAIN;
  }
  return complete(comm, barriers);
}

// Direct work until it is done or time is up.
prun_status test_direct(Context& c, Comm& comm, const Shape& s, uint64_t& start, prun_result* result) {
  if (start == 0) start = now_ns();
  while (work_direct(comm, s)) {
    if (c.stopped()) {
      comm.broken = true;
      return report_aborted(result);
    }
    if (now_ns() - start > c.wait.call_ns) return PRUN_AGAIN;
  }
  publish(comm, 1);
  comm.stage = Stage::leave;
  return PRUN_OK;
}

prun_status test_arrival(Context& c, Comm& comm, const Shape& s, uint64_t& start, prun_result* result) {
  const prun_status status = wait_for_all(c, comm, start, result, [&](const Member& m) {
    return line_of(comm, m).number.load(std::memory_order_acquire) >= m.first_call + comm.calls + 1;
  });
  if (status != PRUN_OK) return status;
  if (const prun_status same = check_calls(comm, result); same != PRUN_OK) return same;
  if (is_small(c, s)) {
    take_small(comm, s);
    return complete(comm, 0);
  }
  comm.stage = resolve(c, comm, s) ? Stage::direct : Stage::staged;
  return PRUN_OK;
}

}  // namespace

prun_status start_collective(Context& c, Comm& comm, const prun_coll_params& params, prun_req** request,
                             prun_result* result) {
  if (comm.broken) return fail(result, PRUN_EABORTED, -1, "an earlier collective of this group has failed");
  if (!comm.ready || comm.stage != Stage::idle)
    return fail(result, PRUN_EINVAL, -1, "a group runs one collective at a time, once it is connected");
  if (params.kind < PRUN_ALL_REDUCE || params.kind > PRUN_BARRIER || dtype_bytes(params.dtype) == 0 ||
      params.redop < PRUN_SUM || params.redop > PRUN_AVG || params.root < 0 ||
      static_cast<size_t>(params.root) >= comm.size())
    return fail(result, PRUN_ENOTSUP, -1, "collective %d of type %d, operation %d, root %d", params.kind, params.dtype,
                params.redop, params.root);
  comm.params = params;
  comm.stage = Stage::arrive;
  comm.waited = 0;
  comm.at = comm.step = 0;
  comm.published = false;
  comm.patience.progress();

  const Shape s = shape_of(comm);
  const Member& self = comm.members[static_cast<size_t>(comm.me)];
  CallLine& line = line_of(comm, self);
  line.fingerprint = params.fingerprint;
  line.count = params.count;
  line.sequence = params.sequence;
  if (is_small(c, s)) {
    put(comm, s, s.input() <= kLinePayload ? line.payload : self.block->slot[comm.calls & 1], s.piece, 0, s.piece);
  } else {
    line.send = s.send_bytes() > 0 ? c.place_of(params.send, s.send_bytes()) : Place{-1, 0, 0};
    line.recv = s.recv_bytes() > 0 ? c.place_of(params.recv, s.recv_bytes()) : Place{-1, 0, 0};
  }
  line.number.store(self.first_call + comm.calls + 1, std::memory_order_seq_cst);
  ring_all(comm);
  *request = &comm.request;
  return PRUN_OK;
}

prun_status test_collective(Context& c, Comm& comm, prun_result* result) {
  const Shape s = shape_of(comm);
  uint64_t start = 0;
  while (true) {
    prun_status status = PRUN_OK;
    switch (comm.stage) {
      case Stage::arrive: status = test_arrival(c, comm, s, start, result); break;
      case Stage::direct: status = test_direct(c, comm, s, start, result); break;
      case Stage::leave:
        status = wait_for_step(c, comm, 1, start, result);
        if (status == PRUN_OK) return complete(comm, 1);
        break;
      case Stage::staged: status = test_staged(c, comm, s, start, result); break;
      case Stage::idle: return fail(result, PRUN_EINVAL, -1, "no collective is under way");
    }
    if (status == PRUN_AGAIN) return status;
    if (status != PRUN_OK || comm.stage == Stage::idle) {
      comm.stage = Stage::idle;
      return status;
    }
  }
}

}  // namespace prun::shm
