// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): random numbers as a pure
// function of (seed, key, index), so that an element is the same on every rank, mesh and device. Public, because every
// device must generate the same numbers.
//
// Surprising fact: log, sine and cosine are polynomials of this file, and every file that includes it must be compiled
// with -ffp-contract=off (nvcc: --fmad=false), because libm and fused multiply-adds round differently on different
// machines.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define PRUN_HOST_DEVICE __host__ __device__
#else
#define PRUN_HOST_DEVICE
#endif

namespace prun::philox {

struct Words {
  uint32_t word[4];
  PRUN_HOST_DEVICE constexpr uint32_t operator[](uint64_t i) const { return word[i]; }
  bool operator==(const Words&) const = default;
};

// Returns four random words: block `index` of the sequence `key` under `seed`.
PRUN_HOST_DEVICE inline Words block(uint64_t seed, uint64_t key, uint64_t index) {
  uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32);
  uint32_t c2 = static_cast<uint32_t>(key), c3 = static_cast<uint32_t>(key >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Maps a word to [0, 1), uniformly: 24 bits, exact in f32.
PRUN_HOST_DEVICE inline float unit(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Returns the natural logarithm of a positive normal number by ln m = 2 atanh((m - 1) / (m + 1)); relative error below
// 1e-7.
PRUN_HOST_DEVICE inline float log_positive(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x) - 0x3f3504f3u;  // so that m is in [sqrt 1/2, sqrt 2)
  const float exponent = static_cast<float>(static_cast<int32_t>(bits) >> 23);
  const float m = std::bit_cast<float>((bits & 0x007fffffu) + 0x3f3504f3u);
  const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
  const float series = 2.0f * s * (1.0f + z * (1.0f / 3 + z * (1.0f / 5 + z * (1.0f / 7 + z * (1.0f / 9)))));
  return exponent * 0.693147180559945f + series;
}

struct Pair {
  float first, second;
};

// Returns two standard normal numbers from two words (Box-Muller).
PRUN_HOST_DEVICE inline Pair normals(uint32_t a, uint32_t b) {
  const float u = (static_cast<float>(a >> 8) + 1.0f) * 0x1p-24f;  // (0, 1]: its logarithm is finite
  const float radius = std::sqrt(-2.0f * log_positive(u));
  const uint32_t shifted = b + 0x20000000u;  // the angle is a quadrant plus at most ±1/8 turn
  const uint32_t quadrant = shifted >> 30;
  const float turn = static_cast<float>(static_cast<int32_t>(shifted << 2 >> 2) - 0x20000000) * 0x1p-32f;
  const float x = turn * 6.28318530717959f, z = x * x;
  const float sine = x * (1.0f + z * (-1.0f / 6 + z * (1.0f / 120 + z * (-1.0f / 5040 + z * (1.0f / 362880)))));
  const float cosine =
      1.0f + z * (-1.0f / 2 + z * (1.0f / 24 + z * (-1.0f / 720 + z * (1.0f / 40320 + z * (-1.0f / 3628800)))));
  const float c = (quadrant & 1u) != 0 ? sine : cosine, s = (quadrant & 1u) != 0 ? cosine : sine;
  const float sign_c = quadrant == 1 || quadrant == 2 ? -1.0f : 1.0f, sign_s = quadrant >= 2 ? -1.0f : 1.0f;
  return {radius * (sign_c * c), radius * (sign_s * s)};
}

// Returns an integer uniform in [low, high]; `key` and `index` as in block. Its sequence is disjoint from those of
// parameters.
PRUN_HOST_DEVICE inline int64_t integer(uint64_t seed, uint64_t key, uint64_t index, int64_t low, int64_t high) {
  const Words words = block(seed, key | (uint64_t{1} << 63), index);
  const uint64_t word = (static_cast<uint64_t>(words[0]) << 32) | words[1];
  const uint64_t span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;  // 0 = all 64 bits
  // The high half of word * span, in 32-bit pieces: portable, and biased by less than span / 2^64.
  const uint64_t wl = word & 0xffffffffu, wh = word >> 32, sl = span & 0xffffffffu, sh = span >> 32;
  const uint64_t middle = ((wl * sl) >> 32) + ((wh * sl) & 0xffffffffu) + wl * sh;
  const uint64_t scaled = span == 0 ? word : wh * sh + ((wh * sl) >> 32) + (middle >> 32);
  return static_cast<int64_t>(static_cast<uint64_t>(low) + scaled);
}

// Random words of dropout. Each (seed, key, step) has a stream, and each sample a sequence in it. Element e takes a
// word of block 16·(e/64) + e%16, so that vector code makes 64 adjacent elements from 16 blocks at once.
PRUN_HOST_DEVICE inline uint64_t dropout_stream(uint64_t seed, uint64_t key, uint64_t step) {
  const Words words = block(seed, key | (uint64_t{1} << 62), step);
  return words[0] | (static_cast<uint64_t>(words[1]) << 32);
}
PRUN_HOST_DEVICE inline uint32_t dropout_word(uint64_t stream, uint64_t sample, uint64_t element) {
  return block(stream, sample, element / 64 * 16 + element % 16)[element % 64 / 16];
}
// Returns the bound below which a word drops its element, with probability p.
PRUN_HOST_DEVICE inline uint32_t dropout_bound(double p) { return static_cast<uint32_t>(p * 0x1p32); }

}  // namespace prun::philox
