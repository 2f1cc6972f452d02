// Two buffers lie on the same bytes only one after the other: every access of one before every access of the other.
//
// Surprising fact: no pairs are enumerated. "All of A before all of B" is transitive, so a sweep over the arena's
// offsets that keeps the buffers under it sorted by first access need only compare neighbours.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "verify/view.h"

namespace prun::verify {
namespace {

// A buffer's first and last access on each stream that touches it.
struct Life {
  BufferId buffer = -1;
  int64_t begin = 0, end = 0;  // in the arena
  int first_position = -1;     // in the sequence; -1: persistent
  std::vector<OpRef> first, last;
};

Life life_of(const BodyView& body, int id) {
  const Buffer& buffer = body.program->buffers[id];
  Life life{id, buffer.offset, buffer.offset + buffer.bytes, -1, {}, {}};
  const std::vector<Access>& accesses = body.accesses[id];
  if (!buffer.persistent && !accesses.empty()) life.first_position = body.position_of(accesses.front().op);
  for (const Access& access : accesses) {
    const auto same = [&](OpRef ref) { return ref.stream == access.op.stream; };
    const auto known = std::find_if(life.first.begin(), life.first.end(), same);
    if (known == life.first.end()) {
      life.first.push_back(access.op);
      life.last.push_back(access.op);
    } else {
      life.last[known - life.first.begin()] = access.op;
    }
  }
  return life;
}

struct Unordered {
  OpRef a, b;  // a of the earlier buffer, b of the later one: a is not before b
};

std::optional<Unordered> unordered_pair(const BodyView& body, const Life& earlier, const Life& later) {
  for (const OpRef a : earlier.last)
    for (const OpRef b : later.first)
      if (!body.order.before(a, b)) return Unordered{a, b};
  return std::nullopt;
}

// True when `later` took over from `earlier` and was then disturbed: b before a, though some access of earlier's is
// before b.
bool used_after(const BodyView& body, const Life& earlier, const Unordered& pair) {
  if (!body.order.before(pair.b, pair.a)) return false;
  return std::any_of(earlier.first.begin(), earlier.first.end(),
                     [&](OpRef first) { return body.order.before(first, pair.b); });
}

void report(const BodyView& body, const Life& earlier, const Life& later, Findings& findings) {
  const std::string& a = body.buffer_name(earlier.buffer);
  const std::string& b = body.buffer_name(later.buffer);
  const int64_t begin = std::max(earlier.begin, later.begin), end = std::min(earlier.end, later.end);
  if (earlier.first_position < 0) {
    std::string who = later.first.empty() ? "" : fmt::format(", used by {}", body.describe(later.first.front()));
    findings.add(
        "overlapping live buffers",
        fmt::format(
            "{}buffers '{}' and '{}'{} share bytes {}..{} of the arena, and '{}' keeps its contents from step to step",
            body.where(), a, b, who, begin, end, a),
        later.first.empty() ? Site{} : body.op(later.first.front()).site);
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

bool in_turn(const BodyView& body, const Life& earlier, const Life& later) {
  return earlier.first_position >= 0 && !unordered_pair(body, earlier, later);
}

void sweep(const BodyView& body, Space space, Findings& findings) {
  std::vector<Life> lives;
  for (size_t id = 0; id < body.program->buffers.size(); id++) {
    const Buffer& buffer = body.program->buffers[id];
    if (buffer.space == space && buffer.bytes > 0 && (buffer.persistent || !body.accesses[id].empty()))
      lives.push_back(life_of(body, static_cast<int>(id)));
  }
  struct Event {
    int64_t at;
    bool begins;  // ends come first: buffers that touch do not overlap
    int life;
  };
  std::vector<Event> events;
  for (size_t i = 0; i < lives.size(); i++) {
    events.push_back({lives[i].begin, true, static_cast<int>(i)});
    events.push_back({lives[i].end, false, static_cast<int>(i)});
  }
  std::sort(events.begin(), events.end(), [](const Event& x, const Event& y) {
    return x.at != y.at ? x.at < y.at : x.begins != y.begins ? y.begins : x.life < y.life;
  });
  const auto earlier = [&](int x, int y) {
    const int px = lives[x].first_position, py = lives[y].first_position;
    return px != py ? px < py : x < y;
  };
  std::set<int, decltype(earlier)> here(earlier);
  const auto compare = [&](int x, int y) {
    const Life &first = lives[x], &second = lives[y];
    if (!in_turn(body, first, second)) report(body, first, second, findings);
  };
  for (const Event& event : events) {
    if (event.begins) {
      const auto at = here.insert(event.life).first;
      if (at != here.begin()) compare(*std::prev(at), *at);
      if (std::next(at) != here.end()) compare(*at, *std::next(at));
      continue;
    }
    here.erase(event.life);
  }
}

}  // namespace

void buffers_share_bytes_only_in_turn(const JobView& view, Findings& findings) {
  for (const BodyView& body : view.bodies)
    for (const Space space : {Space::device, Space::host}) sweep(body, space, findings);
}

}  // namespace prun::verify
