#include "device/cpu/finish_tile.h"

#include "device/cpu/simd.h"
#include "device/cpu/vector_math.h"

namespace prun::cpu {
namespace {

template <class T>
PRUN_CLONES void finish(const float* from, int64_t from_row, T* c, int64_t c_row, int64_t rows, int64_t columns,
                        Activation activation) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* x = from + r * from_row;
    T* y = c + r * c_row;
    switch (activation) {
      // It sees calls of templates, not what they call.
      case Activation::none:  // NOLINT(bugprone-branch-clone)
#pragma omp simd
        for (int64_t j = 0; j < columns; ++j) store(y[j], x[j]);
        break;
      case Activation::relu:
#pragma omp simd
        for (int64_t j = 0; j < columns; ++j) store(y[j], x[j] < 0.0f ? 0.0f : x[j]);
        break;
      case Activation::gelu_tanh:
#pragma omp simd
        for (int64_t j = 0; j < columns; ++j) store(y[j], gelu_tanh_f32(x[j]));
        break;
      case Activation::gelu_erf:
#pragma omp simd
        for (int64_t j = 0; j < columns; ++j) store(y[j], gelu_erf_f32(x[j]));
        break;
    }
  }
}

}  // namespace

void finish_tile(const float* from, int64_t from_row, float* c, int64_t c_row, int64_t rows, int64_t columns,
                 Activation activation) {
  finish(from, from_row, c, c_row, rows, columns, activation);
}

void finish_tile(const float* from, int64_t from_row, bf16* c, int64_t c_row, int64_t rows, int64_t columns,
                 Activation activation) {
  finish(from, from_row, c, c_row, rows, columns, activation);
}

}  // namespace prun::cpu
