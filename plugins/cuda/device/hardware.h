// What is known of GPUs without asking one: which of them the kernels here can run on, and how fast they are.
#pragma once
#include <string>
#include <string_view>

namespace prun::cuda {

// Why a GPU of this compute capability (90 for 9.0) cannot run what `architectures` says was compiled, as in
// CMAKE_CUDA_ARCHITECTURES but with commas ("80-real,90"); "" when it can.
std::string why_unusable(int capability, std::string_view architectures);
std::string why_unusable(int capability);  // by this build

// Dense bf16 with f32 sums, FLOP/s of the data sheet; where there is none, of what an SM of its kind does in a cycle.
// 0: unknown.
double peak_flops_bf16(std::string_view name, int capability, int multiprocessors, double clock_hz);

}  // namespace prun::cuda
