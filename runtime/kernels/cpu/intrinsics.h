// Intel's intrinsics, without GCC 12's warnings about operands that some of them leave undefined, and the attributes of
// functions that need AVX-512, AVX512_BF16 or AMX.
#pragma once
#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#define PRUN_V4 __attribute__((target("arch=x86-64-v4")))
#define PRUN_V4_INLINE PRUN_V4 inline __attribute__((always_inline))
#define PRUN_AVX512_BF16 __attribute__((target("arch=x86-64-v4,avx512bf16")))
#define PRUN_AMX __attribute__((target("arch=x86-64-v4,avx512bf16,amx-tile,amx-bf16")))
#endif
