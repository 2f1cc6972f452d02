// Matrix products, our own and oneDNN's: C = act(op(A)·op(B) + bias), row-major, with the scratchpad given by the
// caller.
//
// Surprising fact: oneDNN takes the number of threads from OpenMP's setting of the calling thread, both when a
// primitive is made and when it runs; Gemm sets it each time, so one process may mix kernels of different widths.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "ir/types.h"

namespace prun::cpu {

enum class Activation : uint8_t { none, relu, gelu_tanh, gelu_erf };

struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;   // A is stored [k, m]
  bool transpose_b = false;   // B is stored [n, k]
  Dtype input = Dtype::f32;   // of A, B and the bias: f32 or bf16
  Dtype output = Dtype::f32;  // of C; sums are f32 always
  bool bias = false;          // [n]
  Activation activation = Activation::none;
  int threads = 1;
  auto operator<=>(const GemmShape&) const = default;
};

std::string gemm_library();  // "oneDNN 2.7.2"

// Bytes of scratch that a product of this shape needs; remembered, so cheap for a shape seen before.
int64_t gemm_scratch_bytes(const GemmShape& shape);

class Gemm {
 public:
  // Pointers stay fixed for the life of the product. `scratch`: 64-byte aligned, gemm_scratch_bytes long.
  Gemm(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, void* scratch);
  Gemm(Gemm&&) noexcept;
  ~Gemm();
  void run() const;
  // The same, and the sums of B's columns into `sums`; only for what `takes_sums`.
  void run_and_sum(float* sums) const;
  bool takes_sums() const;
  // Some rows of A as it lies in memory: with transpose_a a part of the sum, which is added to C if `add`, otherwise
  // rows of C. Only for what `takes_parts`, without bias and activation: oneDNN's primitives have fixed sizes.
  void run_part(int64_t first, int64_t rows, bool add) const;
  bool takes_parts() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace prun::cpu
