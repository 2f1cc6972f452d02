#include "checkpoint/data_identity.h"

#include <algorithm>

namespace prun::checkpoint {
namespace {

constexpr int64_t kSampledBytes = 256 << 10, kMostSampled = 64;

}  // namespace

std::vector<DataBlock> blocks_of(int64_t elements, int64_t width) {
  const int64_t one = kSampledBytes / width;
  std::vector<DataBlock> blocks;
  if (elements <= one * kMostSampled) {
    for (int64_t at = 0; at < elements; at += one) blocks.push_back({at, std::min(at + one, elements)});
    return blocks;
  }
  const int64_t last = elements - one, gap = last / (kMostSampled - 1), rest = last % (kMostSampled - 1);
  for (int64_t k = 0; k < kMostSampled; ++k) {
    const int64_t at = gap * k + rest * k / (kMostSampled - 1);
    blocks.push_back({at, at + one});
  }
  return blocks;
}

}  // namespace prun::checkpoint
