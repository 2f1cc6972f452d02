// An item is in each bucket that its interval covers, and a query takes it from the first bucket that both cover.
#include "compile/other_lives.h"

#include <algorithm>
#include <utility>

namespace prun {
namespace {

constexpr int kPositionsABucket = 512, kInstantsABucket = 32;

}  // namespace

void OtherLives::Buckets::add(Interval interval, const Taken& taken) {
  const int first = interval.first / width_;
  for (int bucket = first; bucket <= interval.last / width_; ++bucket) items_[bucket].push_back({first, taken});
}

template <class Use>
void OtherLives::Buckets::each(Interval interval, const Use& use) const {
  const int first = interval.first / width_;
  for (int bucket = first; bucket <= interval.last / width_; ++bucket)
    for (const Item& item : items_[bucket])
      if (bucket == std::max(first, item.first_bucket)) use(item.taken);
}

OtherLives::OtherLives(const BufferLives& lives)
    : lives_(lives),
      whole_(lives.instants()),
      cores_(lives.instants()),
      begins_(lives.instants(), kInstantsABucket),
      ends_(lives.instants(), kInstantsABucket),
      all_(lives.positions(), kPositionsABucket),
      without_cores_(lives.positions(), kPositionsABucket) {}

void OtherLives::take(const Life& life, int64_t begin, int64_t end) {
  const Taken taken{&life, begin, end};
  whole_.take(life.first, life.last, begin, end);
  all_.add(positions_of(life), taken);
  if (!life.has_core()) return without_cores_.add(positions_of(life), taken);
  cores_.take(life.core_first, life.core_last, begin, end);
  begins_.add(begin_of(life), taken);
  ends_.add(end_of(life), taken);
}

void OtherLives::collect(const Life& life, std::vector<const ByteRuns*>& taken, std::deque<ByteRuns>& compared) const {
  if (life.computes_only()) return whole_.collect(life.first, life.last, taken);
  ByteRuns::Runs runs;
  const auto compare = [&](const Taken& other) {
    if (!lives_.disjoint(life, *other.life)) runs.emplace_back(other.begin, other.end);
  };
  if (life.has_core()) {
    cores_.collect(life.core_first, life.core_last, taken);
    ends_.each(begin_of(life), compare);
    begins_.each(end_of(life), compare);
    without_cores_.each(positions_of(life), compare);
  } else {
    all_.each(positions_of(life), compare);
  }
  if (!runs.empty()) taken.push_back(&compared.emplace_back(std::move(runs)));
}

}  // namespace prun
