// Which vector instructions kernels are made for (kernel_choice.h), and what speed besides depends on.
#pragma once
#include <cstdint>

namespace prun::cpu {

enum class InstructionSet : uint8_t { any, avx2, avx512 };

InstructionSet instruction_set();
// Besides avx512: products of bf16 in vectors (AVX512_BF16).
bool has_avx512_bf16();

// Bytes of a core's second-level cache; where the system does not say, few.
int64_t second_level_cache();

}  // namespace prun::cpu
