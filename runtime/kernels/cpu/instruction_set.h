// The vector instructions that kernels use (kernel_choice.h), and the cache size that blocking depends on.
#pragma once
#include <cstdint>

namespace prun::cpu {

enum class InstructionSet : uint8_t { any, avx2, avx512 };

InstructionSet instruction_set();
// Returns whether kernels may also use AVX512_BF16.
bool has_avx512_bf16();

// Returns the bytes of a core's second-level cache, or 512 KiB if the system does not report them.
int64_t second_level_cache();

}  // namespace prun::cpu
