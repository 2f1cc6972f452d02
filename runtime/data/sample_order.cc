#include "data/sample_order.h"

#include <bit>

#include "prun/philox.h"

namespace prun {
namespace {

// Keys of the random streams, distinct from those of parameters (0, 1, 2, ...). Each use has two keys for numbers, of
// inputs and of targets, and one for orders.
constexpr uint64_t kDataKey = 1ULL << 62, kOrderKey = kDataKey + 4;
constexpr int kRounds = 6;

}  // namespace

uint64_t sample_key(SampleUse use) { return kDataKey + (use == SampleUse::training ? 0 : 2); }

int64_t shuffled(int64_t index, int64_t count, uint64_t seed, uint64_t key, uint64_t round) {
  if (count <= 1) return 0;
  const int half = (std::bit_width(static_cast<uint64_t>(count - 1)) + 1) / 2;
  const uint64_t mask = (1ULL << half) - 1;
  uint64_t number = static_cast<uint64_t>(index);
  do {
    uint64_t left = number >> half, right = number & mask;
    for (uint64_t i = 0; i < kRounds; ++i) {
      const philox::Words words = philox::block(seed, key + i, round << 32 | right);
      const uint64_t mixed = left ^ (words[0] & mask);
      left = right, right = mixed;
    }
    number = left << half | right;
  } while (number >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(number);
}

int64_t random_place(int64_t sample, int64_t places, uint64_t seed, SampleUse use) {
  return philox::integer(seed, sample_key(use), static_cast<uint64_t>(sample), 0, places - 1);
}

int64_t epoch_place(int64_t sample, int64_t places, uint64_t seed, SampleUse use) {
  const uint64_t key = kOrderKey + (use == SampleUse::training ? 0 : kRounds);
  return shuffled(sample % places, places, seed, key, static_cast<uint64_t>(sample / places));
}

}  // namespace prun
