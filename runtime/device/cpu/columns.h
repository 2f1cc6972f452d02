// A rank's columns of the logits: the whole vocabulary, or a run of one that is split over an axis, whose last columns
// may be padding.
#pragma once
#include "device/cpu/kernel.h"
#include "device/cpu/simd.h"

namespace prun::cpu {

struct Columns {
  int64_t first, count, valid;  // in the rank's `count` columns from `first` on, only `valid` are in the vocabulary
  int64_t vocab;

  // The column of a target, or -1 when it is another rank's. Targets outside the vocabulary are clamped, as tokens are
  // in embedding.cc.
  PRUN_INLINE int64_t find(int32_t target) const {
    const int64_t clamped = target < 0 ? 0 : (target >= vocab ? vocab - 1 : target);
    return clamped < first || clamped >= first + count ? -1 : clamped - first;
  }
};

inline Columns columns_of(const OpView& view, const Tensor& logits) {
  const Share share = view.share("axis");
  Columns c;
  c.count = last_dim(logits.shape);
  c.first = share.index * c.count;
  c.vocab = view.attrs().integer("vocab", share.of * c.count);
  c.valid = std::clamp<int64_t>(c.vocab - c.first, 0, c.count);
  return c;
}

}  // namespace prun::cpu
