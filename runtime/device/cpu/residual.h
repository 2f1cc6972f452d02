// A norm that takes the add of a residual in: the two ops in turn on a few rows at a time, which stay in the fastest
// cache in between. So it has the bits of the two ops apart, and memory sees one pass.
#pragma once
#include <algorithm>
#include <cstdint>

#include "device/bf16.h"

namespace prun::cpu {

// y = a + b, the kernel of `add`; y may be a or b.
template <class T>
void add_elements(const T* a, const T* b, T* y, int64_t n);
extern template void add_elements(const float* a, const float* b, float* y, int64_t n);
extern template void add_elements(const bf16* a, const bf16* b, bf16* y, int64_t n);

// f(first, count) over the rows from `first` on, as many at a time as a cache of 32 KiB holds of four tensors.
template <class T, class F>
void few_rows(int64_t first, int64_t count, int64_t width, const F& f) {
  const int64_t step = std::max<int64_t>(1, 24 * 1024 / (4 * width * static_cast<int64_t>(sizeof(T))));
  for (int64_t done = 0; done < count; done += step) f(first + done, std::min(step, count - done));
}

}  // namespace prun::cpu
