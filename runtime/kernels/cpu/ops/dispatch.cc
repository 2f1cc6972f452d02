// dispatch, combine and their gradients: rows are copied between the order of tokens and the slots of experts.
//
// A slot belongs to at most one token, so tokens are divided among the threads and no two threads write the same row.
// All slots are cleared first, because some have no token, except in rounds without any token.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {
namespace {

struct Sizes {
  int64_t tokens, k, slots, width;
  bool in_rounds;       // slots are numbered for all tokens of an expert, and the op takes those of a window
  int64_t first, size;  // the window: its first position, and its positions of each expert
  bool sent_whole;      // slots of a round without any choice are written, too

  // Returns the row of the experts' slots that a choice has in this op; -1 = none.
  int64_t row_of(int32_t slot) const {
    if (slot < 0 || !in_rounds) return slot;
    const int64_t expert = slot / tokens, place = slot - expert * tokens - first;
    return place >= 0 && place < size ? expert * size + place : -1;
  }
  // Returns whether a round without any choice leaves the experts' slots as they are.
  bool is_idle(const int32_t* taken) const {
    if (!in_rounds || sent_whole) return false;
    return std::none_of(taken, taken + tokens * k, [&](int32_t slot) { return row_of(slot) >= 0; });
  }
};

// `slots` is [N,k], `row` the tensor of N rows, `slotted` that of all experts' slots.
Sizes sizes_of(const OpView& view, const Tensor& slots, const Tensor& row, const Tensor& slotted) {
  const int64_t size = slotted.shape.at(1);
  const Sizes s{row_count(slots.shape),
                last_dim(slots.shape),
                row_count(slotted.shape),
                last_dim(slotted.shape),
                view.attrs().has("round"),
                view.attrs().integer("round") * size,
                size,
                view.attrs().integer("whole") != 0};
  view.expect_count(row, s.tokens * s.width);
  return s;
}

template <class T>
void clear(int threads, T* y, int64_t n) {
  parallel_ranges(threads, n, [&](int64_t begin, int64_t end) { std::fill(y + begin, y + end, T{}); });
}

template <class T>
void send_rows(const Sizes& s, const T* x, const int32_t* slots, T* y, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    for (int64_t j = 0; j < s.k; ++j) {
      const int64_t slot = s.row_of(slots[n * s.k + j]);
      if (slot >= 0) std::memcpy(y + slot * s.width, x + n * s.width, s.width * sizeof(T));
    }
  }
}

// Computes out[n] = Σ over the choices j of w[n][j]·y[slot[n][j]], for a block of columns at a time, so that
// accumulators fit in registers or the first-level cache. Without weights, each weight is 1. Adds to `other` unless it
// is null; if that is `out`, rows without a slot remain as they are.
template <class T>
PRUN_CLONES void gather_rows(const Sizes& s, const T* y, const int32_t* slots, const float* weights, const T* other,
                             T* out, int64_t begin, int64_t end) {
  constexpr int64_t kColumns = 256;
  float sum[kColumns];
  for (int64_t n = begin; n < end; ++n) {
    if (other == out) {
      bool any = false;
      for (int64_t j = 0; j < s.k; ++j) any = any || s.row_of(slots[n * s.k + j]) >= 0;
      if (!any) continue;
    }
    for (int64_t first = 0; first < s.width; first += kColumns) {
      const int64_t columns = s.width - first < kColumns ? s.width - first : kColumns;
      const T* before = other == nullptr ? nullptr : other + n * s.width + first;
      for (int64_t i = 0; i < columns; ++i) sum[i] = before == nullptr ? 0.0f : load(before[i]);
      for (int64_t j = 0; j < s.k; ++j) {
        const int64_t slot = s.row_of(slots[n * s.k + j]);
        if (slot < 0) continue;
        const T* from = y + slot * s.width + first;
        const float w = weights == nullptr ? 1.0f : weights[n * s.k + j];
#pragma omp simd
        for (int64_t i = 0; i < columns; ++i) sum[i] += w * load(from[i]);
      }
      T* to = out + n * s.width + first;
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) store(to[i], sum[i]);
    }
  }
}

// Computes dy[slot] = w·dout[n] and dw = dout[n]·y[slot], added to `other` unless it is null.
template <class T>
PRUN_INLINE void combine_gradients(const Sizes& s, const T* y, const int32_t* slots, const float* weights,
                                   const T* dout, T* dy, const float* other, float* dweights, int64_t begin,
                                   int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    const T* from = dout + n * s.width;
    for (int64_t j = 0; j < s.k; ++j) {
      const int64_t slot = s.row_of(slots[n * s.k + j]);
      float dot = 0;
      if (slot >= 0) {
        const float w = weights[n * s.k + j];
        const T* row = y + slot * s.width;
        T* to = dy + slot * s.width;
#pragma omp simd reduction(+ : dot)
        for (int64_t i = 0; i < s.width; ++i) {
          dot += load(from[i]) * load(row[i]);
          store(to[i], w * load(from[i]));
        }
      }
      dweights[n * s.k + j] = other == nullptr ? dot : other[n * s.k + j] + dot;
    }
  }
}

// Returns the sum of other rounds, operand `read`, to which the op adds; null = none.
template <class T>
const T* other_rounds(const OpView& view, size_t read, const Tensor& result) {
  if (view.reads() <= read) return nullptr;
  view.expect_count(view.read(read), result.count());
  return view.in<T>(read);
}

template <class T>
std::unique_ptr<Kernel> dispatch(const OpView& view) {
  const Sizes s = sizes_of(view, view.read(1), view.read(0), view.write(0));
  return kernel_of([s, x = view.in<T>(0), slots = view.in<int32_t>(1), y = view.out<T>(0), threads = view.threads()] {
    if (s.is_idle(slots)) return;
    clear(threads, y, s.slots * s.width);
    parallel_rows(threads, s.tokens, [&](int64_t begin, int64_t end) { send_rows(s, x, slots, y, begin, end); });
  });
}

template <class T>
std::unique_ptr<Kernel> dispatch_grad(const OpView& view) {
  const Sizes s = sizes_of(view, view.read(0), view.write(0), view.read(1));
  const T* other = other_rounds<T>(view, 2, view.write(0));
  return kernel_of([s, slots = view.in<int32_t>(0), dy = view.in<T>(1), other, dx = view.out<T>(0),
                    threads = view.threads()] {
    parallel_rows(threads, s.tokens,
                  [&](int64_t begin, int64_t end) { gather_rows<T>(s, dy, slots, nullptr, other, dx, begin, end); });
  });
}

template <class T>
std::unique_ptr<Kernel> combine(const OpView& view) {
  const Sizes s = sizes_of(view, view.read(1), view.write(0), view.read(0));
  view.expect_count(view.read(2), s.tokens * s.k);
  return kernel_of([s, y = view.in<T>(0), slots = view.in<int32_t>(1), weights = view.in<float>(2),
                    other = other_rounds<T>(view, 3, view.write(0)), out = view.out<T>(0), threads = view.threads()] {
    parallel_rows(threads, s.tokens,
                  [&](int64_t begin, int64_t end) { gather_rows(s, y, slots, weights, other, out, begin, end); });
  });
}

template <class T>
std::unique_ptr<Kernel> combine_grad(const OpView& view) {
  const Sizes s = sizes_of(view, view.read(1), view.read(3), view.read(0));
  view.expect_count(view.read(2), s.tokens * s.k);
  view.expect_count(view.write(0), s.slots * s.width);
  view.expect_count(view.write(1), s.tokens * s.k);
  return kernel_of([s, y = view.in<T>(0), slots = view.in<int32_t>(1), weights = view.in<float>(2),
                    dout = view.in<T>(3), dy = view.out<T>(0), other = other_rounds<float>(view, 4, view.write(1)),
                    dweights = view.out<float>(1), threads = view.threads()] {
    const bool idle = s.is_idle(slots);
    if (idle && other == dweights) return;
    if (!idle) clear(threads, dy, s.slots * s.width);
    parallel_rows(threads, s.tokens, [&](int64_t begin, int64_t end) {
      with_lanes([&]<int>()
                     PRUN_INLINED { combine_gradients(s, y, slots, weights, dout, dy, other, dweights, begin, end); });
    });
  });
}

}  // namespace

const Family dispatch_kernels = {
    {"dispatch", PRUN_FLOAT_MAKER(read(0), dispatch<T>(view))},
    {"dispatch_grad", PRUN_FLOAT_MAKER(read(1), dispatch_grad<T>(view))},
    {"combine", PRUN_FLOAT_MAKER(read(0), combine<T>(view))},
    {"combine_grad", PRUN_FLOAT_MAKER(read(0), combine_grad<T>(view))},
};

}  // namespace prun::cpu
