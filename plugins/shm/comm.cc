// Making and freeing communicators without a coordinator.
#include "comm.h"

#include <algorithm>
#include <cstring>

#include "reduce.h"

namespace prun::shm {
namespace {

uint64_t mix(uint64_t h, uint64_t value) {  // splitmix64's finalizer
  h = (h ^ value) + 0x9e3779b97f4a7c15u;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

// Under c.mutex. -1: none is free.
int take_slot(Context& c) {
  std::erase_if(c.resting, [&](const Resting& r) {
    for (const Resting::Need& need : r.needs)
      if (need.done->load(std::memory_order_acquire) < need.value) return false;
    c.free_slots.push_back(r.slot);
    return true;
  });
  if (!c.free_slots.empty()) {
    const int slot = c.free_slots.back();
    c.free_slots.pop_back();
    return slot;
  }
  return c.slots_used < kMaxComms ? c.slots_used++ : -1;
}

}  // namespace

prun_status create_comm(Context& c, const int* ranks, int n, int lane, prun_comm** made, prun_result* result) {
  if (n < 1 || n > kMaxMembers) return fail(result, PRUN_ENOTSUP, -1, "a group of %d ranks", n);
  auto comm = std::make_unique<prun_comm>();
  comm->members.resize(static_cast<size_t>(n));
  comm->me = -1;
  comm->key = mix(static_cast<uint64_t>(lane), static_cast<uint64_t>(n));
  for (int i = 0; i < n; i++) {
    if (ranks[i] < 0 || ranks[i] >= c.ranks) return fail(result, PRUN_EINVAL, -1, "no rank #%d", ranks[i]);
    Member& m = comm->members[static_cast<size_t>(i)];
    m.rank = ranks[i];
    m.local = c.local_of[static_cast<size_t>(m.rank)];
    if (m.local < 0) return fail(result, PRUN_ENOTSUP, m.rank, "rank #%d is not on this host", m.rank);
    if (m.rank == c.rank)
      comm->me = i;
    else
      comm->locals.push_back(m.local);
    comm->key = mix(comm->key, static_cast<uint64_t>(m.rank));
  }
  if (comm->me < 0) return fail(result, PRUN_EINVAL, c.rank, "rank #%d is not in the group", c.rank);
  comm->small = c.options.small;
  comm->chunk = c.options.chunk;
  comm->ring = c.ring;
  comm->request.kind = prun_req::Kind::coll;
  comm->request.comm = comm.get();

  std::lock_guard lock(c.mutex);
  comm->slot = take_slot(c);
  if (comm->slot < 0) return fail(result, PRUN_ENOTSUP, -1, "%d groups at once are too many", kMaxComms);
  Member& self = comm->members[static_cast<size_t>(comm->me)];
  self.block = &c.self().block(comm->slot);
  self.first_call = self.block->done.load(std::memory_order_relaxed);
  self.first_call += self.first_call & 1;  // call k uses line k & 1 on all members
  self.block->done.store(self.first_call, std::memory_order_release);
  self.first_step = self.block->progress.load(std::memory_order_relaxed);
  for (int local : comm->locals)
    send_note(c, local,
              CommNote{comm->key, self.first_call, self.first_step, comm->slot, n, static_cast<uint32_t>(comm->small),
                       static_cast<uint32_t>(comm->chunk), static_cast<uint32_t>(comm->ring)});
  *made = comm.release();
  return PRUN_OK;
}

prun_status test_comm(Context& c, Comm& comm, prun_result* result) {
  if (comm.ready) return PRUN_OK;
  if (c.stopped()) return report_aborted(result);
  std::lock_guard lock(c.mutex);
  progress(c);
  for (Member& m : comm.members) {
    if (m.block) continue;
    auto& notes = c.p2p.links[static_cast<size_t>(m.local)].notes;
    auto note = std::find_if(notes.begin(), notes.end(), [&](const CommNote& x) {
      return x.key == comm.key && x.members == static_cast<int>(comm.size());
    });
    if (note == notes.end()) {
      RankState how = RankState::running;
      if (const int lost = c.lost_peer({m.local}, how); lost >= 0 && !progress(c))
        return report_lost(c, lost, how, result);
      return fail(result, PRUN_AGAIN, m.rank, "waiting for rank #%d to join the group", m.rank);
    }
    m.block = &c.peers[static_cast<size_t>(m.local)].block(note->slot);
    m.first_call = note->first_call;
    m.first_step = note->first_step;
    comm.small = std::min<size_t>(comm.small, note->small);
    comm.chunk = std::min<size_t>(comm.chunk, note->chunk);
    comm.ring = std::min<size_t>(comm.ring, note->ring);
    notes.erase(note);
  }
  for (int local : comm.locals)  // our own notes must be out before we stop calling
    if (!c.p2p.links[static_cast<size_t>(local)].out.empty()) return PRUN_AGAIN;
  comm.ready = true;
  return PRUN_OK;
}

void free_comm(Context& c, Comm* comm) {
  std::unique_ptr<prun_comm> owned(static_cast<prun_comm*>(comm));
  if (!comm->ready || comm->broken || comm->stage != Stage::idle) return;  // its peers may read it for ever
  Resting rest;
  rest.slot = comm->slot;
  for (const Member& m : comm->members)
    if (m.rank != c.rank) rest.needs.push_back({&m.block->done, m.first_call + comm->calls});
  std::lock_guard lock(c.mutex);
  c.resting.push_back(std::move(rest));
}

}  // namespace prun::shm
