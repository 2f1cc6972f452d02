// Collectives over shared memory as steps that test() resumes.
//
//   small   the input is posted with the call's flag; one barrier, then each member computes its output
//   direct  all needed buffers are in arenas: direct.cc; two barriers
//   staged  other memory: staged.cc; one barrier per chunk
// The posted calls alone determine the choice, so all members make the same one. All three reduce in rank order.
#include <cstring>

#include "shape.h"

namespace prun::shm {
namespace {

// Rings this rank's bell, on which the members sleep, after a store that they may wait for.
void ring_members(const Comm& comm) { ring(comm.block().bell); }

void complete(Comm& comm, uint64_t steps) {
  Member& self = comm.members[comm.me];
  comm.calls++;
  comm.steps += steps;
  comm.stage = Stage::idle;
  self.block->done.store(self.first_call + comm.calls, std::memory_order_release);
}

// Ends the communicator with an error; its flags are invalid from then on.
[[noreturn]] void break_off(Comm& comm, const Failure& failure) {
  comm.broken = true;
  comm.stage = Stage::idle;
  throw failure;
}

// Waits until there(member) holds for each other member. This and the functions below return false if the time of this
// call of test is over.
template <class There>
bool wait_for_all(Context& c, Comm& comm, uint64_t& start, There there) {
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
  auto bell = [&]() -> Doorbell& { return comm.members[comm.waited].block->bell; };  // bell of the first missing member
  switch (wait_until(
      c.wait, bell, comm.patience, start, ready, [&] { return c.stopped(); }, idle)) {
    case Wait::time:
      comm.awaited = comm.members[comm.waited].rank;
      return false;
    case Wait::aborted:
      break_off(comm, aborted_failure());
    case Wait::lost:
      break_off(comm, c.loss(lost, how));
    case Wait::ready:
      break;
  }
  comm.waited = 0;
  comm.patience.progress();
  return true;
}

// Publishes that this rank has reached `step` of the call.
void publish(Comm& comm, uint64_t step) {
  const Member& self = comm.members[comm.me];
  self.block->progress.store(self.first_step + comm.steps + step, std::memory_order_seq_cst);
  ring_members(comm);
}

bool wait_for_step(Context& c, Comm& comm, uint64_t step, uint64_t& start) {
  return wait_for_all(c, comm, start, [&](const Member& m) {
    return m.block->progress.load(std::memory_order_acquire) >= m.first_step + comm.steps + step;
  });
}

void check_calls(Comm& comm) {
  for (const Member& m : comm.members) {
    const CallLine& line = line_of(comm, m);
    if (line.fingerprint == comm.params.fingerprint && line.count == comm.params.count &&
        line.sequence == comm.params.sequence)
      continue;
    comm.seen = {sizeof(prun_coll_seen), line.fingerprint, line.count, line.sequence};
    break_off(comm, {PRUN_EMISMATCH, m.rank, "rank #", m.rank, " called another collective: count ", line.count,
                     ", sequence ", line.sequence});
  }
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

bool test_staged(Context& c, Comm& comm, const Shape& s, uint64_t& start) {
  const size_t steps = steps_staged(comm, s);
  while (true) {
    if (!comm.published) {
      work_staged(comm, s, comm.step);
      if (comm.step + 1 == steps) {
        complete(comm, steps - 1);
        return true;
      }
      publish(comm, comm.step + 1);
      comm.published = true;
    }
    if (!wait_for_step(c, comm, comm.step + 1, start)) return false;
    comm.published = false;
    comm.step++;
    if (start == 0) start = now_ns();
    if (now_ns() - start > c.wait.call_ns) return false;
  }
}

// Works directly. Returns true when the work is done, false when the time of this call of test is over.
bool test_direct(Context& c, Comm& comm, const Shape& s, uint64_t& start) {
  if (start == 0) start = now_ns();
  while (work_direct(comm, s)) {
    if (c.stopped()) break_off(comm, aborted_failure());
    if (now_ns() - start > c.wait.call_ns) return false;
  }
  publish(comm, 1);
  comm.stage = Stage::leave;
  return true;
}

bool test_arrival(Context& c, Comm& comm, const Shape& s, uint64_t& start) {
  const bool all_here = wait_for_all(c, comm, start, [&](const Member& m) {
    return line_of(comm, m).number.load(std::memory_order_acquire) >= m.first_call + comm.calls + 1;
  });
  if (!all_here) return false;
  check_calls(comm);
  if (is_small(comm, s)) {
    comm.path = "small: the input comes with the call's flag (option small)";
    take_small(comm, s);
    complete(comm, 0);
    return true;
  }
  comm.stream = streams(c, comm, s);
  comm.stage = resolve(c, comm, s) ? Stage::direct : Stage::staged;
  comm.path = comm.stage == Stage::direct ? "direct: read and written where the members have it"
                                          : "staged: in chunks through blocks that the members share (option chunk)";
  return true;
}

// Advances one stage. After the last stage the communicator is idle.
bool advance(Context& c, Comm& comm, const Shape& s, uint64_t& start) {
  switch (comm.stage) {
    case Stage::arrive:
      return test_arrival(c, comm, s, start);
    case Stage::direct:
      return test_direct(c, comm, s, start);
    case Stage::leave:
      if (!wait_for_step(c, comm, 1, start)) return false;
      complete(comm, 1);
      return true;
    case Stage::staged:
      return test_staged(c, comm, s, start);
    case Stage::idle:
      break;
  }
  throw Failure(PRUN_EINVAL, "no collective is under way");
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
      sdk::reduce(reduction_of(comm), inputs, static_cast<int>(s.n), &output, 1, bytes / s.element, stream);
      return;
    }
    case PRUN_ALL_GATHER:
    case PRUN_GATHER:
    case PRUN_ALL_TO_ALL:
      for (size_t k = 0; k < s.n; k++) {
        const size_t i = (s.me + k) % s.n;  // starts with a different member on each rank
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

Request* Context::coll(Comm& comm, const prun_coll_params& params, prun_queue) {
  if (comm.broken) throw Failure(PRUN_EABORTED, "an earlier collective of this group has failed");
  if (!comm.ready || comm.stage != Stage::idle)
    throw Failure(PRUN_EINVAL, "a group runs one collective at a time, once it is connected");
  if (params.kind < PRUN_ALL_REDUCE || params.kind > PRUN_BARRIER || sdk::dtype_bytes(params.dtype) == 0 ||
      params.redop < PRUN_SUM || params.redop > PRUN_AVG || params.root < 0 || params.root >= std::ssize(comm.members))
    throw Failure(PRUN_ENOTSUP, -1, "collective ", params.kind, " of type ", params.dtype, ", operation ", params.redop,
                  ", root ", params.root);
  comm.params = params;
  comm.stage = Stage::arrive;
  comm.waited = 0;
  comm.at = comm.step = 0;
  comm.published = false;
  comm.patience.progress();

  const Shape s = shape_of(comm);
  const Member& own = comm.members[comm.me];
  CallLine& line = line_of(comm, own);
  line.fingerprint = params.fingerprint;
  line.count = params.count;
  line.sequence = params.sequence;
  if (is_small(comm, s)) {
    put_small(comm, s);
  } else {
    line.send = s.send_bytes() > 0 ? place_of(params.send, s.send_bytes()) : Place{-1, 0, 0};
    line.recv = s.recv_bytes() > 0 ? place_of(params.recv, s.recv_bytes()) : Place{-1, 0, 0};
  }
  line.number.store(own.first_call + comm.calls + 1, std::memory_order_seq_cst);
  ring_members(comm);
  return &comm.request;
}

Failure test_collective(Context& c, Comm& comm) {
  const Shape s = shape_of(comm);
  uint64_t start = 0;
  comm.awaited = -1;
  do {
    if (advance(c, comm, s, start)) continue;
    if (comm.awaited < 0) return {PRUN_AGAIN, ""};
    return {PRUN_AGAIN, comm.awaited, "waiting for rank #", comm.awaited};
  } while (comm.stage != Stage::idle);
  return {};
}

}  // namespace prun::shm
