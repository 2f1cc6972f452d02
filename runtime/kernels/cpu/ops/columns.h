// A rank's columns of the logits: the whole vocabulary, or a run of one that is split over an axis, whose last columns
// may be padding.
#pragma once
#include "device/ids.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/simd.h"

namespace prun::cpu {

struct Columns {
  int64_t first, count, valid;  // in the rank's `count` columns from `first` on, only `valid` are in the vocabulary
  int64_t vocab;

  // The column of a target, or -1 when it is another rank's or ignored.
  PRUN_INLINE int64_t find(int32_t target) const {
    return target < first || target >= first + count ? -1 : target - first;
  }
  // A target outside the vocabulary ends the job, in the ops that make the loss: a gradient has seen it by then.
  void require(const int32_t* targets, int64_t rows) const { require_targets(targets, rows, vocab, kTargetOutside); }
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
