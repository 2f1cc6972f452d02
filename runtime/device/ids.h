// Checks ids of tokens and targets in tensors: a model whose table or logits are smaller than its data would read out
// of bounds. The device ends the job, because no later loss would be meaningful.
#pragma once
#include <fmt/format.h>

#include <cstdint>

#include "base/error.h"

namespace prun {

inline constexpr int32_t kIgnoredTarget = -1;  // ignored by the loss, like nanoGPT's ignore_index
inline constexpr const char* kTokenOutside = "token {} is outside the table's {} rows";
inline constexpr const char* kRowOutside = "id {} is outside the tensor's {} rows";
inline constexpr const char* kTargetOutside = "target {} is outside the {} logits of a row";

// Throws plan_error with `text`, which has placeholders for both, unless 0 <= id < size.
inline void require_id(int64_t id, int64_t size, const char* text) {
  if (id < 0 || id >= size) throw plan_error(fmt::format(fmt::runtime(text), id, size));
}

// Checks all ids in one pass of min and max.
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

// Checks targets, which may be kIgnoredTarget.
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
