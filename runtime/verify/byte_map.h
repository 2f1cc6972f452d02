// What is known of each byte of a buffer, as disjoint segments. Most buffers are read and written as a whole, so one
// segment needs no tree.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace prun::verify {

// Bytes of one buffer as disjoint segments, each with a T; segments are split where a range asked for begins or ends.
template <class T>
class ByteMap {
 public:
  // Calls visit(begin, end, T&) for each segment of [begin, end), making absent ones with T().
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

  // All segments that have been made.
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
  int64_t first_ = 0;  // where `only_` begins
  Segment only_;       // while there is no other; empty: there is none
  std::map<int64_t, Segment> segments_;
};

}  // namespace prun::verify
