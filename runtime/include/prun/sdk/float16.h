// bf16 and f16: the only code that rounds a float to 16 bits, to nearest even; a NaN remains a NaN.
//
// The functions on words take a uint32_t or a GCC/Clang vector of them, and have no branches, so that loops vectorize.
// They are always inlined because the calling code may be compiled for one instruction set level.
#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

#define PRUN_SDK_INLINE inline __attribute__((always_inline))

namespace prun::sdk {

// Returns bf16 bits from the bits of an f32.
template <class Word>
PRUN_SDK_INLINE constexpr Word round_to_bf16(Word f32) {
  const Word rounded = (f32 + 0x7fffu + ((f32 >> 16) & 1u)) >> 16;
  const Word quiet_nan = (f32 >> 16) | 0x40u;
  return (f32 & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded;
}

// Returns f16 bits from the bits of an f32. Float is float, or the vector type with as many lanes as Word.
template <class Float, class Word>
PRUN_SDK_INLINE constexpr Word round_to_f16(Word f32) {
  const Word sign = (f32 >> 16) & 0x8000u, rest = f32 & 0x7fffffffu;
  // Normal: rebase the exponent. Subnormal: adding 0.5 aligns and rounds.
  const Word normal = (rest - 0x38000000u + 0x0fffu + ((rest >> 13) & 1u)) >> 13;
  const Word subnormal = __builtin_bit_cast(Word, __builtin_bit_cast(Float, rest) + 0.5f) - 0x3f000000u;
  Word half = rest < 0x38800000u ? subnormal : normal;
  half = rest >= 0x477ff000u ? half * 0 + 0x7c00u : half;  // from 65520: infinity
  half = rest > 0x7f800000u ? 0x7e00u | ((rest >> 13) & 0x3ffu) : half;
  return sign | half;
}

// Returns the f32 bits of an f16 value. f16 subnormals are cheap, because no intermediate float is subnormal.
template <class Float, class Word>
PRUN_SDK_INLINE constexpr Word widen_f16(Word half) {
  const Word sign = (half & 0x8000u) << 16, rest = half & 0x7fffu, shifted = rest << 13;
  const Word magic = rest * 0 + (113u << 23);
  const Word subnormal =
      __builtin_bit_cast(Word, __builtin_bit_cast(Float, shifted + magic) - __builtin_bit_cast(Float, magic));
  Word bits = rest < 0x400u ? subnormal : shifted + (112u << 23);
  bits = rest >= 0x7c00u ? shifted + (224u << 23) : bits;
  return bits | sign;
}

struct bf16 {
  uint16_t bits = 0;
};
PRUN_SDK_INLINE constexpr float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
PRUN_SDK_INLINE constexpr bf16 to_bf16(float x) {
  return {static_cast<uint16_t>(round_to_bf16(std::bit_cast<uint32_t>(x)))};
}

}  // namespace prun::sdk
