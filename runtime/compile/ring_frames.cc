// Packs greedily by size, like memory.cc; two rings share bytes only if no pair of their microbatches interferes. The
// distances between microbatches that interfere are found once for each pair of rings, because every number of frames
// and every shift needs them.
#include "compile/ring_frames.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "compile/compile_state.h"

namespace prun {
namespace {

constexpr int kMoreTried = 2;  // frames beyond the longest ring's need: with more, each may be smaller
constexpr int kFarthest = 4;   // microbatches between two that use the same frame consecutively

// Returns the lifetime of a buffer in the middle, in instants.
int length(const RingLives& ring) {
  const Life* life = ring.lives[ring.lives.size() / 2];
  return life == nullptr ? 0 : life->last - life->first;
}

// Finds which microbatches of two rings interfere, lazily for each pair.
class RingConflicts {
 public:
  explicit RingConflicts(const BufferLives& lives) : lives_(lives) {}

  // Returns whether a buffer of `a` interferes with a buffer of `b` whose microbatch is later by `shift`, modulo
  // `slots`. A buffer does not interfere with itself.
  bool any(const RingLives& a, const RingLives& b, int shift, int slots) {
    const bool swapped = b.ring < a.ring;
    const std::vector<int>& distances = swapped ? distances_of(b, a) : distances_of(a, b);
    return std::any_of(distances.begin(), distances.end(),
                       [&](int distance) { return ((swapped ? -distance : distance) - shift) % slots == 0; });
  }

 private:
  struct Entry {
    int first, last, longest;  // `longest`: the largest `last` up to this entry
    int microbatch;
    const Life* life;
  };
  struct Entries {
    std::vector<Entry> list;  // sorted by `first`
    bool in_order = true;     // neighbors are consecutive microbatches
  };

  const Entries& entries_of(const RingLives& ring) {
    const auto [found, fresh] = entries_.try_emplace(ring.ring);
    Entries& entries = found->second;
    if (!fresh) return entries;
    std::vector<Entry>& list = entries.list;
    for (int i = 0; i < std::ssize(ring.lives); ++i)
      if (const Life* life = ring.lives[i]) list.push_back({life->first, life->last, 0, ring.first + i, life});
    std::stable_sort(list.begin(), list.end(), [](const Entry& x, const Entry& y) { return x.first < y.first; });
    int longest = INT_MIN;
    for (Entry& entry : list) {
      entry.longest = longest = std::max(longest, entry.last);
      entries.in_order = entries.in_order && entry.microbatch == list.front().microbatch + (&entry - list.data());
    }
    return entries;
  }

  // Returns the distances of the microbatches that interfere, from `a` to `b`. In a steady state all microbatches of
  // `a` interfere at the same distances, so that those of an interval, once known, are skipped.
  const std::vector<int>& distances_of(const RingLives& a, const RingLives& b) {
    const uint64_t key = static_cast<uint64_t>(a.ring) << 32U | static_cast<uint32_t>(b.ring);
    const auto [found, fresh] = distances_.try_emplace(key);
    std::vector<int>& distances = found->second;
    if (!fresh) return distances;
    const std::vector<Entry>& of_a = entries_of(a).list;
    const auto& [of_b, skips] = entries_of(b);
    const int least = b.first - a.first - static_cast<int>(std::ssize(a.lives));
    known_.assign(a.lives.size() + b.lives.size() + 1, 0);
    int low = 0, high = 0;  // distances in [low, high) are known
    size_t from = 0;
    for (const Entry& mine : of_a) {
      while (from < of_b.size() && of_b[from].longest < mine.first) ++from;
      for (size_t i = from; i < of_b.size() && of_b[i].first <= mine.last; ++i) {
        const Entry& other = of_b[i];
        const int distance = other.microbatch - mine.microbatch;
        if (skips && low <= distance && distance < high) {
          i += high - 1 - distance;
          continue;
        }
        if (known_[distance - least] != 0) continue;
        if (other.last < mine.first || other.life == mine.life || !in_the_way(*mine.life, *other.life)) continue;
        known_[distance - least] = 1;
        distances.push_back(distance);
        if (low == high) low = high = distance;
        while (known_[high - least] != 0) ++high;
        while (low > least && known_[low - 1 - least] != 0) --low;
      }
    }
    return distances;
  }

  bool in_the_way(const Life& a, const Life& b) const {
    return a.computes_only() || b.computes_only() || !lives_.disjoint(a, b);
  }

  const BufferLives& lives_;
  std::unordered_map<int, Entries> entries_;                  // by ring
  std::unordered_map<uint64_t, std::vector<int>> distances_;  // by pair of rings, the smaller number first
  std::vector<uint8_t> known_;                                // of one pair, by distance: 1 = in `distances_`
};

class FramePacker {
 public:
  FramePacker(RingConflicts& conflicts, int slots) : conflicts_(conflicts) { frames_.slots = slots; }
  const Frames& frames() const { return frames_; }

  // Adds a ring at the lowest offset. Returns false if the ring cannot rotate through so many frames, or if frames of
  // `most` bytes have no free offset.
  bool add(const RingLives& ring, int64_t most) {
    // The listed microbatches must show every reuse of a frame at least twice.
    if (frames_.slots > std::max(ring.members - 2, 1) || !apart(ring, ring, 0)) return false;
    std::optional<Frames::Part> best;
    int64_t highest = most - ring.bytes;  // offset
    for (const int shift : shifts()) {
      const std::optional<int64_t> at = lowest(ring, shift, highest);
      if (!at) continue;
      best = {&ring, shift, *at};
      highest = *at - 1;
      if (*at == 0) break;
    }
    if (!best) return false;
    frames_.bytes = std::max(frames_.bytes, best->at + ring.bytes);
    frames_.parts.push_back(*best);
    const auto later = [](int64_t at, const Frames::Part& part) { return at < part.at; };
    by_offset_.insert(std::upper_bound(by_offset_.begin(), by_offset_.end(), best->at, later), *best);
    return true;
  }

 private:
  // Returns the shifts to try: 0, then frames after and before the microbatch's own, alternately.
  std::vector<int> shifts() const {
    std::vector<int> all = {0};
    for (int by = 1; by <= kFarthest && 2 * by <= frames_.slots; ++by) {
      all.push_back(by);
      if (2 * by < frames_.slots) all.push_back(frames_.slots - by);
    }
    return all;
  }

  // Returns the lowest free offset up to `highest`. Only parts that overlap the ring at the offset reached so far are
  // compared with it.
  std::optional<int64_t> lowest(const RingLives& ring, int shift, int64_t highest) const {
    int64_t at = 0;
    for (const Frames::Part& part : by_offset_) {
      if (at > highest || part.at >= at + ring.bytes) break;
      const int64_t end = part.at + part.ring->bytes;
      if (end > at && !apart(ring, *part.ring, shift - part.shift)) at = end;
    }
    return at <= highest ? std::optional(at) : std::nullopt;
  }

  // Returns whether no two buffers of two rings in the same frame interfere.
  bool apart(const RingLives& a, const RingLives& b, int shift) const {
    return !conflicts_.any(a, b, shift, frames_.slots);
  }

  RingConflicts& conflicts_;
  Frames frames_;
  std::vector<Frames::Part> by_offset_;  // the same parts
};

// Packs each ring into the first frames that it can rotate through; nullopt = one fits none.
std::optional<std::vector<FramePacker>> packed(RingConflicts& conflicts, const std::vector<const RingLives*>& rings,
                                               const std::set<int>& slots) {
  std::vector<FramePacker> all;
  all.reserve(slots.size());
  for (const int of : slots) all.emplace_back(conflicts, of);
  for (const RingLives* ring : rings)
    if (std::none_of(all.begin(), all.end(), [&](FramePacker& frames) {
          return frames.frames().slots >= ring->slots && frames.add(*ring, INT64_MAX);
        }))
      return std::nullopt;
  return all;
}

int64_t bytes_of(const std::vector<FramePacker>& all) {
  return std::accumulate(all.begin(), all.end(), int64_t{0},
                         [](int64_t sum, const FramePacker& one) { return sum + one.frames().all_bytes(); });
}

}  // namespace

std::vector<Frames> framed(const BufferLives& lives, std::vector<const RingLives*> wide,
                           std::vector<const RingLives*> narrow) {
  if (wide.empty()) return {};
  const auto larger = [](const RingLives* a, const RingLives* b) {
    return std::pair(a->bytes, length(*a)) > std::pair(b->bytes, length(*b));
  };
  std::stable_sort(wide.begin(), wide.end(), larger);
  std::stable_sort(narrow.begin(), narrow.end(), larger);
  std::set<int> slots;
  for (const RingLives* ring : wide) slots.insert(ring->slots);
  RingConflicts conflicts(lives);
  auto each = packed(conflicts, wide, slots);
  if (!each) throw DoesNotRecur{"a ring whose places are not free in all their turns"};
  std::vector<FramePacker> best = std::move(*each);
  const int most = *slots.rbegin();
  for (int all_in = slots.size() > 1 ? most : most + 1; all_in <= most + kMoreTried; ++all_in)
    if (auto one = packed(conflicts, wide, {all_in}); one && bytes_of(*one) < bytes_of(best)) best = std::move(*one);
  for (const RingLives* ring : narrow)
    std::any_of(best.begin(), best.end(),
                [&](FramePacker& frames) { return frames.add(*ring, frames.frames().bytes); });
  std::vector<Frames> all;
  for (const FramePacker& one : best)
    if (!one.frames().parts.empty()) all.push_back(one.frames());
  return all;
}

}  // namespace prun
