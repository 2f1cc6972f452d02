#include "draw/timeline.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

namespace prun::draw {

const std::array<KindText, kBoxKinds>& kind_texts() {
  static const std::array<KindText, kBoxKinds> texts = {{{"forward", "forward"},
                                                         {"backward", "backward"},
                                                         {"weight", "weight gradient"},
                                                         {"recompute", "recomputation"},
                                                         {"gather", "all-gather"},
                                                         {"gradient", "gradient reduction"},
                                                         {"activation", "activation collective"},
                                                         {"message", "send and receive"},
                                                         {"optimizer", "optimizer"},
                                                         {"other", "other"}}};
  return texts;
}

int Texts::add(const std::string& text) {
  const auto [at, added] = ids_.emplace(text, static_cast<int>(list_.size()));
  if (added) list_.push_back(text);
  return at->second;
}

int64_t Timeline::end() const {
  int64_t last = 0;
  for (const Box& box : boxes) last = std::max(last, box.end);
  return last;
}

int Timeline::ranks() const {
  std::set<int> seen;
  for (const Lane& lane : lanes) seen.insert(lane.rank);
  return static_cast<int>(seen.size());
}

namespace {

void order_boxes(Timeline& timeline) {
  std::vector<int> order(timeline.boxes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const Box& x = timeline.boxes[static_cast<size_t>(a)];
    const Box& y = timeline.boxes[static_cast<size_t>(b)];
    return std::tie(x.lane, x.begin, x.end) < std::tie(y.lane, y.begin, y.end);
  });
  std::vector<Box> boxes;
  std::vector<int> place(order.size());
  boxes.reserve(order.size());
  for (const int i : order) {
    place[static_cast<size_t>(i)] = static_cast<int>(boxes.size());
    boxes.push_back(timeline.boxes[static_cast<size_t>(i)]);
  }
  timeline.boxes = std::move(boxes);
  for (Arrow& arrow : timeline.arrows) {
    arrow.from = place[static_cast<size_t>(arrow.from)];
    arrow.to = place[static_cast<size_t>(arrow.to)];
  }
}

}  // namespace

void finish(Timeline& timeline) {
  order_boxes(timeline);
  tell_weight_gradients(timeline);
  timeline.groups = groups_of(timeline);
  timeline.critical = critical_path(timeline);
}

}  // namespace prun::draw
