// Packs greedily by size, like memory.cc; two rings share bytes only if no pair of their microbatches interferes.
#include "compile/ring_frames.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "compile/compile_state.h"

namespace prun {
namespace {

constexpr int kMoreTried = 2;  // frames beyond the longest ring's need: with more, each may be smaller
constexpr int kFarthest = 4;   // microbatches between two that use the same frame consecutively

// Returns how long a buffer in the middle lives, in instants.
int length(const RingLives& ring) {
  const Life* life = ring.lives[ring.lives.size() / 2];
  return life == nullptr ? 0 : life->last - life->first;
}

class FramePacker {
 public:
  FramePacker(const BufferLives& lives, int slots) : lives_(lives) { frames_.slots = slots; }
  const Frames& frames() const { return frames_; }

  // Adds a ring at the lowest offset. Returns false if the ring cannot rotate through so many frames, or if frames of
  // `most` bytes have no free offset.
  bool add(const RingLives& ring, int64_t most) {
    // The listed microbatches must show every reuse of a frame at least twice.
    if (frames_.slots > std::max(ring.members - 2, 1) || !apart(ring, ring, 0)) return false;
    std::optional<Frames::Part> best;
    for (const int shift : shifts()) {
      const int64_t at = lowest(ring, shift);
      if (at + ring.bytes <= most && (!best || at < best->at)) best = {&ring, shift, at};
      if (best && best->at == 0) break;
    }
    if (!best) return false;
    frames_.bytes = std::max(frames_.bytes, best->at + ring.bytes);
    frames_.parts.push_back(*best);
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

  int64_t lowest(const RingLives& ring, int shift) const {
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (const Frames::Part& part : frames_.parts)
      if (!apart(ring, *part.ring, shift - part.shift)) taken.emplace_back(part.at, part.at + part.ring->bytes);
    std::sort(taken.begin(), taken.end());
    int64_t at = 0;
    for (const auto& [begin, end] : taken) {
      if (begin >= at + ring.bytes) break;
      at = std::max(at, end);
    }
    return at;
  }

  // Returns whether no two buffers of two rings in the same frame interfere. Starts in the middle, where most conflicts
  // are.
  bool apart(const RingLives& a, const RingLives& b, int shift) const {
    const int slots = frames_.slots, of_a = static_cast<int>(std::ssize(a.lives)),
              of_b = static_cast<int>(std::ssize(b.lives));
    for (int n = 0; n < of_a; ++n) {
      const int i = (n + of_a / 2) % of_a;
      if (a.lives[i] == nullptr) continue;
      const int same = (a.first + i + shift - b.first) % slots;
      for (int j = same < 0 ? same + slots : same; j < of_b; j += slots)
        if (b.lives[j] != nullptr && b.lives[j] != a.lives[i] && in_the_way(*a.lives[i], *b.lives[j])) return false;
    }
    return true;
  }

  bool in_the_way(const Life& a, const Life& b) const {
    if (a.last < b.first || b.last < a.first) return false;
    return a.computes_only() || b.computes_only() || !lives_.disjoint(a, b);
  }

  const BufferLives& lives_;
  Frames frames_;
};

// Packs each ring into the first frames that it can rotate through; nullopt = one fits none.
std::optional<std::vector<FramePacker>> packed(const BufferLives& lives, const std::vector<const RingLives*>& rings,
                                               const std::set<int>& slots) {
  std::vector<FramePacker> all;
  all.reserve(slots.size());
  for (const int of : slots) all.emplace_back(lives, of);
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
  auto each = packed(lives, wide, slots);
  if (!each) throw DoesNotRecur{"a ring whose places are not free in all their turns"};
  std::vector<FramePacker> best = std::move(*each);
  const int most = *slots.rbegin();
  for (int all_in = slots.size() > 1 ? most : most + 1; all_in <= most + kMoreTried; ++all_in)
    if (auto one = packed(lives, wide, {all_in}); one && bytes_of(*one) < bytes_of(best)) best = std::move(*one);
  for (const RingLives* ring : narrow)
    std::any_of(best.begin(), best.end(),
                [&](FramePacker& frames) { return frames.add(*ring, frames.frames().bytes); });
  std::vector<Frames> all;
  for (const FramePacker& one : best)
    if (!one.frames().parts.empty()) all.push_back(one.frames());
  return all;
}

}  // namespace prun
