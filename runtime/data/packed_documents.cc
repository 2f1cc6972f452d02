#include "data/packed_documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <queue>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "data/sample_order.h"

namespace prun {
namespace {

constexpr int64_t kChunkTokens = 1 << 19;
constexpr uint64_t kPackingKey = (1ULL << 62) + 32;  // apart from the keys of sample_order.cc

// Returns the stream of each document. Documents of equal length are taken in a random order, so that a stream mixes
// documents of distant places.
std::vector<int64_t> best_fit(const std::vector<DocumentRun>& documents, int64_t capacity, uint64_t seed) {
  const int64_t count = std::ssize(documents);
  std::vector<int64_t> order(count);
  for (int64_t i = 0; i < count; ++i) order[i] = shuffled(i, count, seed, kPackingKey, 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return documents[a].length > documents[b].length; });
  std::vector<int64_t> stream_of(count);
  std::set<std::pair<int64_t, int64_t>> open;  // (free tokens, stream)
  int64_t streams = 0;
  for (const int64_t document : order) {
    const int64_t length = documents[document].length;
    const auto fits = open.lower_bound({length, 0});
    auto [space, stream] = fits == open.end() ? std::pair(capacity, streams++) : *fits;
    if (fits != open.end()) open.erase(fits);
    stream_of[document] = stream;
    if (space > length) open.insert({space - length, stream});
  }
  return stream_of;
}

}  // namespace

DocumentScan::DocumentScan(const DataFiles& files, const DataSource& source)
    : files_(files), document_end_(source.document_end), at_(source.first), buffered_(at_) {
  end_ = source.count > 0 ? std::min(files.count(), source.first + source.count) : files.count();
}

std::optional<DocumentRun> DocumentScan::next() {
  if (at_ >= end_) return std::nullopt;
  const int64_t first = at_, width = element_width(files_.element());
  for (;;) {
    if (at_ == buffered_ + count_) {
      buffered_ = at_, count_ = std::min(kChunkTokens, end_ - at_);
      if (count_ == 0) return DocumentRun{first, at_ - first};
      buffer_.resize(count_ * width);
      files_.read(buffered_, count_, buffer_.data());
    }
    const int64_t ended = with_elements(files_.element(), buffer_.data(), [&](const auto* ids) {
      const auto* const from = ids + (at_ - buffered_);
      return std::find_if(from, ids + count_, [&](auto id) { return static_cast<int64_t>(id) == document_end_; }) - ids;
    });
    found_end_ = found_end_ || ended < count_;
    at_ = buffered_ + std::min(ended + 1, count_);
    if (ended < count_) return DocumentRun{first, at_ - first};
  }
}

void require_short(const DocumentRun& document, int64_t number, const DataFiles& files, const DataSource& source) {
  if (document.length <= source.capacity || source.long_documents != "error") return;
  const DataFiles::Place place = files.place(document.first);
  throw usage_error(
      fmt::format("{}: document {}, which begins at position {} (byte {}), has {}, and a stream has a capacity of {}: "
                  "make capacity larger, or write long = \"split\" or long = \"truncate\"",
                  place.path, number, place.element, place.byte, counted(document.length, "token"), source.capacity));
}

PackedDocuments::PackedDocuments(const DataFiles& files, const DataSource& source, uint64_t seed)
    : capacity_(source.capacity) {
  std::vector<DocumentRun> documents;
  DocumentScan scan(files, source);
  int64_t number = 0;
  while (std::optional<DocumentRun> document = scan.next()) {
    require_short(*document, number++, files, source);
    if (source.long_documents == "truncate") document->length = std::min(document->length, capacity_);
    for (; document->length > capacity_; document->first += capacity_, document->length -= capacity_)
      documents.push_back({document->first, capacity_});
    documents.push_back(*document);
  }
  const std::vector<int64_t> stream_of = best_fit(documents, capacity_, seed);
  const int64_t streams = stream_of.empty() ? 0 : *std::max_element(stream_of.begin(), stream_of.end()) + 1;
  begin_.assign(streams + 1, 0);
  for (const int64_t stream : stream_of) ++begin_[stream + 1];
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  std::vector<int64_t> next(begin_.begin(), begin_.end() - 1);
  documents_.resize(documents.size());
  for (size_t i = 0; i < documents.size(); ++i) {
    documents_[next[stream_of[i]]++] = documents[i];
    longest_ = std::max(longest_, documents[i].length);
    tokens_ += documents[i].length;
  }
}

std::span<const DocumentRun> PackedDocuments::stream(int64_t index) const {
  PRUN_CHECK(index >= 0 && index < streams(), fmt::format("stream {} of {}", index, streams()));
  return {documents_.data() + begin_[index], static_cast<size_t>(begin_[index + 1] - begin_[index])};
}

double PackedDocuments::padding() const {
  return streams() == 0 ? 0 : 1 - static_cast<double>(tokens_) / static_cast<double>(streams() * capacity_);
}

namespace {

std::vector<int64_t> by_cost(const std::vector<double>& costs) {
  std::vector<int64_t> order(costs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return costs[a] > costs[b]; });
  return order;
}

// Deals `items`, which are sorted by decreasing cost, into `factors.front()` groups of equal size, each item to the
// group with the least cost that has space left; then deals each group by the other factors.
void deal(std::span<int64_t> items, std::span<const int64_t> factors, const std::vector<double>& costs) {
  if (factors.empty()) return;
  const int64_t groups = factors.front(), size = std::ssize(items) / groups;
  using Group = std::pair<double, int64_t>;  // cost, group
  std::priority_queue<Group, std::vector<Group>, std::greater<>> open;
  for (int64_t g = 0; g < groups; ++g) open.push({0, g});
  std::vector<int64_t> dealt(items.size()), filled(groups, 0);
  for (const int64_t item : items) {
    const auto [cost, group] = open.top();
    open.pop();
    dealt[group * size + filled[group]++] = item;
    if (filled[group] < size) open.push({cost + costs[item], group});
  }
  std::copy(dealt.begin(), dealt.end(), items.begin());
  for (int64_t g = 0; g < groups; ++g) deal(items.subspan(g * size, size), factors.subspan(1), costs);
}

}  // namespace

std::vector<int64_t> equal_groups(const std::vector<double>& costs, int64_t groups) {
  std::vector<int64_t> items = by_cost(costs);
  deal(items, std::array{groups}, costs);
  const int64_t size = std::ssize(items) / groups;
  for (auto first = items.begin(); first != items.end(); first += size) std::sort(first, first + size);
  return items;
}

// Large primes come first, because a division into 2, 4, .. parts then cuts a group between its balanced halves.
std::vector<int64_t> balanced_order(const std::vector<double>& costs) {
  std::vector<int64_t> order = by_cost(costs), factors;
  int64_t rest = std::ssize(costs);
  for (int64_t prime = 2; prime * prime <= rest; ++prime)
    for (; rest % prime == 0; rest /= prime) factors.push_back(prime);
  if (rest > 1) factors.push_back(rest);
  std::reverse(factors.begin(), factors.end());
  deal(order, factors, costs);
  return order;
}

}  // namespace prun
