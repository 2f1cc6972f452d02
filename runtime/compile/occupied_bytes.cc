// An interval of time is the union of O(log n) nodes. A live range in one of them covers an ancestor, or begins or ends
// in the node or below.
#include "compile/occupied_bytes.h"

#include <algorithm>

namespace prun {

namespace {

constexpr std::ptrdiff_t kFewRuns = 8;  // runs

// Inserts a run into sorted runs, merging runs at most `gap` bytes apart.
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

// Merges sorted runs that are at most `gap` bytes apart.
void merge_runs(ByteRuns::Runs& runs, int64_t gap) {
  size_t count = 0;
  for (const auto& [begin, end] : runs) {
    if (count == 0 || runs[count - 1].second + gap < begin)
      runs[count++] = {begin, end};
    else
      runs[count - 1].second = std::max(runs[count - 1].second, end);
  }
  runs.resize(count);
}

// Returns the first run that ends after `at`, by galloping search, because it is usually one of the next few.
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
  merge_runs(any_order, 0);
  many_ = std::make_unique<Many>(Many{std::move(any_order), {}, 0});
}

void ByteRuns::add(int64_t begin, int64_t end) {
  if (!many_) {
    const bool none = one_.first == one_.second;
    if (none || (begin <= one_.second && one_.first <= end)) {
      one_ = none ? Run{begin, end} : Run{std::min(begin, one_.first), std::max(end, one_.second)};
      return;
    }
    many_ = std::make_unique<Many>(Many{{one_}, {}, 0});
  }
  add_run(many_->runs, begin, end, 0);
  if (many_->wanted > 0) add_run(many_->wide, begin, end, many_->wanted - 1);
}

std::pair<const ByteRuns::Run*, const ByteRuns::Run*> ByteRuns::around(int64_t bytes) const {
  if (!many_) return {&one_, &one_ + (one_.first == one_.second ? 0 : 1)};
  if (std::ssize(many_->runs) > kFewRuns && bytes != many_->wanted) {
    many_->wide = many_->runs;
    merge_runs(many_->wide, bytes - 1);
    many_->wanted = bytes;
  }
  const Runs& runs = bytes == many_->wanted ? many_->wide : many_->runs;
  return {runs.data(), runs.data() + runs.size()};
}

OccupiedBytes::OccupiedBytes(int instants) {
  while (span_ <= static_cast<size_t>(instants)) span_ *= 2;
  nodes_.resize(2 * span_);
}

void OccupiedBytes::add(int& runs, int64_t begin, int64_t end) {
  if (runs < 0) {
    runs = runs_.size();
    runs_.emplace_back();
  }
  runs_[runs].add(begin, end);
}

// Calls `inside` for the nodes that make up the interval, and `across` for the ancestors that it covers in part.
template <class Inside, class Across>
void OccupiedBytes::each_node(int first, int last, const Inside& inside, const Across& across) const {
  const size_t low = first + span_, high = last + span_;
  for (size_t from = low, to = high + 1; from < to; from /= 2, to /= 2) {
    if (from % 2 != 0) inside(from++);
    if (to % 2 != 0) inside(--to);
  }
  for (int up = 1; low >> up > 0; up++) {
    const size_t a = low >> up, b = high >> up;
    if (a << up != low || ((a + 1) << up) - 1 > high) across(a);
    if (b != a && ((b + 1) << up) - 1 != high) across(b);
  }
}

void OccupiedBytes::take(int first, int last, int64_t begin, int64_t end) {
  each_node(
      first, last, [&](size_t node) { add(nodes_[node].always, begin, end); },
      [&](size_t node) { add(nodes_[node].sometimes, begin, end); });
}

void OccupiedBytes::collect(int first, int last, std::vector<const ByteRuns*>& taken) const {
  const auto found = [&](int runs) {
    if (runs >= 0) taken.push_back(&runs_[runs]);
  };
  each_node(
      first, last, [&](size_t node) { found(nodes_[node].always), found(nodes_[node].sometimes); },
      [&](size_t node) { found(nodes_[node].always); });
}

// Each set of runs raises the offset past its conflicts, until a whole round raises nothing. Most sets are short, and
// count as one.
int64_t LowestPlace::find(const std::vector<const ByteRuns*>& taken, int64_t bytes) {
  rests_.clear();
  short_.clear();
  for (const ByteRuns* one : taken) {
    const auto [begin, end] = one->around(bytes);
    if (end - begin > kFewRuns)
      rests_.push_back({begin, end});
    else
      short_.insert(short_.end(), begin, end);
  }
  std::sort(short_.begin(), short_.end());
  merge_runs(short_, bytes - 1);
  if (!short_.empty()) rests_.push_back({short_.data(), short_.data() + short_.size()});
  int64_t at = 0;
  const size_t count = rests_.size();
  for (size_t i = 0, agreed = 0; agreed < count; i = i + 1 == count ? 0 : i + 1) {
    auto& [next, end] = rests_[i];
    if (next != end && next->second <= at) next = first_beyond(next, end, at);
    ++agreed;
    for (; next != end && next->first < at + bytes; ++next) at = next->second, agreed = 1;
  }
  return at;
}

}  // namespace prun
