// Whether to write assembly for instructions that GCC 12 does not generate. clang generates most of them; it also
// checks the operands against the level of a function before inlining it into one of a higher level.
#pragma once

namespace prun {

#if defined(__x86_64__) && !defined(__clang__)
inline constexpr bool kVectorAsm = true;
#else
inline constexpr bool kVectorAsm = false;
#endif

}  // namespace prun
