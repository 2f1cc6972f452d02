// positions and its gradient: each token has a row of the table. In the gradient a thread has columns of one row of the
// table and adds samples in order, so results are bitwise identical in every run.
#include "block.cuh"
#include "embedding.h"
#include "launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 4;  // rows that a thread loads before it adds them

template <class T, int N>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    add_positions(const T* x, const T* table, T* y, int64_t rows, int64_t width, TokenPositions at) {
  const int64_t packs = width / N;
  for (int64_t i = first_item(); i < rows * packs; i += item_stride()) {
    const int64_t row = i / packs, column = (i - row * packs) * N;
    const T* place = table + at.of(row % at.length) * width + column;
    Wide<T> a[N], b[N];
    load(x + i * N, a), load(place, b);
#pragma unroll
    for (int j = 0; j < N; ++j) a[j] += b[j];
    store(y + i * N, a);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    sum_samples(const T* dy, float* dtable, int64_t batch, int64_t rows, int64_t width, TokenPositions at) {
  const int64_t packs = width / N, stride = at.length * width;
  for (int64_t i = first_item(); i < rows * packs; i += item_stride()) {
    const int64_t row = i / packs, column = (i - row * packs) * N, token = at.token(row);
    float sum[N] = {};
    const T* from = dy + token * width + column;
    for (int64_t sample = 0; token >= 0 && sample < batch; sample += kAhead) {
      Wide<T> x[kAhead][N] = {};
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (sample + k < batch) load(from + (sample + k) * stride, x[k]);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += x[k][j];
      }
    }
    store(dtable + i * N, sum);
  }
}

void expect_table(const OpView& view, const Shape& table, int64_t rows, int64_t width) {
  view.expect(table.rows() >= rows && table.last() == width,
              "a table " + shape_text(table) + " for " + std::to_string(rows) + " tokens");
}

Shape shape_of(const OpView& view) {
  const Shape shape = view.read(0).shape;
  view.expect(shape.rank() == 3, shape_text(shape));
  return shape;
}

std::unique_ptr<Kernel> make_positions(const OpView& view) {
  const Shape shape = shape_of(view);
  const int64_t width = shape[2], rows = shape[0] * shape[1];
  const TokenPositions at = view.token_positions(shape[1]);
  expect_table(view, view.read(1).shape, at.whole(), width);
  view.expect_count(view.write(0), rows * width);
  return with_float(view.read(0).dtype, [&]<class T>() {
    const T *x = view.in<T>(0), *table = view.in<T>(1);
    T* y = view.out<T>(0);
    const bool packed = rows_aligned(width, x, table, y);
    return kernel_of([=, blocks = blocks_for(rows * width / (packed ? kPack<T> : 1), kThreads)](cudaStream_t stream) {
      launch(packed ? add_positions<T, kPack<T>> : add_positions<T, 1>, blocks, kThreads, 0, stream, x, table, y, rows,
             width, at);
    });
  });
}

std::unique_ptr<Kernel> make_positions_grad(const OpView& view) {
  const Shape shape = shape_of(view);
  const int64_t batch = shape[0], width = shape[2], rows = view.write(0).shape.rows();
  const TokenPositions at = view.token_positions(shape[1]);
  expect_table(view, view.write(0).shape, at.whole(), width);
  return with_float(view.read(0).dtype, [&]<class T>() {
    return kernel_of([dy = view.in<T>(0), dtable = view.out<float>(0), batch, width, rows, at](cudaStream_t stream) {
      sum_over_samples(dy, dtable, batch, rows, width, at, stream);
    });
  });
}

const KernelFamily kFamily = {{"positions", make_positions}, {"positions_grad", make_positions_grad}};

}  // namespace

template <class T>
void sum_over_samples(const T* dy, float* dtable, int64_t batch, int64_t rows, int64_t width, const TokenPositions& at,
                      cudaStream_t stream) {
  constexpr int kColumns = 4;
  const bool packed = width % kColumns == 0 && aligned(dtable) && aligned(dy);
  launch(packed ? sum_samples<T, kColumns> : sum_samples<T, 1>,
         blocks_for(rows * width / (packed ? kColumns : 1), kThreads), kThreads, 0, stream, dy, dtable, batch, rows,
         width, at);
}
template void sum_over_samples<float>(const float*, float*, int64_t, int64_t, int64_t, const TokenPositions&,
                                      cudaStream_t);
template void sum_over_samples<bf16>(const bf16*, float*, int64_t, int64_t, int64_t, const TokenPositions&,
                                     cudaStream_t);

}  // namespace prun::cuda
