// CRC32C by the processor's instruction where there is one, by tables elsewhere.
//
// The instruction takes 3 cycles but starts every cycle, so long data is cut in three strands that run interleaved
// and are joined by "append n zero bytes", which is linear in the CRC and therefore four table look-ups.
#include "crc.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace prun_socket {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
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
// What a CRC becomes when `zeros` zero bytes follow: linear, so known from what it does to each byte of the CRC.
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
#endif

using Continue = uint32_t (*)(uint32_t, const unsigned char*, size_t);
Continue choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc_by_instruction;
#endif
  return crc_by_tables;
}
const Continue kContinue = choose();

}  // namespace

uint32_t crc32c(uint32_t crc, const void* data, size_t bytes) {
  return ~kContinue(~crc, static_cast<const unsigned char*>(data), bytes);
}

}  // namespace prun_socket
