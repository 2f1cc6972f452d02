#include "device/cpu/instruction_set.h"

#include <algorithm>

#include "device/cpu/kernel_choice.h"

namespace prun::cpu {

InstructionSet instruction_set() {
  return static_cast<InstructionSet>(std::min(static_cast<int>(kernels()), static_cast<int>(InstructionSet::avx512)));
}

bool has_avx512_bf16() { return kernels() >= Kernels::bf16; }

}  // namespace prun::cpu
