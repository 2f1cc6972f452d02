// Barriers, votes, shuffles and atomic operations of CUDA C++. Lanes that do not all come, or read from one that is not
// there, end the process.
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

// The first lane of the part of `width` lanes that this one is in.
inline unsigned part(int width) { return lane_id() & ~static_cast<unsigned>(width - 1); }

inline unsigned ballot(unsigned mask, bool value, const char* what, const Here& here) {
  unsigned got = 0;
  meet_warp(mask, what, here, {&value, &got}, [](const Lane(&lanes)[32]) {
    unsigned all = 0;
    for (int i = 0; i < 32; ++i)
      if (lanes[i].given != nullptr && *static_cast<const bool*>(lanes[i].given)) all |= 1u << i;
    for (const Lane& lane : lanes)
      if (lane.given != nullptr) *static_cast<unsigned*>(lane.got) = all;
  });
  return got;
}

template <class T, class F>
T reduce(unsigned mask, T value, const char* what, const Here& here) {
  T got{};
  meet_warp(mask, what, here, {&value, &got}, [](const Lane(&lanes)[32]) {
    const T* first = nullptr;
    T all{};
    for (const Lane& lane : lanes) {
      if (lane.given == nullptr) continue;
      const T* next = static_cast<const T*>(lane.given);
      all = first == nullptr ? *next : F()(all, *next);
      first = next;
    }
    for (const Lane& lane : lanes)
      if (lane.given != nullptr) *static_cast<T*>(lane.got) = all;
  });
  return got;
}

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

inline void __syncthreads(PRUN_HERE) { substitute::meet_block(0, "__syncthreads", here); }
inline int __syncthreads_count(int value, PRUN_HERE) {
  return substitute::meet_block(value, "__syncthreads_count", here);
}
inline int __syncthreads_or(int value, PRUN_HERE) {
  return substitute::meet_block(value, "__syncthreads_or", here) > 0 ? 1 : 0;
}
inline int __syncthreads_and(int value, PRUN_HERE) {
  return substitute::meet_block(value == 0 ? 1 : 0, "__syncthreads_and", here) == 0 ? 1 : 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, PRUN_HERE) { substitute::ballot(mask, false, "__syncwarp", here); }

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
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, PRUN_HERE) {
  const unsigned self = substitute::lane_id(), end = substitute::part(width) + static_cast<unsigned>(width);
  return substitute::shuffle(mask, value, self + by < end ? self + by : self, "__shfl_down_sync", here);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, PRUN_HERE) {
  const unsigned self = substitute::lane_id();
  return substitute::shuffle(mask, value, self >= substitute::part(width) + by ? self - by : self, "__shfl_up_sync",
                             here);
}
inline unsigned __ballot_sync(unsigned mask, int value, PRUN_HERE) {
  return substitute::ballot(mask, value != 0, "__ballot_sync", here);
}
inline int __any_sync(unsigned mask, int value, PRUN_HERE) {
  return substitute::ballot(mask, value != 0, "__any_sync", here) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int value, PRUN_HERE) {
  return substitute::ballot(mask, value == 0, "__all_sync", here) == 0 ? 1 : 0;
}
struct SubstituteAdd {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct SubstituteMin {
  template <class T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct SubstituteMax {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
template <class T>
T __reduce_add_sync(unsigned mask, T value, PRUN_HERE) {
  return substitute::reduce<T, SubstituteAdd>(mask, value, "__reduce_add_sync", here);
}
template <class T>
T __reduce_min_sync(unsigned mask, T value, PRUN_HERE) {
  return substitute::reduce<T, SubstituteMin>(mask, value, "__reduce_min_sync", here);
}
template <class T>
T __reduce_max_sync(unsigned mask, T value, PRUN_HERE) {
  return substitute::reduce<T, SubstituteMax>(mask, value, "__reduce_max_sync", here);
}
#undef PRUN_HERE

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> x) {
  return substitute::atomically(at, [x](T old) { return static_cast<T>(old + x); });
}
template <class T>
T atomicSub(T* at, std::type_identity_t<T> x) {
  return substitute::atomically(at, [x](T old) { return static_cast<T>(old - x); });
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> x) {
  return substitute::atomically(at, [x](T old) { return x < old ? x : old; });
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> x) {
  return substitute::atomically(at, [x](T old) { return old < x ? x : old; });
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> x) {
  return substitute::atomically(at, [x](T old) { return old | x; });
}
template <class T>
T atomicAnd(T* at, std::type_identity_t<T> x) {
  return substitute::atomically(at, [x](T old) { return old & x; });
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> x) {
  return substitute::atomically(at, [x](T) { return x; });
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> compare, std::type_identity_t<T> x) {
  return substitute::atomically(at, [=](T old) { return old == compare ? x : old; });
}
