// Assigns offsets in the rank's arenas, role by role: persistent buffers consecutively, pools as slots x stride, and
// all others packed so that two buffers share bytes only if the happens-before order proves that they do not interfere.
// Greedy by size (Pisarchyk & Lee, arXiv 2001.03288); occupied_bytes.h finds the lowest free offset.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "compile/buffer_lives.h"
#include "compile/compile_state.h"
#include "compile/occupied_bytes.h"
#include "compile/other_lives.h"
#include "compile/ring_frames.h"

namespace prun {
namespace {

// Buffers by role, in id order.
class RoleBuffers {
 public:
  explicit RoleBuffers(const Program& program) {
    for (const BufferId b : program.buffers.ids()) of_role_[static_cast<int>(program.buffers[b].role)].push_back(b);
  }
  const std::vector<BufferId>& operator[](Role role) const { return of_role_[static_cast<int>(role)]; }

 private:
  std::vector<BufferId> of_role_[kRoles];
};

// Packs the buffers that live in one body.
class Packer {
 public:
  Packer(Program& program, Body& body, const RoleBuffers& buffers)
      : program_(program), body_(body), lives_(program, body), buffers_(buffers) {}

  // Returns the peak of live bytes of a role over the instants of the compute stream.
  int64_t most_alive(Role role) const {
    std::vector<int64_t> changes(lives_.instants() + 1, 0);
    for (BufferId b : packed(role)) {
      changes[lives_[b].first] += bytes(b);
      changes[lives_[b].last + 1] -= bytes(b);
    }
    int64_t alive = 0, most = 0;
    for (const int64_t change : changes) most = std::max(most, alive += change);
    return most;
  }

  // Packs the buffers of one role from `base`; returns the bytes used.
  int64_t pack(Role role, int64_t base) {
    std::vector<Lot> wanted = lots(packed(role));
    if (wanted.empty()) return 0;
    std::stable_sort(wanted.begin(), wanted.end(), [](const Lot& a, const Lot& b) { return a.bytes > b.bytes; });
    OccupiedBytes of_compute(lives_.instants());
    OtherLives of_others(lives_);
    int64_t end = 0;
    LowestPlace place;
    std::vector<const ByteRuns*> taken;
    std::deque<ByteRuns> in_the_way;
    for (const Lot& lot : wanted) {
      taken.clear();
      in_the_way.clear();
      for (const auto& [life, from, to] : lot.parts) {
        of_compute.collect(life->first, life->last, taken);
        of_others.collect(*life, taken, in_the_way);
      }
      const int64_t at = place.find(taken, lot.bytes);
      put(lot, base + at);
      end = std::max(end, at + lot.bytes);
      for (const auto& [life, from, to] : lot.parts) {
        if (life->computes_only())
          of_compute.take(life->first, life->last, at + from, at + to);
        else
          of_others.take(*life, at + from, at + to);
      }
    }
    put_members();
    return end;
  }

 private:
  std::vector<BufferId> packed(Role role) const {
    std::vector<BufferId> all;
    for (const BufferId b : buffers_[role])
      if (const Buffer& buffer = program_.buffers[b]; !buffer.persistent && buffer.pool < 0 && lives_[b].any())
        all.push_back(b);
    return all;
  }

  struct Taken {  // bytes taken during a live range, relative to the lot
    const Life* life;
    int64_t begin, end;
  };
  // Unit of placement: a buffer; buffers of the microbatches that share a slot of a ring buffer; or all ring buffers in
  // a set of frames.
  struct Lot {
    BufferId buffer = -1;
    std::vector<Taken> parts;
    int64_t bytes = 0;
    std::vector<std::pair<int, int64_t>> rings;  // ring, offset of its first slot in the lot
    int place = 0;
  };

  std::vector<Lot> lots(const std::vector<BufferId>& buffers) {
    std::vector<Lot> all;
    Table<BufferId, const Repeat::Member*> member(program_.buffers.size(), nullptr);
    for (const Repeat::Member& one : body_.repeat.members) member[one.buffer] = &one;
    std::map<int, std::vector<const Repeat::Member*>> members;
    for (const BufferId b : buffers) {
      if (member[b] == nullptr)
        all.push_back({b, {{&lives_[b], 0, bytes(b)}}, bytes(b), {}, 0});
      else
        members[member[b]->ring].push_back(member[b]);
    }
    std::vector<RingLives> rings;
    rings.reserve(members.size());
    for (const auto& [ring, of_ring] : members) rings.push_back(ring_of(ring, of_ring));
    add_rings(rings, all);
    return all;
  }

  RingLives ring_of(int number, const std::vector<const Repeat::Member*>& members) {
    const auto before = [](const auto* a, const auto* b) { return a->microbatch < b->microbatch; };
    const auto [first, last] = std::minmax_element(members.begin(), members.end(), before);
    const int apart = (*last)->microbatch - (*first)->microbatch;
    RingLives ring{number, body_.repeat.rings[number].bytes, 1, (*first)->microbatch, 0, {}};
    ring.lives.resize(apart + 1, nullptr);
    ring.members = static_cast<int>(members.size());
    for (const Repeat::Member* member : members) ring.lives[member->microbatch - ring.first] = &lives_[member->buffer];
    const auto in_turn = [&] {
      for (int i = 0; i + ring.slots <= apart; ++i)
        if (const Life* now = ring.lives[i], *later = ring.lives[i + ring.slots]; now != nullptr && later != nullptr)
          if (!lives_.precedes(*now, *later)) return false;
      return true;
    };
    while (ring.slots <= apart && !in_turn()) ++ring.slots;
    // The listed microbatches must show every reuse of a slot at least twice.
    if (ring.slots > std::max(apart - 1, 1))
      throw DoesNotRecur{program_.buffers[members.front()->buffer].name + " of all microbatches lives at once"};
    body_.repeat.rings[number].slots = ring.slots;
    return ring;
  }

  void add_rings(const std::vector<RingLives>& rings, std::vector<Lot>& all) {
    std::vector<const RingLives*> wide, narrow;
    int most = 0;
    for (const RingLives& ring : rings) most = std::max(most, ring.members);
    for (const RingLives& ring : rings) {
      if (body_.repeat.rings[ring.ring].is_one_to_others(body_.repeat.left_out()))
        wide.push_back(&ring);
      else if (ring.members == most)
        narrow.push_back(&ring);
    }
    std::set<const RingLives*> placed;
    for (const Frames& frames : framed(lives_, wide, narrow)) {
      all.push_back(lot_of(frames));
      for (const Frames::Part& part : frames.parts) placed.insert(part.ring);
    }
    for (const RingLives& ring : rings)
      for (int place = 0; place < body_.repeat.rings[ring.ring].slots && !placed.contains(&ring); ++place)
        all.push_back(lot_of(ring, place));
  }

  // Other buffers treat all frames as live while any of their buffers is, so that they do not depend on which
  // microbatch has which frame after the repeat.
  Lot lot_of(const Frames& frames) {
    Lot lot{{}, {}, frames.all_bytes(), {}, 0};
    std::vector<const Life*> lives;
    for (const Frames::Part& part : frames.parts) {
      Repeat::Ring& ring = body_.repeat.rings[part.ring->ring];
      ring.slots = frames.slots;
      ring.start = part.shift;
      ring.bytes = frames.bytes;
      lot.rings.emplace_back(part.ring->ring, part.at);
      for (const Life* life : part.ring->lives)
        if (life != nullptr) lives.push_back(life);
    }
    merged_.push_back(lives_.together(lives));
    lot.parts = {{&merged_.back(), 0, lot.bytes}};
    return lot;
  }

  Lot lot_of(const RingLives& lives, int place) {
    const Repeat::Ring& ring = body_.repeat.rings[lives.ring];
    Lot lot{{}, {}, ring.bytes, {{lives.ring, 0}}, place};
    for (int i = 0; i < std::ssize(lives.lives); ++i)
      if (lives.lives[i] != nullptr && ring.place(lives.first + i) == place)
        lot.parts.push_back({lives.lives[i], 0, ring.bytes});
    return lot;
  }

  // The two slots of a ring buffer without frames are placed one by one; their distance becomes the ring's stride.
  void put(const Lot& lot, int64_t at) {
    if (lot.rings.empty()) program_.buffers[lot.buffer].offset = at;
    for (const auto& [number, from] : lot.rings) {
      Repeat::Ring& ring = body_.repeat.rings[number];
      if (lot.place == 1) {
        ring.bytes = std::abs(at - ring.offset);
        if (at < ring.offset) ring.start = 1;
      }
      ring.offset = lot.place == 1 ? std::min(at, ring.offset) : at + from;
    }
  }

  void put_members() {
    for (const Repeat::Member& member : body_.repeat.members)
      if (const Repeat::Ring& ring = body_.repeat.rings[member.ring]; ring.pool < 0 && ring.offset >= 0)
        program_.buffers[member.buffer].offset = ring.offset + ring.place(member.microbatch) * ring.bytes;
  }

  int64_t bytes(BufferId b) const { return program_.buffers[b].bytes; }

  Program& program_;
  Body& body_;
  BufferLives lives_;
  const RoleBuffers& buffers_;
  std::deque<Life> merged_;  // live ranges of frames
};

int64_t place_persistent(Program& program, const std::vector<BufferId>& of_role, Space space, int64_t base) {
  int64_t next = 0;
  for (const BufferId b : of_role) {
    Buffer& buffer = program.buffers[b];
    if (!buffer.persistent || buffer.pool >= 0 || buffer.space != space) continue;
    buffer.offset = base + next;
    next += buffer.bytes;
  }
  return next;
}

int64_t place_pools(Program& program, Role role, int64_t base) {
  int64_t next = 0;
  for (size_t p = 0; p < program.pools.size(); ++p) {
    const Pool& pool = program.pools[p];
    if (pool.role != role) continue;
    for (Buffer& buffer : program.buffers)
      if (buffer.pool == static_cast<int>(p)) buffer.offset = base + next + buffer.slot * pool.slot_bytes;
    for (Body& body : program.bodies)
      for (Repeat::Ring& ring : body.repeat.rings)
        if (ring.pool == static_cast<int>(p)) ring.offset = base + next, ring.bytes = pool.slot_bytes;
    next += pool.slots * pool.slot_bytes;
  }
  return next;
}

// Shrinks each pool to the slots in use, and drops unused pools.
void shrink_pools(Program& program) {
  std::vector<int> used(program.pools.size(), 0), number;
  for (const Buffer& buffer : program.buffers)
    if (buffer.pool >= 0) used[buffer.pool] = std::max(used[buffer.pool], buffer.slot + 1);
  std::vector<Pool> pools;
  for (size_t p = 0; p < used.size(); ++p) {
    number.push_back(static_cast<int>(pools.size()));
    if (used[p] == 0) continue;
    pools.push_back(std::move(program.pools[p]));
    pools.back().slots = std::min(pools.back().slots, used[p]);
  }
  program.pools = std::move(pools);
  for (Buffer& buffer : program.buffers)
    if (buffer.pool >= 0) buffer.pool = number[buffer.pool];
  for (Body& body : program.bodies)
    for (Repeat::Ring& ring : body.repeat.rings)
      if (ring.pool >= 0) ring.pool = number[ring.pool];
}

// Throws plan_error if the total bytes of buffers and pools overflow.
void require_countable(const Program& program) {
  int64_t all = 0, of_pool = 0;
  const auto add = [&](int64_t bytes, const std::string& name, const Site& site) {
    if (!__builtin_add_overflow(all, bytes, &all)) return;
    throw plan_error(fmt::format("with '{}' of {} bytes the memory of a rank is too large to be planned", name, bytes),
                     site);
  };
  for (const Pool& pool : program.pools) {
    if (__builtin_mul_overflow(pool.slot_bytes, pool.slots, &of_pool))
      throw plan_error(fmt::format("{} slots of {} bytes are wanted for '{}': more than can be planned", pool.slots,
                                   pool.slot_bytes, pool.name));
    add(of_pool, pool.name, {});
  }
  for (const Buffer& buffer : program.buffers) add(buffer.bytes, buffer.name, buffer.site);
}

// `pack` packs a body's buffers of a role from an offset, and returns the bytes used.
template <class Pack>
void lay_out(Program& program, const Pack& pack) {
  shrink_pools(program);
  require_countable(program);
  const RoleBuffers buffers(program);
  std::deque<Packer> packers;  // addresses remain valid
  for (Body& body : program.bodies) packers.emplace_back(program, body, buffers);
  int64_t next = 0;
  for (int r = 0; r < kRoles; ++r) {
    Role role = static_cast<Role>(r);
    int64_t used = place_persistent(program, buffers[role], Space::device, next);
    used += place_pools(program, role, next + used);
    // Bodies run one after another, so that buffers that live in one body share bytes with those of another.
    const int64_t base = next + used;
    for (Packer& packer : packers) used = std::max(used, base - next + pack(packer, role, base));
    program.role_bytes[r] = used;
    next += used;
  }
  program.arena_bytes = next;
  // Host memory contains persistent buffers only.
  program.host_arena_bytes = 0;
  for (int r = 0; r < kRoles; ++r) {
    program.host_role_bytes[r] =
        place_persistent(program, buffers[static_cast<Role>(r)], Space::host, program.host_arena_bytes);
    program.host_arena_bytes += program.host_role_bytes[r];
  }
}

}  // namespace

void assign_memory(Program& program) {
  lay_out(program, [](Packer& packer, Role role, int64_t base) { return packer.pack(role, base); });
}

void count_memory(Program& program) {
  lay_out(program, [](Packer& packer, Role role, int64_t) { return packer.most_alive(role); });
}

}  // namespace prun
