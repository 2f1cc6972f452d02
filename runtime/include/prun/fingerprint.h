// The fingerprint of a tensor: the sum of its bits in words of 32 (elements of 16 bits: one word each), each times an
// odd number that its place gives, modulo 2^48, which an f64 holds. One word that differs always changes it; the sum is
// of integers, so devices add in any order. Public, because every device has to make the same one.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define PRUN_FINGERPRINT_CALL __host__ __device__
#else
#define PRUN_FINGERPRINT_CALL
#endif

namespace prun {

inline constexpr uint64_t kFingerprintMask = (uint64_t{1} << 48) - 1;

// What the word in place i adds.
PRUN_FINGERPRINT_CALL constexpr uint64_t fingerprint_of(uint32_t word, int64_t i) {
  return uint64_t{word} * ((static_cast<uint32_t>(i) * 2u + 1u) * 0x9E3779B1u);
}

}  // namespace prun
