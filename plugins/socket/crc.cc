// CRC32C by carry-less multiplication of 64 bytes at a time where the processor supports it (then faster than memcpy),
// otherwise by the CRC instruction, otherwise by tables.
//
// The instruction has a latency of 3 cycles and a throughput of one per cycle, so long data is split into three
// interleaved strands, joined by "append n zero bytes", which is linear in the CRC and therefore four table look-ups.
// Folding is Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ", Intel 2009, on four 512-bit
// words.
#include "crc.h"

#include <array>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace prun::socket {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bit-reflected
using Table = std::array<uint32_t, 256>;

constexpr std::array<Table, 8> make_slices() {
  std::array<Table, 8> slices{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    slices[0][byte] = crc;
  }
  for (uint32_t byte = 0; byte < 256; ++byte)
    for (size_t k = 1; k < 8; ++k) slices[k][byte] = (slices[k - 1][byte] >> 8) ^ slices[0][slices[k - 1][byte] & 255];
  return slices;
}
constexpr std::array<Table, 8> kSlices = make_slices();

uint32_t crc_by_tables(uint32_t crc, const unsigned char* p, size_t n) {
  for (; n >= 8; n -= 8, p += 8) {
    crc ^= p[0] | p[1] << 8 | p[2] << 16 | static_cast<uint32_t>(p[3]) << 24;
    crc = kSlices[7][crc & 255] ^ kSlices[6][crc >> 8 & 255] ^ kSlices[5][crc >> 16 & 255] ^ kSlices[4][crc >> 24] ^
          kSlices[3][p[4]] ^ kSlices[2][p[5]] ^ kSlices[1][p[6]] ^ kSlices[0][p[7]];
  }
  for (; n > 0; --n, ++p) crc = (crc >> 8) ^ kSlices[0][(crc ^ *p) & 255];
  return crc;
}

#if defined(__x86_64__)
// Maps a CRC to the CRC after `zeros` more zero bytes. The map is linear, so a table per byte of the CRC suffices.
struct Append {
  std::array<Table, 4> tables;
  explicit Append(size_t zeros) {
    for (size_t k = 0; k < 4; ++k) {
      std::array<uint32_t, 8> bits;
      for (size_t bit = 0; bit < 8; ++bit) {
        uint32_t crc = 1u << (8 * k + bit);
        for (size_t i = 0; i < zeros; ++i) crc = (crc >> 8) ^ kSlices[0][crc & 255];
        bits[bit] = crc;
      }
      for (uint32_t byte = 0; byte < 256; ++byte) {
        tables[k][byte] = 0;
        for (size_t bit = 0; bit < 8; ++bit) tables[k][byte] ^= byte >> bit & 1 ? bits[bit] : 0;
      }
    }
  }
  uint32_t operator()(uint32_t crc) const {
    return tables[0][crc & 255] ^ tables[1][crc >> 8 & 255] ^ tables[2][crc >> 16 & 255] ^ tables[3][crc >> 24];
  }
};

uint64_t load64(const unsigned char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

constexpr size_t kStrand = 1024;

__attribute__((target("sse4.2"))) uint32_t crc_by_instruction(uint32_t crc, const unsigned char* p, size_t n) {
  static const Append append_strand(kStrand);
  uint64_t a = crc;
  for (; n >= 3 * kStrand; n -= 3 * kStrand, p += 3 * kStrand) {
    uint64_t b = 0, c = 0;
    for (size_t i = 0; i < kStrand; i += 8) {
      a = _mm_crc32_u64(a, load64(p + i));
      b = _mm_crc32_u64(b, load64(p + kStrand + i));
      c = _mm_crc32_u64(c, load64(p + 2 * kStrand + i));
    }
    const uint32_t ab = append_strand(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
    a = append_strand(ab) ^ static_cast<uint32_t>(c);
  }
  for (; n >= 8; n -= 8, p += 8) a = _mm_crc32_u64(a, load64(p));
  uint32_t rest = static_cast<uint32_t>(a);
  for (; n > 0; --n, ++p) rest = _mm_crc32_u8(rest, *p);
  return rest;
}

// Returns x^power modulo the polynomial, times x^-1 because of the bit-reflected product, in the upper 32 bits.
constexpr uint64_t fold_constant(int power) {
  uint32_t residue = 0x80000000;  // the polynomial 1, bit-reflected
  for (int i = 0; i < power - 1; ++i) residue = (residue >> 1) ^ (residue & 1 ? kPolynomial : 0);
  return static_cast<uint64_t>(residue) << 32;
}

// Multipliers that advance a 128-bit word by `bits` bits: the weight of its first half is 64 bits higher than that of
// its second half.
struct Fold {
  uint64_t first, second;
  explicit constexpr Fold(int bits) : first(fold_constant(bits + 64)), second(fold_constant(bits)) {}
};
constexpr Fold kFold128(128), kFold512(512), kFold2048(2048);

#define PRUN_TARGET_FOLD __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2")))

PRUN_TARGET_FOLD inline __m512i fold(__m512i word, __m512i by, __m512i next) {
  const __m512i first = _mm512_clmulepi64_epi128(word, by, 0x00);
  const __m512i second = _mm512_clmulepi64_epi128(word, by, 0x11);
  return _mm512_ternarylogic_epi64(first, second, next, 0x96);  // xor of the three
}

PRUN_TARGET_FOLD inline __m512i broadcast(const Fold& by) {
  return _mm512_maskz_broadcast_i32x4(0xffff,  // the unmasked form makes g++ 12 warn about its own header
                                      _mm_set_epi64x(static_cast<int64_t>(by.second), static_cast<int64_t>(by.first)));
}

PRUN_TARGET_FOLD uint32_t crc_by_folding(uint32_t crc, const unsigned char* p, size_t n) {
  if (n < 512) return crc_by_instruction(crc, p, n);
  __m512i words[4];
  for (int i = 0; i < 4; ++i) words[i] = _mm512_loadu_si512(p + 64 * i);
  words[0] = _mm512_xor_si512(words[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  const __m512i by2048 = broadcast(kFold2048), by512 = broadcast(kFold512);
  for (p += 256, n -= 256; n >= 256; p += 256, n -= 256)
    for (int i = 0; i < 4; ++i) words[i] = fold(words[i], by2048, _mm512_loadu_si512(p + 64 * i));
  __m512i word = words[0];
  for (int i = 1; i < 4; ++i) word = fold(word, by512, words[i]);
  alignas(64) __m128i parts[4];
  _mm512_store_si512(parts, word);
  const __m128i by = _mm_set_epi64x(static_cast<int64_t>(kFold128.second), static_cast<int64_t>(kFold128.first));
  __m128i rest = parts[0];
  for (int i = 1; i < 4; ++i)
    rest = _mm_xor_si128(parts[i],
                         _mm_xor_si128(_mm_clmulepi64_si128(rest, by, 0x00), _mm_clmulepi64_si128(rest, by, 0x11)));
  uint64_t state = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(rest)));
  state = _mm_crc32_u64(state, static_cast<uint64_t>(_mm_extract_epi64(rest, 1)));
  return crc_by_instruction(static_cast<uint32_t>(state), p, n);
}
#endif

using Continue = uint32_t (*)(uint32_t, const unsigned char*, size_t);
Continue choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq")) return crc_by_folding;
  if (__builtin_cpu_supports("sse4.2")) return crc_by_instruction;
#endif
  return crc_by_tables;
}
const Continue kContinue = choose();

}  // namespace

uint32_t crc32c(uint32_t crc, const void* data, size_t bytes) {
  return ~kContinue(~crc, static_cast<const unsigned char*>(data), bytes);
}

std::vector<uint32_t> crc32c_every_way(uint32_t crc, const void* data, size_t bytes) {
  std::vector<Continue> ways = {crc_by_tables};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) ways.push_back(crc_by_instruction);
#endif
  ways.push_back(kContinue);
  std::vector<uint32_t> results;
  for (const Continue way : ways) results.push_back(~way(~crc, static_cast<const unsigned char*>(data), bytes));
  return results;
}

}  // namespace prun::socket
