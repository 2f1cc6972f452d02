// Reads see what was written, and two accesses of the same bytes of which one writes are ordered.
//
// Surprising fact: walking one legal sequence is enough to find every race. A segment of bytes remembers its last
// write and the last read since then on each stream; whatever is older is ordered before those, or was reported
// (the argument of FastTrack, Flanagan and Freund 2009).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "verify/view.h"

namespace prun::verify {
namespace {

// Bytes of one buffer as disjoint segments, each with a T; segments are split where a range asked for begins or ends.
template <class T>
class ByteMap {
 public:
  // Calls visit(begin, end, T&) for each segment of [begin, end), making absent ones with T().
  template <class Visit>
  void over(int64_t begin, int64_t end, Visit visit) {
    split(begin);
    split(end);
    int64_t at = begin;
    auto it = segments_.lower_bound(begin);
    while (at < end) {
      if (it == segments_.end() || it->first > at) {
        const int64_t stop = it == segments_.end() ? end : std::min(end, it->first);
        it = segments_.emplace_hint(it, at, Segment{stop, T()});
      }
      visit(it->first, it->second.end, it->second.value);
      at = it->second.end;
      ++it;
    }
  }

 private:
  struct Segment {
    int64_t end;
    T value;
  };
  void split(int64_t at) {
    auto it = segments_.upper_bound(at);
    if (it == segments_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    const Segment right{it->second.end, it->second.value};
    it->second.end = at;
    segments_.emplace(at, right);
  }
  std::map<int64_t, Segment> segments_;
};

struct History {
  OpRef write{-1, 0};
  std::vector<OpRef> reads;  // since that write, the last of each stream
};

void report_conflict(const BodyView& body, int buffer, const Access& now, OpRef before, bool before_writes,
                     int64_t begin, int64_t end, Findings& findings) {
  findings.add("unordered conflicting accesses",
               fmt::format("{}{} {} and {} {} bytes {}..{} of buffer '{}', and neither waits for the other",
                           body.where(), body.describe(before), before_writes ? "writes" : "reads",
                           body.describe(now.op), now.write ? "writes" : "reads", begin, end, body.buffer_name(buffer)),
               body.op(now.op).site);
}

void check_buffer_order(const BodyView& body, int buffer, Findings& findings) {
  const std::vector<Access>& accesses = body.accesses[static_cast<size_t>(buffer)];
  const bool one_stream = std::all_of(accesses.begin(), accesses.end(), [&](const Access& access) {
    return access.op.stream == accesses.front().op.stream;
  });
  if (one_stream) return;
  ByteMap<History> bytes;
  std::set<std::pair<int, int>> reported;  // positions of the two ops: a pair is reported once
  for (const Access& now : accesses) {
    const auto follows = [&](OpRef before, bool writes, int64_t begin, int64_t end) {
      if (before == now.op || body.order.before(before, now.op)) return;
      if (!reported.insert({body.position_of(before), body.position_of(now.op)}).second) return;
      report_conflict(body, buffer, now, before, writes, begin, end, findings);
    };
    bytes.over(now.begin, now.end, [&](int64_t begin, int64_t end, History& history) {
      if (history.write.stream >= 0) follows(history.write, true, begin, end);
      if (now.write) {
        for (const OpRef read : history.reads) follows(read, false, begin, end);
        history.write = now.op;
        history.reads.clear();
        return;
      }
      for (OpRef& read : history.reads) {
        if (read.stream != now.op.stream) continue;
        read = now.op;
        return;
      }
      history.reads.push_back(now.op);
    });
  }
}

using Coverage = std::vector<ByteMap<bool>>;  // by buffer: has been written

void report_unwritten(const BodyView& body, int buffer, const Access& read, int64_t begin, int64_t end,
                      Findings& findings) {
  std::string later = "; nothing writes them";
  for (const Access& other : body.accesses[static_cast<size_t>(buffer)]) {
    if (!other.write || other.begin >= end || other.end <= begin) continue;
    later = fmt::format("; the first write is by {}", body.describe(other.op));
    break;
  }
  const bool persistent = body.program->buffers[static_cast<size_t>(buffer)].persistent;
  findings.add("read before any write",
               fmt::format("{}{} reads bytes {}..{} of buffer '{}' before anything {}writes them{}", body.where(),
                           body.describe(read.op), begin, end, body.buffer_name(buffer),
                           persistent && !body.is_init ? "in init or before it in the step " : "", later),
               body.op(read.op).site);
}

void check_coverage(const BodyView& body, Coverage& written, Findings& findings) {
  for (size_t buffer = 0; buffer < body.accesses.size(); buffer++) {
    for (const Access& access : body.accesses[buffer]) {
      bool reported = false;
      written[buffer].over(access.begin, access.end, [&](int64_t begin, int64_t end, bool& covered) {
        if (!access.write && !covered && !reported) {
          report_unwritten(body, static_cast<int>(buffer), access, begin, end, findings);
          reported = true;
        }
        covered = covered || access.write;
      });
    }
  }
}

}  // namespace

void conflicting_accesses_are_ordered(const JobView& view, Findings& findings) {
  for (const BodyView& body : view.bodies) {
    for (size_t buffer = 0; buffer < body.accesses.size(); buffer++) {
      if (body.accesses[buffer].size() > 1) check_buffer_order(body, static_cast<int>(buffer), findings);
    }
  }
}

void reads_follow_writes(const JobView& view, Findings& findings) {
  for (size_t i = 0; i < view.bodies.size(); i += 2) {
    const Program& program = *view.bodies[i].program;
    Coverage written(program.buffers.size());
    check_coverage(view.bodies[i], written, findings);
    // What init left in a buffer that does not persist is gone when the step begins.
    for (size_t buffer = 0; buffer < written.size(); buffer++) {
      if (!program.buffers[buffer].persistent) written[buffer] = {};
    }
    check_coverage(view.bodies[i + 1], written, findings);
  }
}

}  // namespace prun::verify
