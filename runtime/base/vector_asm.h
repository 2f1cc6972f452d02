// Whether instructions that GCC 12 does not find by itself are written down. clang checks their operands against the
// level of a function that is still to be inlined into one of a higher level, and finds most of them.
#pragma once

namespace prun {

#if defined(__x86_64__) && !defined(__clang__)
inline constexpr bool kVectorAsm = true;
#else
inline constexpr bool kVectorAsm = false;
#endif

}  // namespace prun
