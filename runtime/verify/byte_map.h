// What is known of each byte of a buffer, as disjoint segments.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>

namespace prun::verify {

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

  // All segments that have been made.
  template <class Visit>
  void each(Visit visit) {
    for (auto& [begin, segment] : segments_) visit(begin, segment.end, segment.value);
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

}  // namespace prun::verify
