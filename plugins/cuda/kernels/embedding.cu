// embedding: a row of the table for each token, optionally plus one of the positions. embedding_grad.cu has its
// gradient.
#include "block.cuh"
#include "embedding.h"
#include "launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, int N>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    gather_rows(TokenRow row_of, const T* table, const T* positions, T* x, int64_t count, int64_t length,
                int64_t width) {
  const int64_t packs = width / N;
  for (int64_t i = first_item(); i < count * packs; i += item_stride()) {
    const int64_t token = i / packs, column = (i - token * packs) * N, row = row_of(token);
    Pack<T, N> pack{}, place{};
    if (positions != nullptr) place = load_pack<N>(positions + token % length * width + column);
    if (row >= 0) pack = load_pack<N>(table + row * width + column);
    if (positions != nullptr) {
#pragma unroll
      for (int j = 0; j < N; ++j) pack.v[j] = narrow<T>(pack.wide(j) + place.wide(j));
    }
    store_pack(x + i * N, pack);
  }
}

template <class T>
std::unique_ptr<Kernel> embedding(const OpView& view) {
  const Shape tokens = view.read(0).shape, table = view.read(1).shape;
  const int64_t width = table.last(), count = tokens.count(), length = tokens.last();
  const TokenRow row_of = token_row(view, table);
  view.expect_count(view.write(0), count * width);
  const T *rows = view.in<T>(1), *positions = view.reads() > 2 ? view.in<T>(2) : nullptr;
  if (positions != nullptr) {
    const Shape shape = view.read(2).shape;
    view.expect(!row_of.split, "positions are added by each rank");
    view.expect(shape.rows() >= length && shape.last() == width,
                "positions " + shape_text(shape) + " for tokens " + shape_text(tokens));
  }
  T* x = view.out<T>(0);
  const bool packed = rows_aligned(width, rows, positions, x);
  return kernel_of([=, blocks = blocks_for(count * width / (packed ? kPack<T> : 1), kThreads)](cudaStream_t stream) {
    launch(packed ? gather_rows<T, kPack<T>> : gather_rows<T, 1>, blocks, kThreads, 0, stream, row_of, rows, positions,
           x, count, length, width);
  });
}

std::unique_ptr<Kernel> make_embedding(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return embedding<T>(view); });
}

const KernelFamily kFamily = {{"embedding", make_embedding}};

}  // namespace
}  // namespace prun::cuda
