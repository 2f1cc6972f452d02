#include "kernels/cpu/gemm/finish_tile.h"

#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {
namespace {

template <class T>
void finish(const float* from, int64_t from_row, T* c, int64_t c_row, int64_t rows, int64_t columns,
            Activation activation) {
  const auto each = [=](auto f) {
    with_lanes([=]<int lanes>() PRUN_INLINED {
      for (int64_t r = 0; r < rows; ++r) {
        for_lanes<lanes>(columns,
                         [=](auto at) PRUN_INLINED { at.store(c + r * c_row, f(at.load(from + r * from_row))); });
      }
    });
  };
  switch (activation) {
    case Activation::none:
      return each([](auto x) PRUN_INLINED { return x; });
    case Activation::relu:
      return each([](auto x) PRUN_INLINED { return x < 0.0f ? 0.0f : x; });
    case Activation::gelu_tanh:
      return each([](auto x) PRUN_INLINED { return gelu_tanh<T>(x); });
    case Activation::gelu_erf:
      return each([](auto x) PRUN_INLINED { return gelu_erf_f32(x); });
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
