// Which vector instructions products are made for: what the CPU has, or less by oneDNN's ONEDNN_MAX_CPU_ISA, which is
// how a machine with AVX-512 tries what one without it would run.
#pragma once
#include <cstdint>

namespace prun::cpu {

enum class InstructionSet : uint8_t { any, avx2, avx512 };

InstructionSet instruction_set();
// Besides avx512: products of bf16 in vectors (AVX512_BF16).
bool has_avx512_bf16();

}  // namespace prun::cpu
