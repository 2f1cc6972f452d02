// Creation and destruction of communicators without a coordinator.
#include "comm.h"

#include <algorithm>

#include "shape.h"

namespace prun::shm {
namespace {

uint64_t mix(uint64_t h, uint64_t value) {  // finalizer of splitmix64
  h = (h ^ value) + 0x9e3779b97f4a7c15u;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

// Called under c.mutex. Returns a block's index, or -1 if none is free.
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

Comm* Context::comm_create(std::span<const int> group, int lane) {
  const size_t n = group.size();
  if (n > kMaxMembers) throw Failure(PRUN_ENOTSUP, -1, "a group of ", n, " ranks");
  auto comm = std::make_unique<Comm>();
  comm->members.resize(n);
  comm->key = mix(static_cast<uint64_t>(lane), n);
  for (size_t i = 0; i < n; i++) {
    Member& m = comm->members[i];
    m.rank = group[i];
    m.local = local_of[m.rank];
    if (m.local < 0) throw Failure(PRUN_ENOTSUP, m.rank, "rank #", m.rank, " is not on this host");
    if (m.rank == rank)
      comm->me = static_cast<int>(i);
    else
      comm->locals.push_back(m.local);
    comm->key = mix(comm->key, static_cast<uint64_t>(m.rank));
  }
  comm->small = options.small;
  comm->chunk = options.chunk;
  comm->ring = ring;
  comm->request.kind = Request::Kind::coll;
  comm->request.comm = comm.get();

  std::lock_guard lock(mutex);
  comm->slot = take_slot(*this);
  if (comm->slot < 0) throw Failure(PRUN_ENOTSUP, -1, kMaxComms, " groups at once are too many");
  Member& own = comm->members[comm->me];
  own.block = &self().block(comm->slot);
  own.first_call = own.block->done.load(std::memory_order_relaxed);
  own.first_call += own.first_call & 1;  // makes call k use line k & 1 on all members
  own.block->done.store(own.first_call, std::memory_order_release);
  own.first_step = own.block->progress.load(std::memory_order_relaxed);
  for (int local : comm->locals)
    send_note(*this, local,
              CommNote{comm->key, own.first_call, own.first_step, comm->slot, static_cast<int32_t>(n),
                       static_cast<uint32_t>(comm->small), static_cast<uint32_t>(comm->chunk),
                       static_cast<uint32_t>(comm->ring)});
  return comm.release();
}

Failure Context::comm_test(Comm& comm) {
  if (comm.ready) return {};
  std::lock_guard lock(mutex);
  progress(*this);
  for (Member& m : comm.members) {
    if (m.block) continue;
    auto& notes = p2p.links[m.local].notes;
    auto note = std::find_if(notes.begin(), notes.end(), [&](const CommNote& x) {
      return x.key == comm.key && x.members == static_cast<int>(comm.size());
    });
    if (note == notes.end()) {
      RankState how = RankState::running;
      if (const int lost = lost_peer({m.local}, how); lost >= 0 && !progress(*this)) return loss(lost, how);
      return {PRUN_AGAIN, m.rank, "waiting for rank #", m.rank, " to join the group"};
    }
    m.block = &peers[m.local].block(note->slot);
    m.first_call = note->first_call;
    m.first_step = note->first_step;
    comm.small = std::min<size_t>(comm.small, note->small);
    comm.chunk = std::min<size_t>(comm.chunk, note->chunk);
    comm.ring = std::min<size_t>(comm.ring, note->ring);
    notes.erase(note);
  }
  for (int local : comm.locals)  // our own notes must be sent before polling ends
    if (!p2p.links[local].out.empty()) return {PRUN_AGAIN, ""};
  comm.ready = true;
  return {};
}

void Context::comm_free(Comm* comm) {
  const std::unique_ptr<Comm> owned(comm);
  if (!comm->ready || comm->broken || comm->stage != Stage::idle) return;  // peers may read the block indefinitely
  Resting rest;
  rest.slot = comm->slot;
  for (const Member& m : comm->members)
    if (m.rank != rank) rest.needs.push_back({&m.block->done, m.first_call + comm->calls});
  std::lock_guard lock(mutex);
  resting.push_back(std::move(rest));
}

}  // namespace prun::shm
