// GEMM: C = act(op(A)·op(B) + bias), row-major, with scratch that the caller provides. gemm.cc has the table of
// implementations.
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
  Dtype input = Dtype::f32;   // dtype of A, B and the bias: f32 or bf16
  Dtype output = Dtype::f32;  // dtype of C; accumulators are always f32
  bool bias = false;          // [n]
  Activation activation = Activation::none;
  int threads = 1;
  // Elements from a stored row of A, B or C to the next; 0 = contiguous rows.
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  int64_t a_row() const { return stride_a != 0 ? stride_a : transpose_a ? m : k; }
  int64_t b_row() const { return stride_b != 0 ? stride_b : transpose_b ? k : n; }
  int64_t c_row() const { return stride_c != 0 ? stride_c : n; }
  auto operator<=>(const GemmShape&) const = default;  // NOLINT(modernize-use-nullptr): the compiler's own 0
};

std::string gemm_library();  // "oneDNN 2.7.2"

// Returns the bytes of scratch that a GEMM of this shape needs. Cached per shape; any thread may call it.
int64_t gemm_scratch_bytes(const GemmShape& shape);

class Gemm {
 public:
  // Retains the pointers. `scratch`: 64-byte aligned, gemm_scratch_bytes long.
  Gemm(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, void* scratch);
  Gemm(Gemm&&) noexcept;
  ~Gemm();
  void run() const;
  // Also writes the sums of B's columns to `sums`; needs takes_sums().
  void run_and_sum(float* sums) const;
  bool takes_sums() const;
  // Computes with rows [first, first + rows) of A as stored. With transpose_a they are a part of K, accumulated into C
  // if `add`; otherwise they are rows of C. Needs takes_parts(): f32, no bias or activation.
  void run_part(int64_t first, int64_t rows, bool add) const;
  bool takes_parts() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace prun::cpu
