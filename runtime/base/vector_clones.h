// Vectorized loops: plain C++ loops with `#pragma omp simd`, compiled once for each level of x86-64 and chosen by the
// loader. Every function called inside must be PRUN_INLINE, otherwise it is compiled for the lowest level. The loader
// ignores the kernels that a job selects, so sums, whose rounding depends on the vector length, must not be such loops
// (kernels/cpu/vectors.h).
#pragma once

// Compiles one version in two cases: with sanitizers, because they instrument the loader's resolvers, which run before
// the sanitizer's runtime is initialized; and with clang, because version 14 cannot clone templates.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PRUN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PRUN_CLONES
#endif
#define PRUN_INLINE inline __attribute__((always_inline))
#define PRUN_INLINED __attribute__((always_inline))  // for a lambda
