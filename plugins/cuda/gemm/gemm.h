// GEMMs: C = op(A)·op(B), row-major, with their epilogues, in as few kernels as cuBLASLt offers.
//
// Surprising fact: some of cuBLASLt's epilogues are not used. Its relu turns a NaN into 0, which would hide the NaN
// from --check-finite. Its gelu is an approximation that is accurate enough only for bf16, and on GPUs before Hopper a
// separate kernel.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/kernels/op.h"

namespace prun::cuda {

// Elements from one stored row to the next, and from one matrix of a batch to the next; -1 = contiguous.
struct MatrixStrides {
  int64_t row = -1, entry = -1;
  bool contiguous() const { return row < 0 && entry < 0; }
};

struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;               // number of GEMMs
  MatrixStrides in_a, in_b, in_c;  // c: also of `added`
  bool contiguous() const { return in_a.contiguous() && in_b.contiguous() && in_c.contiguous(); }
  bool transpose_a = false;  // A is stored [k, m]
  bool transpose_b = false;  // B is stored [n, k]
  int input = PRUN_F32;      // type of A, B, the bias and gelu's input: f32 or bf16; accumulators are always f32
  int output = PRUN_F32;     // type of C
  bool tf32 = false;         // f32 operands may be rounded to 10 bits of mantissa, also without the option
};

enum class Activation : uint8_t { none, relu, gelu_tanh, gelu_erf };
enum class Sums : uint8_t { none, of_a, of_b };

struct Gemm {
  GemmShape shape;
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  const void* added = nullptr;               // [batch, m, n], of C's type: C = added + op(A)·op(B); may be C itself
  const void* bias = nullptr;                // [n], added to each row
  Activation activation = Activation::none;  // applied to C
  void* pre = nullptr;                       // [m, n]: destination of the activation's input; null: not stored
  const void* gelu_input = nullptr;  // [m, n]: C is multiplied by the derivative of gelu's tanh form at this input
  Sums sum = Sums::none;             // column sums over k, of op(A): [m], or of op(B): [n]
  float* sums = nullptr;
  const float* added_sums = nullptr;  // added to sums; set if `added` is
};

// Returns the bytes of the kernel's workspace, the same on every machine, at most 32 MiB. Pointers need not be valid
// yet.
size_t gemm_workspace(const Gemm& gemm);

// Makes the kernel, with scratch from the view. Any size may be 0.
std::unique_ptr<Kernel> make_gemm(const OpView& view, const Gemm& gemm);
// Makes one kernel of several GEMMs, which share the scratch.
std::unique_ptr<Kernel> make_gemms(const OpView& view, const std::vector<Gemm>& gemms);

// plain_gemm.cu: a GEMM for sizes without an algorithm in cuBLASLt. It supports any size, a hundred times slower
// than possible. `added` is as in Gemm.
std::unique_ptr<Kernel> make_plain_gemm(const GemmShape& shape, const void* a, const void* b, const void* added,
                                        void* c);

}  // namespace prun::cuda
