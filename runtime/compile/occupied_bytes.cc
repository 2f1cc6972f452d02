// An interval of time is the union of O(log n) nodes. What lives in one of them either covers a node above it, or
// begins or ends in it or below.
#include "compile/occupied_bytes.h"

#include <algorithm>

namespace prun {

namespace {

// Adds a run to others in order, which are one where less than `gap` bytes, or nothing, lie between them.
void add_run(ByteRuns::Runs& runs, int64_t begin, int64_t end, int64_t gap) {
  auto first =
      std::partition_point(runs.begin(), runs.end(), [&](const auto& run) { return run.second + gap < begin; });
  auto last = first;
  for (; last != runs.end() && last->first <= end + gap; ++last) {
    begin = std::min(begin, last->first);
    end = std::max(end, last->second);
  }
  if (first == last) {
    runs.insert(first, {begin, end});
    return;
  }
  *first = {begin, end};
  runs.erase(first + 1, last);
}

ByteRuns::Runs joined(const ByteRuns::Runs& in_order, int64_t gap) {
  ByteRuns::Runs runs;
  for (const auto& [begin, end] : in_order) {
    if (runs.empty() || runs.back().second + gap < begin)
      runs.emplace_back(begin, end);
    else
      runs.back().second = std::max(runs.back().second, end);
  }
  return runs;
}

// The first run that ends after `at`: mostly one of the next few, so it is looked for in doubling steps.
const std::pair<int64_t, int64_t>* first_beyond(const std::pair<int64_t, int64_t>* next,
                                                const std::pair<int64_t, int64_t>* end, int64_t at) {
  std::ptrdiff_t step = 1;
  while (step <= end - next && next[step - 1].second <= at) next += step, step *= 2;
  return std::partition_point(next, next + std::min(step, end - next),
                              [at](const auto& run) { return run.second <= at; });
}

}  // namespace

ByteRuns::ByteRuns(Runs any_order) {
  std::sort(any_order.begin(), any_order.end());
  runs_ = joined(any_order, 0);
}

void ByteRuns::add(int64_t begin, int64_t end) {
  add_run(runs_, begin, end, 0);
  if (wanted_ > 0) add_run(wide_, begin, end, wanted_ - 1);
}

const ByteRuns::Runs& ByteRuns::around(int64_t bytes) const {
  if (bytes != wanted_) wide_ = joined(runs_, bytes - 1), wanted_ = bytes;
  return wide_;
}

OccupiedBytes::OccupiedBytes(int instants) {
  while (span_ <= instants) span_ *= 2;
  nodes_.resize(2 * static_cast<size_t>(span_));
}

void OccupiedBytes::add(int& runs, int64_t begin, int64_t end) {
  if (runs < 0) {
    runs = static_cast<int>(runs_.size());
    runs_.emplace_back();
  }
  runs_[static_cast<size_t>(runs)].add(begin, end);
}

void OccupiedBytes::take(int first, int last, int64_t begin, int64_t end) {
  take(1, 0, span_ - 1, first, last, begin, end);
}

void OccupiedBytes::take(size_t node, int low, int high, int first, int last, int64_t begin, int64_t end) {
  if (last < low || high < first) return;
  if (first <= low && high <= last) return add(nodes_[node].always, begin, end);
  add(nodes_[node].sometimes, begin, end);
  const int middle = (low + high) / 2;
  take(2 * node, low, middle, first, last, begin, end);
  take(2 * node + 1, middle + 1, high, first, last, begin, end);
}

void OccupiedBytes::collect(int first, int last, std::vector<const ByteRuns*>& taken) const {
  collect(1, 0, span_ - 1, first, last, taken);
}

void OccupiedBytes::collect(size_t node, int low, int high, int first, int last,
                            std::vector<const ByteRuns*>& taken) const {
  if (last < low || high < first) return;
  const auto [always, sometimes] = nodes_[node];
  if (always >= 0) taken.push_back(&runs_[static_cast<size_t>(always)]);
  if (sometimes < 0) return;
  if (first <= low && high <= last) {
    taken.push_back(&runs_[static_cast<size_t>(sometimes)]);
    return;
  }
  const int middle = (low + high) / 2;
  collect(2 * node, low, middle, first, last, taken);
  collect(2 * node + 1, middle + 1, high, first, last, taken);
}

// Each in turn lifts the place over its runs that are in the way, until none has done so in a whole round.
int64_t lowest_place(const std::vector<const ByteRuns*>& taken, int64_t bytes) {
  struct Rest {
    const std::pair<int64_t, int64_t>*next, *end;
  };
  std::vector<Rest> rests;
  rests.reserve(taken.size());
  for (const ByteRuns* one : taken) {
    const ByteRuns::Runs& runs = one->around(bytes);
    if (!runs.empty()) rests.push_back({runs.data(), runs.data() + runs.size()});
  }
  int64_t at = 0;
  const size_t count = rests.size();
  for (size_t i = 0, agreed = 0; agreed < count; i = i + 1 == count ? 0 : i + 1) {
    auto& [next, end] = rests[i];
    next = first_beyond(next, end, at);
    ++agreed;
    for (; next != end && next->first < at + bytes; ++next) at = next->second, agreed = 1;
  }
  return at;
}

}  // namespace prun
