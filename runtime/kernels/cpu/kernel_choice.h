// The choice between kernels that round differently. A process chooses once, before it makes its first kernel: a rank
// takes the kernels of its job (job/kernels.h), a program without a job the fastest ones.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace prun::cpu {

// Each level requires the instructions of the previous ones: SSE, AVX2 or AVX-512 vectors; then AVX512_BF16 with bf16
// GEMMs by oneDNN; AVX512_BF16 with our own GEMMs of pairs, which are faster on some CPUs; AMX tiles.
enum class Kernels : uint8_t { any, avx2, avx512, bf16, pairs, tiles };

// The version of the arithmetic of all kernels. Raise it when a kernel changes its order of additions or its rounding,
// so that a checkpoint records whether it can be continued bitwise.
inline constexpr int kArithmetic = 7;

std::string_view kernels_text(Kernels kernels);  // "avx512+pairs", and back
std::optional<Kernels> parse_kernels(std::string_view text);
std::vector<std::string> kernels_texts();

// Returns the highest level that this CPU can run, or a lower one if ONEDNN_MAX_CPU_ISA sets it, so that a machine with
// AVX-512 can compute as one without it. The level is never bf16, because pairs run wherever bf16 does.
Kernels most_kernels();
// Returns the fastest kernels for CPUs that can all run `most`, as this one can. Measures if instructions exist but may
// be slow.
Kernels fastest_kernels(Kernels most);

// Sets the kernels of this process and its forks: at most most_kernels(), and only once.
void take_kernels(Kernels kernels);
Kernels kernels();  // from any thread; takes the fastest if none are set

// kernels() >= Kernels::bf16, for inner loops; valid after the first call of kernels().
inline bool rounds_to_bf16 = false;

}  // namespace prun::cpu
