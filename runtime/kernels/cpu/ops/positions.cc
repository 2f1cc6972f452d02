// positions and its gradient: each token has a row of the table. The gradient writes each row of the table once and
// reduces over samples in order, so it is bitwise identical on any number of threads.
#include <cstring>

#include "kernels/cpu/ops/elementwise.h"

namespace prun::cpu {
namespace {

// Sums `count` rows, `stride` apart.
template <class T>
PRUN_CLONES void sum_rows(const T* from, int64_t count, int64_t stride, float* to, int64_t width) {
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) to[j] = load(from[j]);
  for (int64_t i = 1; i < count; ++i) {
    const T* row = from + i * stride;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) to[j] += load(row[j]);
  }
}

template <class T>
std::unique_ptr<Kernel> positions_kernel(const OpView& view) {
  const Shape& shape = view.read(0).shape;
  PRUN_CHECK(shape.size() == 3, shape_text(shape));
  const int64_t length = shape[1], width = shape[2], rows = shape[0] * length;
  const TokenPositions at = view.token_positions(length);
  PRUN_CHECK(row_count(view.read(1).shape) >= at.whole() && last_dim(view.read(1).shape) == width,
             shape_text(view.read(1).shape) + " for " + std::to_string(at.whole()) + " tokens");
  view.expect_count(view.write(0), rows * width);
  return kernel_of([x = view.in<T>(0), table = view.in<T>(1), y = view.out<T>(0), rows, length, width, at,
                    threads = view.threads()] {
    parallel_for(threads, rows, [&](int64_t row, int) {
      map_range(kAdd, width, y + row * width, x + row * width, table + at.of(row % length) * width);
    });
  });
}

template <class T>
std::unique_ptr<Kernel> positions_grad_kernel(const OpView& view) {
  const Shape& shape = view.read(0).shape;
  PRUN_CHECK(shape.size() == 3, shape_text(shape));
  const int64_t batch = shape[0], length = shape[1], width = shape[2], rows = row_count(view.write(0).shape);
  const TokenPositions at = view.token_positions(length);
  PRUN_CHECK(rows >= at.whole() && last_dim(view.write(0).shape) == width, shape_text(view.write(0).shape));
  return kernel_of(
      [dy = view.in<T>(0), dtable = view.out<float>(0), batch, length, width, rows, at, threads = view.threads()] {
        parallel_for(threads, rows, [&](int64_t row, int) {
          const int64_t token = at.token(row);
          float* to = dtable + row * width;
          if (token < 0)
            std::memset(to, 0, width * sizeof(float));
          else
            sum_rows(dy + token * width, batch, length * width, to, width);
        });
      });
}

}  // namespace

const Family position_kernels = {{"positions", PRUN_FLOAT_MAKER(read(0), positions_kernel<T>(view))},
                                 {"positions_grad", PRUN_FLOAT_MAKER(read(0), positions_grad_kernel<T>(view))}};

}  // namespace prun::cpu
