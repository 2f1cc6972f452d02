#include "device/cpu/instruction_set.h"

#include <dnnl.h>

namespace prun::cpu {

InstructionSet instruction_set() {
  static const InstructionSet found = [] {
    const unsigned isa = dnnl_get_effective_cpu_isa();
    const auto has = [isa](unsigned level) { return (isa & level) == level; };
#if defined(__x86_64__)
    // What x86-64-v4 and v3 have besides; clang 14 does not know the levels by name.
    const bool v3 = has(dnnl_cpu_isa_avx2) && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    if (v3 && has(dnnl_cpu_isa_avx512_core) && __builtin_cpu_supports("avx512cd")) return InstructionSet::avx512;
    if (v3) return InstructionSet::avx2;
#endif
    return InstructionSet::any;
  }();
  return found;
}

bool has_avx512_bf16() {
  const unsigned isa = dnnl_get_effective_cpu_isa();
  return instruction_set() == InstructionSet::avx512 &&
         (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

}  // namespace prun::cpu
