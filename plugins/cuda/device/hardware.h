// Facts about GPUs that need no CUDA call: which of them can run these kernels, and how fast they are.
#pragma once
#include <string>
#include <string_view>

namespace prun::cuda {

// Returns why a GPU of this compute capability (90 for 9.0) cannot run code for `architectures`, which are as in
// CMAKE_CUDA_ARCHITECTURES but with commas ("80-real,90"); "" if it can.
std::string why_unusable(int capability, std::string_view architectures);
std::string why_unusable(int capability);  // for the architectures of this build

// Returns the FLOP/s of dense bf16 with f32 accumulation: the data sheet's value, otherwise a value from the FLOPs per
// cycle of an SM of its kind; 0 = unknown.
double peak_flops_bf16(std::string_view name, int capability, int multiprocessors, double clock_hz);

}  // namespace prun::cuda
