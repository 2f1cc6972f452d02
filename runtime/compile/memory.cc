// Offsets in the rank's arenas, role by role: persistent buffers one after another, pools as slots x stride, and all
// else packed so that two buffers share bytes only if the happens-before order proves that one is dead before the
// other lives. Greedy by size (Pisarchyk & Lee, arXiv 2001.03288).
#include <fmt/format.h>

#include <algorithm>

#include "compile/compile_state.h"
#include "ir/order.h"

namespace prun {
namespace {

// First and last access of a buffer on each stream of a body; -1 = none.
struct Life {
  int first[kMaxStreams], last[kMaxStreams];
  bool any = false;
  Life() { std::fill(first, first + kMaxStreams, -1), std::fill(last, last + kMaxStreams, -1); }
};

std::vector<Life> lives(const Program& program, const Body& body) {
  std::vector<Life> out(program.buffers.size());
  for (size_t s = 0; s < body.streams.size(); ++s) {
    for (size_t i = 0; i < body.streams[s].ops.size(); ++i) {
      auto touch = [&](TensorId tensor) {
        Life& life = out[program.tensors[tensor].buffer];
        life.any = true;
        if (life.first[s] < 0) life.first[s] = static_cast<int>(i);
        life.last[s] = static_cast<int>(i);
      };
      for (TensorId tensor : body.streams[s].ops[i].reads) touch(tensor);
      for (TensorId tensor : body.streams[s].ops[i].writes) touch(tensor);
    }
  }
  return out;
}

class Packer {
 public:
  Packer(Program& program, const Body& body)
      : program_(program),
        order_(body),
        streams_(static_cast<int>(body.streams.size())),
        lives_(lives(program, body)) {}

  // Packs the buffers of one role from `base`; returns the bytes used.
  int64_t pack(Role role, int64_t base) {
    std::vector<TensorId> wanted;
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      if (buffer.role == role && !buffer.persistent && buffer.pool < 0 && lives_[b].any)
        wanted.push_back(static_cast<int>(b));
    }
    std::stable_sort(wanted.begin(), wanted.end(), [&](int a, int b) { return bytes(a) > bytes(b); });
    std::vector<int> placed;  // by offset
    int64_t end = 0;
    for (int b : wanted) {
      int64_t at = 0;
      for (int other : placed) {
        int64_t start = program_.buffers[other].offset - base;
        if (start + bytes(other) <= at || disjoint(b, other)) continue;
        if (start >= at + bytes(b)) break;
        at = start + bytes(other);
      }
      program_.buffers[b].offset = base + at;
      end = std::max(end, at + bytes(b));
      auto position = std::upper_bound(placed.begin(), placed.end(), b, [&](int x, int y) {
        return program_.buffers[x].offset < program_.buffers[y].offset;
      });
      placed.insert(position, b);
    }
    return end;
  }

 private:
  int64_t bytes(int b) const { return program_.buffers[b].bytes; }
  bool disjoint(int a, int b) const { return precedes(a, b) || precedes(b, a); }
  // Every access of a has completed before any of b begins.
  bool precedes(int a, int b) const {
    for (int s = 0; s < streams_; ++s) {
      if (lives_[a].last[s] < 0) continue;
      for (int t = 0; t < streams_; ++t) {
        int first = lives_[b].first[t];
        if (first >= 0 && !order_.before({s, lives_[a].last[s]}, {t, first})) return false;
      }
    }
    return true;
  }

  Program& program_;
  Order order_;
  int streams_;
  std::vector<Life> lives_;
};

int64_t place_persistent(Program& program, Role role, Space space, int64_t base) {
  int64_t next = 0;
  for (Buffer& buffer : program.buffers) {
    if (buffer.role != role || !buffer.persistent || buffer.space != space) continue;
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
    next += pool.slots * pool.slot_bytes;
  }
  return next;
}

}  // namespace

void assign_memory(Program& program) {
  std::vector<Packer> packers;
  for (const Body& body : program.bodies) packers.emplace_back(program, body);
  int64_t next = 0;
  for (int r = 0; r < kRoles; ++r) {
    Role role = static_cast<Role>(r);
    int64_t used = place_persistent(program, role, Space::device, next);
    used += place_pools(program, role, next + used);
    // One body has ended before another begins: what lives only in one of them shares bytes with the others.
    const int64_t base = next + used;
    for (Packer& packer : packers) used = std::max(used, base - next + packer.pack(role, base));
    program.role_bytes[r] = used;
    next += used;
  }
  program.arena_bytes = next;
  // The host keeps what persists; nothing else lives there.
  program.host_arena_bytes = 0;
  for (int r = 0; r < kRoles; ++r) {
    program.host_role_bytes[r] = place_persistent(program, static_cast<Role>(r), Space::host, program.host_arena_bytes);
    program.host_arena_bytes += program.host_role_bytes[r];
  }
}

}  // namespace prun
