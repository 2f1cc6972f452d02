// Which kernels compute where several could, as far as that decides the last bits of results. A process takes them
// once, before it makes its first kernel: a rank those of its job (tools/prun/job_kernels.h), whoever has no job what
// is fastest here.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace prun::cpu {

// Each needs all that those before it need. Vectors of so many bits; besides, of bf16: products by oneDNN and rounding
// by AVX512_BF16; the same with products of pairs, which need no more and are faster on some CPUs; products on tiles
// (AMX).
enum class Kernels : uint8_t { any, avx2, avx512, bf16, pairs, tiles };

// The version of all that kernels compute. Raise it when one adds in another order than before, or rounds elsewhere, so
// that a checkpoint tells whether it goes on to the bit.
inline constexpr int kArithmetic = 7;

std::string_view kernels_text(Kernels kernels);  // "avx512+pairs", and back
std::optional<Kernels> parse_kernels(std::string_view text);
std::vector<std::string> kernels_texts();

// The most that this CPU can run, or less by ONEDNN_MAX_CPU_ISA, which is how a machine with AVX-512 tries what one
// without it would do. Never bf16, since pairs run wherever that does.
Kernels most_kernels();
// The fastest for CPUs of which each can run `most`, as this one can. Measures, if it is for instructions to say.
Kernels fastest_kernels(Kernels most);

// For this process, and for what it forks. They are at most most_kernels(), and no others have been taken.
void take_kernels(Kernels kernels);
Kernels kernels();  // any thread; the fastest, if none have been taken

// kernels() >= Kernels::bf16, for loops that ask for each vector; known once kernels() has been asked.
inline bool rounds_to_bf16 = false;

}  // namespace prun::cpu
