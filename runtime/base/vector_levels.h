// Code written for vectors of 16, 8 or 4 floats, each compiled for the level of x86-64 that has them.
//
// A body is a template on the number of lanes: `body.operator()<lanes>()`. It and every function that it calls are
// PRUN_INLINE or PRUN_INLINED, otherwise they are compiled for the lowest level.
#pragma once

#include "base/vector_clones.h"

namespace prun {

#if defined(__x86_64__)
template <class Body>
__attribute__((target("arch=x86-64-v4"))) void with_16_lanes(const Body& body) {
  body.template operator()<16>();
}
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Sanitizers check two of the three versions, because each takes GCC minutes.
template <class Body>
void with_8_lanes(const Body& body) {
  body.template operator()<4>();
}
#else
template <class Body>
__attribute__((target("arch=x86-64-v3"))) void with_8_lanes(const Body& body) {
  body.template operator()<8>();
}
#endif
#endif

// Runs the body with the longest vectors of this CPU. The results must not depend on the vector length.
template <class Body>
void with_longest_lanes(const Body& body) {
#if defined(__x86_64__)
  const auto has_v4 = [] {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
  };
  const auto has_v3 = [] {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  };
  if (has_v4()) return with_16_lanes(body);
  if (has_v3()) return with_8_lanes(body);
#endif
  body.template operator()<4>();
}

}  // namespace prun
