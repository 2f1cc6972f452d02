// The fingerprint of a tensor: its bits as 32-bit words (16-bit elements: one word each), each times an odd number
// given by the word's index, summed modulo 2^48, which an f64 represents exactly. A single differing word always
// changes it, and a device may add in any order because the sum is an integer. Public, because every device must
// compute the same value.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define PRUN_FINGERPRINT_CALL __host__ __device__
#else
#define PRUN_FINGERPRINT_CALL
#endif

namespace prun {

inline constexpr uint64_t kFingerprintMask = (uint64_t{1} << 48) - 1;

// Returns the contribution of word number i.
PRUN_FINGERPRINT_CALL constexpr uint64_t fingerprint_of(uint32_t word, int64_t i) {
  return uint64_t{word} * ((static_cast<uint32_t>(i) * 2u + 1u) * 0x9E3779B1u);
}

}  // namespace prun
