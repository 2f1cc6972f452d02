// The state of each byte of a buffer, as disjoint segments. Most buffers are accessed as a whole, and their single
// segment is stored without a tree.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace prun::verify {

// Disjoint segments of one buffer, each with a T. `over` splits segments at the bounds of its range.
template <class T>
class ByteMap {
 public:
  // Calls visit(begin, end, T&) for each segment of [begin, end); creates missing segments with T().
  template <class Visit>
  void over(int64_t begin, int64_t end, Visit visit) {
    if (segments_.empty()) {
      if (only_.end == first_) first_ = begin, only_.end = end;
      if (first_ == begin && only_.end == end) return visit(begin, end, only_.value);
      segments_.emplace(first_, std::move(only_));
    }
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

  // Calls visit for all segments that exist.
  template <class Visit>
  void each(Visit visit) {
    if (segments_.empty() && only_.end != first_) visit(first_, only_.end, only_.value);
    for (auto& [begin, segment] : segments_) visit(begin, segment.end, segment.value);
  }

 private:
  struct Segment {
    int64_t end = 0;
    T value = {};
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
  int64_t first_ = 0;  // begin of `only_`
  Segment only_;       // the only segment; empty = there is none
  std::map<int64_t, Segment> segments_;
};

}  // namespace prun::verify
