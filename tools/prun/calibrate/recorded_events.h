// Visits the measured events of a rank's flight recorder.
#pragma once
#include <algorithm>

#include "exec/recorder.h"

namespace prun {

inline constexpr uint32_t kFirstMeasuredStep = 2;  // earlier steps touch memory and create kernels

template <class Use>
void each_event(RecorderHeader* recorder, int stream, const Use& use) {
  const uint64_t written = recorder->stream[stream].written.load(), capacity = recorder->capacity;
  const OpEvent* ring = recorder_ring(recorder, stream);
  for (uint64_t i = written - std::min(written, capacity); i < written; ++i)
    if (ring[i % capacity].step >= kFirstMeasuredStep) use(ring[i % capacity]);
}

}  // namespace prun
