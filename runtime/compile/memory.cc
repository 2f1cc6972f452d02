// Offsets in the rank's arenas, role by role: persistent buffers one after another, pools as slots x stride, and all
// else packed so that two buffers share bytes only if the happens-before order proves that one is dead before the
// other lives. Greedy by size (Pisarchyk & Lee, arXiv 2001.03288); occupied_bytes.h finds the lowest free place.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

#include "compile/compile_state.h"
#include "compile/occupied_bytes.h"
#include "ir/order.h"

namespace prun {
namespace {

// First and last access of a buffer on a stream of a body.
struct StreamLife {
  StreamId stream;
  int first = 0, last = 0;
};

// What of a buffer's life other buffers are held against. `first` and `last` are instants of the compute stream: its op
// i is instant 2i + 1, and what happens between ops i - 1 and i is instant 2i. Seen from a buffer that only the compute
// stream touches, another one is in the way if and only if their instants overlap.
struct Life {
  std::vector<StreamLife> streams;
  int first = 0, last = 0;
  int first_position = 0, last_position = 0;  // in the order's sequence: buffers in each other's way overlap
  bool any() const { return !streams.empty(); }
  bool computes_only() const { return streams.size() == 1 && streams.front().stream == 0; }
};

constexpr int kPositionsABucket = 512;

// The buffers of each role, in their order.
class RoleBuffers {
 public:
  explicit RoleBuffers(const Program& program) {
    for (const BufferId b : program.buffers.ids()) of_role_[static_cast<int>(program.buffers[b].role)].push_back(b);
  }
  const std::vector<BufferId>& operator[](Role role) const { return of_role_[static_cast<int>(role)]; }

 private:
  std::vector<BufferId> of_role_[kRoles];
};

// Packs what lives in one body.
class Packer {
 public:
  Packer(Program& program, Body& body, const RoleBuffers& buffers)
      : program_(program), body_(body), order_(body), buffers_(buffers) {
    lives_.resize(program.buffers.size());
    for (StreamId s : body.streams.ids())
      for (int i = 0; i < ops_on(s); ++i)
        for (const std::vector<TensorId>* ids : {&body.streams[s].ops[i].reads, &body.streams[s].ops[i].writes})
          for (TensorId tensor : *ids) touch(lives_[program.tensors[tensor].buffer], s, i);
    positions_.resize(body.streams.size());
    for (StreamId s : body.streams.ids()) positions_[s].assign(ops_on(s), 0);
    for (int i = 0; i < std::ssize(order_.sequence()); ++i)
      positions_[order_.sequence()[i].stream][order_.sequence()[i].index] = i;
    for (Life& life : lives_)
      if (life.any()) find_instants(life);
  }

  // The most bytes of a role that are in each other's way at an instant of the compute stream.
  int64_t most_alive(Role role) const {
    std::vector<int64_t> changes(2 * ops_on(0) + 2, 0);
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
    const int instants = 2 * ops_on(0) + 1;
    OccupiedBytes of_compute(instants), of_others(instants);
    Others others(order_.sequence().size() / kPositionsABucket + 1);
    int64_t end = 0;
    LowestPlace place;
    std::vector<const ByteRuns*> taken;
    std::deque<ByteRuns> in_the_way;
    for (const Lot& lot : wanted) {
      taken.clear();
      in_the_way.clear();
      for (const auto& [life, from, to] : lot.parts) {
        of_compute.collect(life->first, life->last, taken);
        if (life->computes_only())
          of_others.collect(life->first, life->last, taken);
        else
          taken.push_back(&in_the_way.emplace_back(runs_in_the_way(*life, others)));
      }
      const int64_t at = place.find(taken, lot.bytes);
      put(lot, base + at);
      end = std::max(end, at + lot.bytes);
      for (const auto& [life, from, to] : lot.parts) {
        (life->computes_only() ? of_compute : of_others).take(life->first, life->last, at + from, at + to);
        if (life->computes_only()) continue;
        for (int bucket = first_bucket(*life); bucket <= last_bucket(*life); ++bucket)
          others[bucket].push_back({life, at + from, at + to});
      }
    }
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

  struct Taken {  // bytes, from where the lot begins or from the base of the role, and while what lives
    const Life* life;
    int64_t begin, end;
  };
  // What is placed as one: a buffer; or those that microbatches have of it, one behind the other in their ring, or all
  // in one place if each is dead before the next one lives.
  struct Lot {
    std::vector<BufferId> buffers;
    std::vector<Taken> parts;
    int64_t bytes = 0;
    int ring = -1;
  };
  using Others = std::vector<std::vector<Taken>>;  // by bucket of positions

  std::vector<Lot> lots(const std::vector<BufferId>& buffers) {
    std::vector<Lot> all;
    Table<BufferId, const Repeat::Member*> member(program_.buffers.size(), nullptr);
    for (const Repeat::Member& one : body_.repeat.members) member[one.buffer] = &one;
    std::map<int, std::vector<const Repeat::Member*>> rings;
    for (const BufferId b : buffers) {
      if (member[b] == nullptr)
        all.push_back({{b}, {{&lives_[b], 0, bytes(b)}}, bytes(b), -1});
      else
        rings[member[b]->ring].push_back(member[b]);
    }
    for (auto& [ring, members] : rings) all.push_back(lot_of(ring, members));
    return all;
  }

  // As many places as microbatches have theirs at once.
  Lot lot_of(int number, const std::vector<const Repeat::Member*>& members) {
    Repeat::Ring& ring = body_.repeat.rings[number];
    std::map<int, BufferId> of_microbatch;
    for (const Repeat::Member* member : members) of_microbatch[member->microbatch] = member->buffer;
    const int apart = of_microbatch.rbegin()->first - of_microbatch.begin()->first;
    const auto in_turn = [&](int slots) {
      return std::all_of(of_microbatch.begin(), of_microbatch.end(), [&](const auto& one) {
        const auto later = of_microbatch.find(one.first + slots);
        return later == of_microbatch.end() || precedes(lives_[one.second], lives_[later->second]);
      });
    };
    ring.slots = 1;
    while (ring.slots <= apart && !in_turn(ring.slots)) ++ring.slots;
    // What comes round again is seen at least twice.
    if (ring.slots > std::max(apart - 1, 1))
      throw DoesNotRecur{program_.buffers[members.front()->buffer].name + " of all microbatches lives at once"};
    Lot lot{{}, {}, ring.bytes * ring.slots, number};
    for (const Repeat::Member* member : members) {
      const int64_t from = ring.place(member->microbatch) * ring.bytes;
      lot.buffers.push_back(member->buffer);
      lot.parts.push_back({&lives_[member->buffer], from, from + ring.bytes});
    }
    if (!ring.is_one_to_others(body_.repeat.left_out())) return lot;
    merged_.push_back(together(lot.parts));
    lot.parts = {{&merged_.back(), 0, lot.bytes}};
    return lot;
  }

  // From the first access of any to the last.
  Life together(const std::vector<Taken>& parts) const {
    Life all;
    for (const Taken& part : parts)
      for (const StreamLife& on : part.life->streams) {
        const auto known = std::find_if(all.streams.begin(), all.streams.end(),
                                        [&](const auto& other) { return other.stream == on.stream; });
        if (known == all.streams.end()) {
          all.streams.push_back(on);
        } else {
          known->first = std::min(known->first, on.first);
          known->last = std::max(known->last, on.last);
        }
      }
    find_instants(all);
    return all;
  }

  void put(const Lot& lot, int64_t at) {
    for (const BufferId b : lot.buffers) program_.buffers[b].offset = at;
    if (lot.ring < 0) return;
    Repeat::Ring& ring = body_.repeat.rings[lot.ring];
    ring.offset = at;
    for (const Repeat::Member& member : body_.repeat.members)
      if (member.ring == lot.ring)
        program_.buffers[member.buffer].offset = at + ring.place(member.microbatch) * ring.bytes;
  }

  int64_t bytes(BufferId b) const { return program_.buffers[b].bytes; }
  int ops_on(StreamId s) const {
    return s < body_.streams.next() ? static_cast<int>(std::ssize(body_.streams[s].ops)) : 0;
  }

  static int first_bucket(const Life& life) { return life.first_position / kPositionsABucket; }
  static int last_bucket(const Life& life) { return life.last_position / kPositionsABucket; }

  // What is in the way of something that streams beside the compute stream touch, too.
  ByteRuns::Runs runs_in_the_way(const Life& life, const Others& others) const {
    ByteRuns::Runs runs;
    for (int bucket = first_bucket(life); bucket <= last_bucket(life); ++bucket)
      for (const Taken& other : others[bucket]) {
        const bool seen = bucket > std::max(first_bucket(life), first_bucket(*other.life));
        if (!seen && !disjoint(life, *other.life)) runs.emplace_back(other.begin, other.end);
      }
    return runs;
  }

  static void touch(Life& life, StreamId stream, int index) {
    if (life.streams.empty() || life.streams.back().stream != stream) life.streams.push_back({stream, index, index});
    life.streams.back().last = index;
  }

  // The first op of a stream that begins when the buffer is dead.
  int dead_from(const Life& life, StreamId stream) const {
    int low = 0, high = ops_on(stream);
    while (low < high) {
      const int middle = (low + high) / 2;
      const bool dead = std::all_of(life.streams.begin(), life.streams.end(), [&](const StreamLife& on) {
        return order_.before({on.stream, on.last}, {stream, middle});
      });
      (dead ? high : low) = dead ? middle : middle + 1;
    }
    return low;
  }

  // How many ops of the compute stream have ended before the buffer lives.
  int ended_before(const Life& life) const {
    int ended = ops_on(0);
    for (const StreamLife& on : life.streams) ended = std::min(ended, order_.ended_before({on.stream, on.first}, 0));
    return ended;
  }

  void find_instants(Life& life) const {
    if (life.computes_only()) {
      life.first = 2 * life.streams.front().first + 1;
      life.last = 2 * life.streams.front().last + 1;
      return;
    }
    life.first = 2 * ended_before(life);
    life.last = 2 * dead_from(life, 0);
    life.first_position = INT32_MAX;
    for (const StreamLife& on : life.streams)
      life.first_position = std::min(life.first_position, positions_[on.stream][on.first]);
    for (StreamId s : body_.streams.ids())
      if (const int dead = dead_from(life, s); dead > 0)
        life.last_position = std::max(life.last_position, positions_[s][dead - 1]);
    life.last_position = std::max(life.last_position, life.first_position);
  }

  bool disjoint(const Life& a, const Life& b) const { return precedes(a, b) || precedes(b, a); }
  // Every access of a has completed before any of b begins.
  bool precedes(const Life& a, const Life& b) const {
    for (const StreamLife& of_a : a.streams)
      for (const StreamLife& of_b : b.streams)
        if (!order_.before({of_a.stream, of_a.last}, {of_b.stream, of_b.first})) return false;
    return true;
  }

  Program& program_;
  Body& body_;
  Order order_;
  const RoleBuffers& buffers_;
  std::deque<Life> merged_;  // of rings with several places
  Table<BufferId, Life> lives_;
  Table<StreamId, std::vector<int>> positions_;  // of each op in the order's sequence
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

// A pool has no more slots than were handed out.
void shrink_pools(Program& program) {
  std::vector<int> used(program.pools.size(), 0);
  for (const Buffer& buffer : program.buffers)
    if (buffer.pool >= 0) used[buffer.pool] = std::max(used[buffer.pool], buffer.slot + 1);
  for (int p = 0; p < std::ssize(used); ++p) program.pools[p].slots = std::min(program.pools[p].slots, used[p]);
}

// Buffers one after another, and pools of them, are a number of bytes.
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

// `pack`: of a body and a role, from an offset on; returns the bytes used.
template <class Pack>
void lay_out(Program& program, const Pack& pack) {
  shrink_pools(program);
  require_countable(program);
  const RoleBuffers buffers(program);
  std::deque<Packer> packers;  // never moved
  for (Body& body : program.bodies) packers.emplace_back(program, body, buffers);
  int64_t next = 0;
  for (int r = 0; r < kRoles; ++r) {
    Role role = static_cast<Role>(r);
    int64_t used = place_persistent(program, buffers[role], Space::device, next);
    used += place_pools(program, role, next + used);
    // One body has ended before another begins: what lives only in one of them shares bytes with the others.
    const int64_t base = next + used;
    for (Packer& packer : packers) used = std::max(used, base - next + pack(packer, role, base));
    program.role_bytes[r] = used;
    next += used;
  }
  program.arena_bytes = next;
  // The host keeps what persists; nothing else lives there.
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
