// Numbers below the smallest normal one count as zeros in this thread, as operands and as results, while this lives.
//
// What is multiplied by less than one in each step, as a moment whose gradient stays zero, comes down to such numbers
// and stays there; some CPUs take a hundred times as long for them. No step would tell them from zeros.
#pragma once
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace prun::cpu {

class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : before_(_mm_getcsr()) { set(before_ | kResults | kOperands); }
  ~FlushSubnormals() { set(before_); }
#else
  FlushSubnormals() {}
  ~FlushSubnormals() {}
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

#if defined(__x86_64__)
 private:
  static constexpr unsigned kResults = 0x8000, kOperands = 0x0040;
  // What is read or written before or behind it stays there.
  static void set(unsigned control) {
    asm volatile("" ::: "memory");
    _mm_setcsr(control);
    asm volatile("" ::: "memory");
  }
  unsigned before_;
#endif
};

}  // namespace prun::cpu
