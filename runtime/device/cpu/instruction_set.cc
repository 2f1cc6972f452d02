#include "device/cpu/instruction_set.h"

#include <dnnl.h>

namespace prun::cpu {

InstructionSet instruction_set() {
  static const InstructionSet found = [] {
    const unsigned isa = dnnl_get_effective_cpu_isa();
    const auto has = [isa](unsigned level) { return (isa & level) == level; };
    return has(dnnl_cpu_isa_avx512_core) ? InstructionSet::avx512
           : has(dnnl_cpu_isa_avx2)      ? InstructionSet::avx2
                                         : InstructionSet::any;
  }();
  return found;
}

}  // namespace prun::cpu
