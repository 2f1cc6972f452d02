// Barriers, shuffles and atomic operations of CUDA C++. A missing lane, and a read from one, end the process.
#pragma once
#include <cstring>

#include "kernel.h"

namespace substitute {

template <class T>
struct Shuffled {
  T value;
  unsigned from;  // a lane
  const char* what;
  Here here;
};

template <class T>
T shuffle(unsigned mask, T value, unsigned from, const char* what, const Here& here) {
  Shuffled<T> given{value, from, what, here};
  T got{};
  meet_warp(mask, what, here, {&given, &got}, [](const Lane(&lanes)[32]) {
    for (const Lane& lane : lanes) {
      if (lane.given == nullptr) continue;
      const auto* mine = static_cast<const Shuffled<T>*>(lane.given);
      const auto* other = static_cast<const Shuffled<T>*>(lanes[mine->from].given);
      if (other == nullptr) die_in_kernel("a lane reads from one that is not there", mine->what, mine->here);
      std::memcpy(lane.got, &other->value, sizeof(T));
    }
  });
  return got;
}

// Returns the first lane of the part of `width` lanes that contains this one.
inline unsigned part(int width) { return lane_id() & ~static_cast<unsigned>(width - 1); }

template <class T, class F>
T atomically(T* at, F change) {
  T before, after;
  __atomic_load(at, &before, __ATOMIC_RELAXED);
  do after = change(before);
  while (!__atomic_compare_exchange(at, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return before;
}

}  // namespace substitute

#define PRUN_HERE const substitute::Here& here = substitute::Here::current()

inline void __syncthreads(PRUN_HERE) { substitute::meet_block("__syncthreads", here); }
inline void __syncwarp(unsigned mask = 0xffffffffu, PRUN_HERE) {
  substitute::meet_warp(mask, "__syncwarp", here, {&here, nullptr}, [](const substitute::Lane(&)[32]) {});
}

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32, PRUN_HERE) {
  const unsigned lane = substitute::part(width) + static_cast<unsigned>(from & (width - 1));
  return substitute::shuffle(mask, value, lane, "__shfl_sync", here);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, PRUN_HERE) {
  const unsigned self = substitute::lane_id(), other = self ^ static_cast<unsigned>(bits);
  const unsigned lane = other < substitute::part(width) + static_cast<unsigned>(width) ? other : self;
  return substitute::shuffle(mask, value, lane, "__shfl_xor_sync", here);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, PRUN_HERE) {
  const unsigned self = substitute::lane_id();
  return substitute::shuffle(mask, value, self >= substitute::part(width) + by ? self - by : self, "__shfl_up_sync",
                             here);
}
#undef PRUN_HERE

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> x) {
  return substitute::atomically(at, [x](T old) { return static_cast<T>(old + x); });
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> x) {
  return substitute::atomically(at, [x](T old) { return old | x; });
}
