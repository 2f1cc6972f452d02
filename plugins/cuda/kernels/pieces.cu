// join_pieces, cut_pieces, take_piece, copy_kv and join_qkv: copies of blocks; only join_qkv rounds. take_slots: the
// numbers of slots in a rank's piece.
#include "block.cuh"
#include "launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

// Block (i, j) of outer × inner moves from i·from_outer + j·from_inner to i·to_outer + j·to_inner.
struct Move {
  int64_t outer, inner, size;
  int64_t from_outer, from_inner, to_outer, to_inner;
};

template <class Word>
__global__ void move_words(const Word* from, Word* to, Move m) {
  const int64_t words = m.outer * m.inner * m.size;
  for (int64_t i = first_item(); i < words; i += item_stride()) {
    const int64_t block = i / m.size, place = i - block * m.size;
    const int64_t outer = block / m.inner, inner = block - outer * m.inner;
    to[outer * m.to_outer + inner * m.to_inner + place] = from[outer * m.from_outer + inner * m.from_inner + place];
  }
}

template <class Word>
std::unique_ptr<Kernel> move_by(const void* from, void* to, Move m) {
  for (int64_t* bytes : {&m.size, &m.from_outer, &m.from_inner, &m.to_outer, &m.to_inner})
    *bytes /= static_cast<int64_t>(sizeof(Word));
  return kernel_of([m, from = static_cast<const Word*>(from), to = static_cast<Word*>(to),
                    blocks = blocks_for(m.outer * m.inner * m.size, kThreads)](cudaStream_t stream) {
    launch(move_words<Word>, blocks, kThreads, 0, stream, from, to, m);
  });
}

// Moves blocks in the widest words that offsets and sizes allow. All numbers of `m` except its counts are bytes.
std::unique_ptr<Kernel> move_blocks(const void* from, void* to, const Move& m) {
  const uint64_t all = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) |
                       static_cast<uint64_t>(m.size | m.from_outer | m.from_inner | m.to_outer | m.to_inner);
  if (all % 16 == 0) return move_by<uint4>(from, to, m);
  if (all % 8 == 0) return move_by<uint2>(from, to, m);
  if (all % 4 == 0) return move_by<uint32_t>(from, to, m);
  if (all % 2 == 0) return move_by<uint16_t>(from, to, m);
  return move_by<uint8_t>(from, to, m);
}

// The whole tensor as [outer, pieces, inner]; inner is in bytes.
struct Blocks {
  int64_t outer, pieces, inner;
};
Blocks blocks_of(const OpView& view, const Tensor& whole) {
  const int64_t pieces = view.integer("pieces", 1), dim = view.integer("dim");
  const bool known = pieces >= 1 && dim >= 0 && dim < static_cast<int64_t>(whole.shape.rank());
  const std::string pieces_text =
      std::to_string(pieces) + " pieces along dim " + std::to_string(dim) + " of " + shape_text(whole.shape);
  view.expect(known, pieces_text);
  const int64_t outer = Shape{whole.shape.dims.first(static_cast<size_t>(dim))}.count();
  view.expect(outer == 0 || whole.count() % (outer * pieces) == 0, pieces_text);
  return {outer, pieces, outer == 0 ? 0 : whole.bytes() / (outer * pieces)};
}

void expect_same_dtype(const OpView& view) {
  view.expect(view.write(0).dtype == view.read(0).dtype, "what it writes has another type");
}

template <bool kJoin>
std::unique_ptr<Kernel> make_moved(const OpView& view) {
  const Tensor x = view.read(0), y = view.write(0);
  view.expect_count(y, x.count());
  expect_same_dtype(view);
  const Blocks b = blocks_of(view, kJoin ? y : x);
  const int64_t whole_outer = b.pieces * b.inner, whole_inner = b.inner;  // strides in the whole tensor
  const int64_t apart_outer = b.inner, apart_inner = b.outer * b.inner;   // strides in the consecutive pieces
  return kJoin ? move_blocks(x.ptr, y.ptr,
                             {b.outer, b.pieces, b.inner, apart_outer, apart_inner, whole_outer, whole_inner})
               : move_blocks(x.ptr, y.ptr,
                             {b.outer, b.pieces, b.inner, whole_outer, whole_inner, apart_outer, apart_inner});
}

std::unique_ptr<Kernel> make_take(const OpView& view) {
  const Tensor x = view.read(0), y = view.write(0);
  const Blocks b = blocks_of(view, x);
  const int64_t index = view.share("axis").index;
  view.expect_count(y, x.count() / b.pieces);
  expect_same_dtype(view);
  view.expect(index < b.pieces, "piece " + std::to_string(index) + " of " + std::to_string(b.pieces));
  return move_blocks(static_cast<const char*>(x.ptr) + index * b.inner, y.ptr,
                     {b.outer, 1, b.inner, b.pieces * b.inner, 0, b.inner, 0});
}

__global__ void renumber_slots(const int32_t* x, int32_t* y, int64_t n, int64_t run, int64_t block, int64_t own) {
  for (int64_t i = first_item(); i < n; i += item_stride()) {
    const int64_t slot = x[i];
    const bool mine = slot >= 0 && slot % block / run == own;
    y[i] = mine ? static_cast<int32_t>(slot / block * run + slot % run) : -1;
  }
}

std::unique_ptr<Kernel> make_take_slots(const OpView& view) {
  const int64_t n = view.read(0).count(), run = view.integer("run"), block = run * view.integer("pieces"),
                own = view.share("axis").index;
  view.expect_count(view.write(0), n);
  return kernel_of([x = view.in<int32_t>(0), y = view.out<int32_t>(0), n, run, block, own](cudaStream_t stream) {
    launch(renumber_slots, blocks_for(n, kThreads), kThreads, 0, stream, x, y, n, run, block, own);
  });
}

// Makes copy_kv: kv is the end of each row of qkv.
std::unique_ptr<Kernel> make_copy_kv(const OpView& view) {
  const Tensor qkv = view.read(0), kv = view.write(0);
  expect_same_dtype(view);
  const int64_t rows = qkv.shape.rows(), wide = qkv.shape.last() * dtype_bytes(qkv.dtype),
                shared = kv.shape.last() * dtype_bytes(kv.dtype);
  view.expect(kv.shape.rows() == rows && shared < wide, shape_text(kv.shape) + " of " + shape_text(qkv.shape));
  return move_blocks(static_cast<const char*>(qkv.ptr) + wide - shared, kv.ptr, {rows, 1, shared, wide, 0, shared, 0});
}

// Joins rows of dq and of dkv, N elements at a time.
template <class T, int N>
__global__ void join_rows(const float* dq, const float* dkv, T* dqkv, int64_t rows, int64_t width, int64_t shared) {
  const int64_t packs = (width + shared) / N;
  for (int64_t i = first_item(); i < rows * packs; i += item_stride()) {
    const int64_t row = i / packs, column = (i - row * packs) * N;
    float x[N];
    load(column < width ? dq + row * width + column : dkv + row * shared + column - width, x);
    store<N, T>(dqkv + i * N, x);
  }
}

template <class T>
std::unique_ptr<Kernel> join_qkv(const OpView& view) {
  const Tensor x = view.read(0);
  const int64_t rows = x.shape.rows(), width = x.shape.last(), shared = view.read(1).shape.last();
  view.expect_count(view.read(1), rows * shared);
  view.expect_count(view.write(0), rows * (width + shared));
  const float *dq = view.in<float>(0), *dkv = view.in<float>(1);
  T* dqkv = view.out<T>(0);
  const bool packed = width % kPack<T> == 0 && shared % kPack<T> == 0 && aligned(dq, dkv) && aligned(dqkv);
  return kernel_of(
      [=, blocks = blocks_for(rows * (width + shared) / (packed ? kPack<T> : 1), kThreads)](cudaStream_t stream) {
        launch(packed ? join_rows<T, kPack<T>> : join_rows<T, 1>, blocks, kThreads, 0, stream, dq, dkv, dqkv, rows,
               width, shared);
      });
}

std::unique_ptr<Kernel> make_join_qkv(const OpView& view) {
  return with_float(view.write(0).dtype, [&]<class T>() { return join_qkv<T>(view); });
}

const KernelFamily kFamily = {
    {"join_pieces", make_moved<true>, nullptr, takes_any},
    {"cut_pieces", make_moved<false>, nullptr, takes_any},
    {"take_piece", make_take, nullptr, takes_any},
    {"take_slots", make_take_slots, nullptr, takes_any},
    {"copy_kv", make_copy_kv},
    {"join_qkv", make_join_qkv},
};

}  // namespace
}  // namespace prun::cuda
