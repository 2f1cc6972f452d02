#include <algorithm>

#include "draw/timeline.h"

namespace prun::draw {

std::vector<int> critical_path(const Timeline& timeline) {
  const std::vector<Box>& boxes = timeline.boxes;
  if (boxes.empty()) return {};
  std::vector<std::vector<int>> into(boxes.size());
  for (const Arrow& arrow : timeline.arrows) into[static_cast<size_t>(arrow.to)].push_back(arrow.from);
  int at = 0;
  for (int i = 0; i < static_cast<int>(boxes.size()); ++i)
    if (boxes[static_cast<size_t>(i)].end > boxes[static_cast<size_t>(at)].end) at = i;

  std::vector<int> path = {at};
  std::vector<bool> seen(boxes.size(), false);
  for (;;) {
    seen[static_cast<size_t>(at)] = true;
    const Box& box = boxes[static_cast<size_t>(at)];
    int before = -1;
    int64_t latest = -1;
    const auto consider = [&](int other, int64_t time) {
      if (seen[static_cast<size_t>(other)] || time <= latest) return;
      before = other;
      latest = time;
    };
    if (at > 0 && boxes[static_cast<size_t>(at) - 1].lane == box.lane)
      consider(at - 1, boxes[static_cast<size_t>(at) - 1].end);
    for (const int from : into[static_cast<size_t>(at)]) {
      // A collective's last arrival counts by its begin, an edge's producer by its end.
      const Box& source = boxes[static_cast<size_t>(from)];
      consider(from, source.end < box.end ? source.end : source.begin);
    }
    if (before < 0) break;
    path.push_back(at = before);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

std::vector<int64_t> critical_shares(const Timeline& timeline) {
  std::vector<int64_t> shares(kBoxKinds + 1, 0);
  int64_t until = timeline.whole_from;
  for (const int i : timeline.critical) {
    const Box& box = timeline.boxes[static_cast<size_t>(i)];
    const int64_t from = std::max(until, box.arrived);
    if (from > until) shares[kBoxKinds] += from - until;
    if (box.end > from) shares[static_cast<size_t>(box.kind)] += box.end - from;
    until = std::max(until, box.end);
  }
  return shares;
}

}  // namespace prun::draw
