// Buffers that share bytes have disjoint lifetimes: every access to one precedes every access to the other.
//
// Surprising fact: no pairs are enumerated. "All of A before all of B" is transitive, so a sweep over the arena's
// offsets that keeps the live buffers sorted by first access compares neighbours only. A persistent buffer in a pool
// slot has two lifetimes: from the begin of the step to its last reader, and from its rewrite to the end.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "verify/byte_map.h"
#include "verify/view.h"

namespace prun::verify {
namespace {

// The first and last access to a buffer on each stream.
struct Life {
  BufferId buffer = -1;
  int64_t begin = 0, end = 0;  // in the arena
  int first_position = -1;     // in the sequence; -1 = live at the begin of the body
  bool stays = false;          // live until the end of the body and in the next one
  struct OnStream {
    OpRef first, last;
  };
  std::vector<OnStream> streams;
};

void add_accesses(Life& life, std::span<const Access> accesses) {
  for (const Access& access : accesses) {
    const auto same = [&](const Life::OnStream& on) { return on.first.stream == access.op.stream; };
    const auto known = std::find_if(life.streams.begin(), life.streams.end(), same);
    if (known == life.streams.end())
      life.streams.push_back({access.op, access.op});
    else
      known->last = access.op;
  }
}

// Returns the lifetime of a buffer that begins with a write in this body.
Life life_of(const BodyView& body, BufferId id) {
  const Buffer& buffer = body.program->buffers[id];
  Life life{id, buffer.offset, buffer.offset + buffer.bytes, body.position_of(body.accesses[id].front().op), false, {}};
  add_accesses(life, body.accesses[id]);
  return life;
}

// Returns the index of the access from which the body rewrites everything that init left in the buffer. Returns
// accesses.size() if the body does not rewrite all of it, or reads bytes before it has rewritten them.
size_t written_again(const BodyView& body, BufferId id, std::span<const Access> accesses) {
  const auto writes = [](const Access& access) { return access.write; };
  const size_t begin = std::find_if(accesses.begin(), accesses.end(), writes) - accesses.begin();
  ByteMap<bool> again;
  bool all = true;
  const auto need = [&](int64_t from, int64_t to) {
    again.over(from, to, [&](int64_t, int64_t, const bool& written) { all = all && written; });
  };
  for (const Access& access : accesses.subspan(begin))
    if (access.write)
      again.over(access.begin, access.end, [](int64_t, int64_t, bool& written) { written = true; });
    else
      need(access.begin, access.end);
  for (const Stream& stream : body.program->init().streams)
    for (const Op& op : stream.ops)
      for (const TensorId made : op.writes)
        if (const Tensor& tensor = body.program->tensors[made]; tensor.buffer == id)
          need(tensor.byte_offset, tensor.byte_offset + tensor.bytes());
  return all ? begin : accesses.size();
}

void add_lives(const BodyView& body, BufferId id, std::vector<Life>& lives) {
  const Buffer& buffer = body.program->buffers[id];
  const std::span<const Access> accesses = body.accesses[id];
  Life life{id, buffer.offset, buffer.offset + buffer.bytes, -1, buffer.persistent, {}};
  if (!buffer.persistent) life.first_position = body.position_of(accesses.front().op);
  const size_t again = buffer.persistent && buffer.pool >= 0 ? written_again(body, id, accesses) : accesses.size();
  if (again == accesses.size()) {
    add_accesses(life, accesses);
    lives.push_back(std::move(life));
    return;
  }
  Life before = life;
  before.stays = false;
  add_accesses(before, accesses.first(again));
  life.first_position = body.position_of(accesses[again].op);
  add_accesses(life, accesses.subspan(again));
  lives.push_back(std::move(before));
  lives.push_back(std::move(life));
}

struct Unordered {
  OpRef a, b;  // a of the earlier buffer, b of the later one; a is not before b
};

std::optional<Unordered> unordered_pair(const BodyView& body, const Life& earlier, const Life& later) {
  for (const Life::OnStream& a : earlier.streams)
    for (const Life::OnStream& b : later.streams)
      if (!body.order.before(a.last, b.first)) return Unordered{a.last, b.first};
  return std::nullopt;
}

// Returns whether `later` took over the bytes and `earlier` is used afterwards: b precedes a, but some access to
// `earlier` precedes b.
bool used_after(const BodyView& body, const Life& earlier, const Unordered& pair) {
  if (!body.order.before(pair.b, pair.a)) return false;
  return std::any_of(earlier.streams.begin(), earlier.streams.end(),
                     [&](const Life::OnStream& on) { return body.order.before(on.first, pair.b); });
}

void report(const BodyView& body, const Life& earlier, const Life& later, Findings& findings) {
  const std::string& a = body.buffer_name(earlier.buffer);
  const std::string& b = body.buffer_name(later.buffer);
  const int64_t begin = std::max(earlier.begin, later.begin), end = std::min(earlier.end, later.end);
  if (earlier.stays || later.first_position < 0) {
    const bool used = !later.streams.empty();
    const std::string who = used ? fmt::format(", used by {}", body.describe(later.streams.front().first)) : "";
    findings.add(
        "overlapping live buffers",
        fmt::format(
            "{}buffers '{}' and '{}'{} share bytes {}..{} of the arena, and '{}' keeps its contents from step to step",
            body.where(), a, b, who, begin, end, a),
        used ? body.op(later.streams.front().first).site : Site{});
    return;
  }
  const std::optional<Unordered> pair = unordered_pair(body, earlier, later);
  if (!pair) return;
  if (used_after(body, earlier, *pair)) {
    findings.add("use after free",
                 fmt::format("{}{} uses buffer '{}' after {} has taken its bytes ({}..{} of the arena) for buffer '{}'",
                             body.where(), body.describe(pair->a), a, body.describe(pair->b), begin, end, b),
                 body.op(pair->a).site);
    return;
  }
  const std::string together =
      pair->a == pair->b ? fmt::format("{} uses both", body.describe(pair->a))
                         : fmt::format("{} uses the first, {} the second, and the second does not wait for the first",
                                       body.describe(pair->a), body.describe(pair->b));
  findings.add("overlapping live buffers",
               fmt::format("{}buffers '{}' and '{}' share bytes {}..{} of the arena while both may be live: {}",
                           body.where(), a, b, begin, end, together),
               body.op(pair->a).site);
}

// The lifetimes of a ring's members and the end of the largest one in slot 0.
struct RingLives {
  const Repeat::Ring* ring = nullptr;
  int64_t end = 0;
  std::vector<Life> lives;
};

// Merges rings with equal slots, stride and step into one lifetime, because after a repeat a microbatch may occupy any
// slot.
//
//     slot 0: | ring A | ring B |   slot 1: | ring A | ring B |   ...
//
// They may share bytes slot by slot: each ring has the same byte range in every slot.
Life together(const std::vector<const RingLives*>& frames) {
  Life all = frames.front()->lives.front();
  const Repeat::Ring& first = *frames.front()->ring;
  all.begin = first.offset;
  all.end = 0;
  for (const RingLives* ring : frames) {
    all.end = std::max(all.end, ring->end + (first.slots - 1) * first.bytes);
    for (const Life& member : ring->lives) {
      all.first_position = std::min(all.first_position, member.first_position);
      for (const Life::OnStream& on : member.streams) {
        const auto same = [&](const Life::OnStream& other) { return other.first.stream == on.first.stream; };
        const auto known = std::find_if(all.streams.begin(), all.streams.end(), same);
        if (known == all.streams.end()) {
          all.streams.push_back(on);
          continue;
        }
        known->first.index = std::min(known->first.index, on.first.index);
        known->last.index = std::max(known->last.index, on.last.index);
      }
    }
  }
  return all;
}

bool in_turn(const BodyView& body, const Life& earlier, const Life& later) {
  return !earlier.stays && later.first_position >= 0 && !unordered_pair(body, earlier, later);
}

void sweep(const BodyView& body, const std::vector<Life>& lives, Findings& findings) {
  // (byte, i): life i begins; (byte, i - count): life i ends. Ends sort first because adjacent buffers do not overlap.
  const int count = lives.size();
  std::vector<std::pair<int64_t, int>> events;
  events.reserve(2 * lives.size());
  for (int i = 0; i < count; i++) {
    events.emplace_back(lives[i].begin, i);
    events.emplace_back(lives[i].end, i - count);
  }
  std::sort(events.begin(), events.end(),
            [](const auto& x, const auto& y) { return x.first != y.first ? x.first < y.first : x.second < y.second; });
  const auto earlier = [&](int x, int y) {
    const int px = lives[x].first_position, py = lives[y].first_position;
    return px != py ? px < py : x < y;
  };
  std::set<int, decltype(earlier)> here(earlier);
  const auto compare = [&](int x, int y) {
    const Life &first = lives[x], &second = lives[y];
    if (!in_turn(body, first, second)) report(body, first, second, findings);
  };
  for (const auto& [byte, life] : events) {
    if (life >= 0) {
      const auto at = here.insert(life).first;
      if (at != here.begin()) compare(*std::prev(at), *at);
      if (std::next(at) != here.end()) compare(*at, *std::next(at));
      continue;
    }
    here.erase(life + count);
  }
}

// Groups rings that interleave in the same slots; each must end within slot 0 of the group's first ring.
std::vector<std::vector<const RingLives*>> frames_of(std::vector<const RingLives*> rings) {
  const auto goes_round = [](const RingLives* one) {
    return std::tuple(one->ring->slots, one->ring->bytes, one->ring->step);
  };
  std::sort(rings.begin(), rings.end(), [&](const RingLives* a, const RingLives* b) {
    return std::tuple(goes_round(a), a->ring->offset) < std::tuple(goes_round(b), b->ring->offset);
  });
  std::vector<std::vector<const RingLives*>> all;
  for (const RingLives* one : rings) {
    const RingLives* first = all.empty() ? nullptr : all.back().front();
    if (first == nullptr || goes_round(first) != goes_round(one) || one->end > first->ring->offset + first->ring->bytes)
      all.emplace_back();
    all.back().push_back(one);
  }
  return all;
}

std::vector<Life> lives_of(const BodyView& body, Space space, Findings& findings) {
  const Repeat& repeat = body.body->repeat;
  Table<BufferId, int> ring_of(body.program->buffers.size(), -1);
  for (const Repeat::Member& each : repeat.members)
    if (const Repeat::Ring& ring = repeat.rings[static_cast<size_t>(each.ring)];
        ring.pool < 0 && ring.is_one_to_others(repeat.left_out()))
      ring_of[each.buffer] = each.ring;
  std::vector<Life> lives;
  lives.reserve(body.program->buffers.size());
  std::vector<RingLives> rings(repeat.rings.size());
  for (const BufferId id : body.program->buffers.ids()) {
    const Buffer& buffer = body.program->buffers[id];
    if (buffer.space != space || buffer.bytes == 0 || (!buffer.persistent && body.accesses[id].empty())) continue;
    if (ring_of[id] < 0) {
      add_lives(body, id, lives);
      continue;
    }
    RingLives& of_ring = rings[static_cast<size_t>(ring_of[id])];
    of_ring.ring = &repeat.rings[static_cast<size_t>(ring_of[id])];
    of_ring.end = std::max(of_ring.end, of_ring.ring->offset + buffer.bytes);
    of_ring.lives.push_back(life_of(body, id));
  }
  std::vector<const RingLives*> used;
  for (const RingLives& ring : rings)
    if (!ring.lives.empty()) used.push_back(&ring);
  for (const std::vector<const RingLives*>& frames : frames_of(std::move(used))) {
    lives.push_back(together(frames));
    std::vector<Life> within;
    for (const RingLives* ring : frames) within.insert(within.end(), ring->lives.begin(), ring->lives.end());
    sweep(body, within, findings);
  }
  return lives;
}

}  // namespace

void buffers_share_bytes_only_in_turn(const JobView& view, Findings& findings) {
  for (const BodyView& body : view.bodies)
    for (const Space space : {Space::device, Space::host}) sweep(body, lives_of(body, space, findings), findings);
}

}  // namespace prun::verify
