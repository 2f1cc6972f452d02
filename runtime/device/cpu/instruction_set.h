// Which vector instructions products are made for: what the CPU has, or less by oneDNN's ONEDNN_MAX_CPU_ISA, which is
// how a machine with AVX-512 tries what one without it would run.
#pragma once
#include <cstdint>

namespace prun::cpu {

enum class InstructionSet : uint8_t { any, avx2, avx512 };

InstructionSet instruction_set();

}  // namespace prun::cpu
