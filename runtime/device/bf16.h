// bfloat16: the upper half of an f32. Conversion back rounds to nearest even and keeps NaN a NaN.
#pragma once
#include <bit>
#include <cstdint>

namespace prun {

struct bf16 {
  uint16_t bits = 0;
};

inline constexpr float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Written without branches, so that loops over it vectorize.
inline constexpr bf16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return bf16{static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
}

}  // namespace prun
