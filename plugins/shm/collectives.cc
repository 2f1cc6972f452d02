// Collectives over shared memory, as steps that test() resumes.
//
//   small   the input is posted with the call's flag; one barrier, then everybody computes what it needs
//   direct  the buffers lie in arenas: direct.cc; two barriers
//   staged  anything else: staged.cc; one barrier a chunk
// All members choose alike, from the posted call alone. Reductions go in rank order in each of the three.
#include <cstring>

#include "shape.h"

namespace prun::shm {
namespace {

// After something that members may sleep for: they sleep on this rank's bell.
void ring_members(const Comm& comm) { ring(comm.block().bell); }

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
  auto bell = [&]() -> Doorbell& { return comm.members[comm.waited].block->bell; };  // of the first that is missing
  switch (wait_until(
      c.wait, bell, comm.patience, start, ready, [&] { return c.stopped(); }, idle)) {
    case Wait::time: {
      const int rank = comm.members[comm.waited].rank;
      return fail(result, PRUN_AGAIN, rank, "waiting for rank #%d", rank);
    }
    case Wait::aborted:
      comm.broken = true;
      return report_aborted(result);
    case Wait::lost:
      comm.broken = true;
      return report_lost(c, lost, how, result);
    case Wait::ready:
      break;
  }
  comm.waited = 0;
  comm.patience.progress();
  return PRUN_OK;
}

// Progress `step` of this call has been reached here.
void publish(Comm& comm, uint64_t step) {
  const Member& self = comm.members[static_cast<size_t>(comm.me)];
  self.block->progress.store(self.first_step + comm.steps + step, std::memory_order_seq_cst);
  ring_members(comm);
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
    return fail(result, PRUN_EMISMATCH, m.rank, "rank #%d called another collective: count %llu, sequence %llu", m.rank,
                static_cast<unsigned long long>(line.count), static_cast<unsigned long long>(line.sequence));
  }
  return PRUN_OK;
}

bool is_small(const Comm& comm, const Shape& s) { return s.input() <= comm.small; }

void put_small(const Comm& comm, const Shape& s) {
  if (s.n == 1 || s.send_bytes() == 0) return;
  CommBlock& mine = comm.block();
  std::byte* const to = s.input() <= kLinePayload ? mine.line[comm.calls & 1].payload : mine.slot[comm.calls & 1];
  copy(to, send_of(comm), s.input(), false);
}

void take_small(const Comm& comm, const Shape& s) {
  const std::byte* from[kMaxMembers] = {};
  for (size_t i = 0; i < s.n; i++) {
    if (!s.gives(i) || s.input() == 0) continue;
    const Member& m = comm.members[i];
    from[i] = s.input() <= kLinePayload ? line_of(comm, m).payload : m.block->slot[comm.calls & 1];
    if (i == s.me) from[i] = send_of(comm);
    from[i] += s.share(s.piece);
  }
  take(comm, s, from, 0, s.piece, false);
}

prun_status test_staged(Context& c, Comm& comm, const Shape& s, uint64_t& start, prun_result* result) {
  const size_t steps = steps_staged(comm, s);
  while (true) {
    if (!comm.published) {
      work_staged(comm, s, comm.step);
      if (comm.step + 1 == steps) return complete(comm, steps - 1);
      publish(comm, comm.step + 1);
      comm.published = true;
    }
    if (prun_status status = wait_for_step(c, comm, comm.step + 1, start, result); status != PRUN_OK) return status;
    comm.published = false;
    comm.step++;
    if (start == 0) start = now_ns();
    if (now_ns() - start > c.wait.call_ns) return PRUN_AGAIN;
  }
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
  if (is_small(comm, s)) {
    comm.path = "small: the input comes with the call's flag (option small)";
    take_small(comm, s);
    return complete(comm, 0);
  }
  comm.stream = streams(c, comm, s);
  comm.stage = resolve(c, comm, s) ? Stage::direct : Stage::staged;
  comm.path = comm.stage == Stage::direct ? "direct: read and written where the members have it"
                                          : "staged: in chunks through blocks that the members share (option chunk)";
  return PRUN_OK;
}

}  // namespace

void take(const Comm& comm, const Shape& s, const std::byte* const* from, size_t offset, size_t bytes, bool stream) {
  if (s.recv_bytes() == 0) return;
  std::byte* const to = recv_of(comm) + offset;
  switch (s.kind) {
    case PRUN_ALL_REDUCE:
    case PRUN_REDUCE:
    case PRUN_REDUCE_SCATTER: {
      const void* inputs[kMaxMembers];
      for (size_t i = 0; i < s.n; i++) inputs[i] = from[i];
      void* const output = to;
      reduce(comm.params.dtype, comm.params.redop, inputs, static_cast<int>(s.n), &output, 1, bytes / s.element,
             stream);
      return;
    }
    case PRUN_ALL_GATHER:
    case PRUN_GATHER:
    case PRUN_ALL_TO_ALL:
      for (size_t k = 0; k < s.n; k++) {
        const size_t i = (s.me + k) % s.n;  // each begins with another member
        copy(to + i * s.piece, from[i], bytes, stream);
      }
      return;
    default:
      copy(to, from[s.root], bytes, stream);
  }
}

bool streams(const Context& c, const Comm& comm, const Shape& s) {
  const std::byte *send = send_of(comm), *recv = recv_of(comm);
  if (s.reduces() && recv >= send && recv < send + s.send_bytes()) return false;
  const size_t inputs = s.kind == PRUN_BROADCAST || s.kind == PRUN_SCATTER ? 1 : s.n;
  const size_t outputs = s.kind == PRUN_REDUCE || s.kind == PRUN_GATHER ? 1 : s.n;
  return inputs * s.input() + outputs * s.recv_bytes() > c.last_cache + c.last_cache / 2;
}

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
  if (is_small(comm, s)) {
    put_small(comm, s);
  } else {
    line.send = s.send_bytes() > 0 ? c.place_of(params.send, s.send_bytes()) : Place{-1, 0, 0};
    line.recv = s.recv_bytes() > 0 ? c.place_of(params.recv, s.recv_bytes()) : Place{-1, 0, 0};
  }
  line.number.store(self.first_call + comm.calls + 1, std::memory_order_seq_cst);
  ring_members(comm);
  *request = &comm.request;
  return PRUN_OK;
}

prun_status test_collective(Context& c, Comm& comm, prun_result* result) {
  const Shape s = shape_of(comm);
  uint64_t start = 0;
  while (true) {
    prun_status status = PRUN_OK;
    switch (comm.stage) {
      case Stage::arrive:
        status = test_arrival(c, comm, s, start, result);
        break;
      case Stage::direct:
        status = test_direct(c, comm, s, start, result);
        break;
      case Stage::leave:
        status = wait_for_step(c, comm, 1, start, result);
        if (status == PRUN_OK) return complete(comm, 1);
        break;
      case Stage::staged:
        status = test_staged(c, comm, s, start, result);
        break;
      case Stage::idle:
        return fail(result, PRUN_EINVAL, -1, "no collective is under way");
    }
    if (status == PRUN_AGAIN) return status;
    if (status != PRUN_OK || comm.stage == Stage::idle) {
      comm.stage = Stage::idle;
      return status;
    }
  }
}

}  // namespace prun::shm
