// How loops become vector code: plain C++ loops with `#pragma omp simd`, compiled once for each level of x86-64 and
// chosen by the loader. Everything called inside must be PRUN_INLINE, or it would be compiled for the lowest level.
// The loader knows nothing of the kernels that a job takes, so a sum, whose bits depend on how long vectors are, is no
// such loop (kernels/cpu/vectors.h).
#pragma once

// One version where sanitizers instrument the loader's resolvers, which run before their runtime is up, and with clang,
// whose version 14 clones no templates.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PRUN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PRUN_CLONES
#endif
#define PRUN_INLINE inline __attribute__((always_inline))
#define PRUN_INLINED __attribute__((always_inline))  // of a lambda
