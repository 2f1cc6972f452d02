// Ids of tokens, targets and counts that tensors hold: a model whose table or logits are smaller than its data would
// read what is not there. The device ends the job, as no loss after that is of this model.
#pragma once
#include <fmt/format.h>

#include <cstdint>

#include "base/error.h"

namespace prun {

inline constexpr int32_t kIgnoredTarget = -1;  // adds nothing to the loss, as nanoGPT's ignore_index
inline constexpr const char* kTokenOutside = "token {} is none of the table's {} rows";
inline constexpr const char* kTargetOutside = "target {} is none of the {} logits of a row";

// Throws plan_error with `text`, which has places for both, unless 0 <= id < size.
inline void require_id(int64_t id, int64_t size, const char* text) {
  if (id < 0 || id >= size) throw plan_error(fmt::format(fmt::runtime(text), id, size));
}

// The same of all: one pass of min and max.
inline void require_ids(const int32_t* ids, int64_t count, int64_t size, const char* text) {
  int32_t least = 0, most = 0;
  for (int64_t i = 0; i < count; ++i) {
    least = ids[i] < least ? ids[i] : least;
    most = ids[i] > most ? ids[i] : most;
  }
  if (count == 0) return;
  require_id(least, size, text);
  require_id(most, size, text);
}

// Of targets, which may be ignored.
inline void require_targets(const int32_t* ids, int64_t count, int64_t size, const char* text) {
  int32_t least = 0, most = 0;
  for (int64_t i = 0; i < count; ++i) {
    least = ids[i] < least ? ids[i] : least;
    most = ids[i] > most ? ids[i] : most;
  }
  if (count == 0) return;
  if (least != kIgnoredTarget) require_id(least, size, text);
  require_id(most, size, text);
}

}  // namespace prun
