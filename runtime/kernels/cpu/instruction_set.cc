#include "kernels/cpu/instruction_set.h"

#include <unistd.h>

#include <algorithm>

#include "kernels/cpu/kernel_choice.h"

namespace prun::cpu {

InstructionSet instruction_set() {
  return static_cast<InstructionSet>(std::min(static_cast<int>(kernels()), static_cast<int>(InstructionSet::avx512)));
}

bool has_avx512_bf16() { return kernels() >= Kernels::bf16; }

int64_t second_level_cache() {
  static const int64_t bytes = [] {
    const int64_t found = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return found > 0 ? found : int64_t{512} << 10;
  }();
  return bytes;
}

}  // namespace prun::cpu
