// Views that the compiler could not make an alias: copies between strided layouts. One thread copies one element, or
// one 16-byte word if the last dims allow it.
#include "block.cuh"
#include "launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostDims = 8;

// y[Σ i·to] = x[Σ i·from]; strides in words. Element `i` of the walk counts through the dims, the last one fastest.
struct Walk {
  int dims = 0;
  int64_t size[kMostDims], from[kMostDims], to[kMostDims];

  void add(int64_t n, int64_t step_from, int64_t step_to) {
    if (n == 1) return;
    if (dims > 0 && from[dims - 1] == step_from * n && to[dims - 1] == step_to * n) {
      size[dims - 1] *= n, from[dims - 1] = step_from, to[dims - 1] = step_to;
      return;
    }
    size[dims] = n, from[dims] = step_from, to[dims] = step_to;
    dims++;
  }
  int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < dims; i++) n *= size[i];
    return n;
  }
  // Returns whether all strides and the run are multiples of `words`, and divides them.
  bool widen(int64_t words) {
    if (dims == 0 || from[dims - 1] != 1 || to[dims - 1] != 1 || size[dims - 1] % words != 0) return false;
    for (int i = 0; i + 1 < dims; i++)
      if (from[i] % words != 0 || to[i] % words != 0) return false;
    for (int i = 0; i + 1 < dims; i++) from[i] /= words, to[i] /= words;
    size[dims - 1] /= words;
    return true;
  }
};

__device__ __forceinline__ void offsets_of(const Walk& walk, int64_t i, int64_t& from, int64_t& to) {
  from = to = 0;
  for (int d = walk.dims - 1; d >= 0; d--) {
    const int64_t rest = i / walk.size[d], place = i - rest * walk.size[d];
    from += place * walk.from[d], to += place * walk.to[d];
    i = rest;
  }
}

template <class Word>
__global__ void copy_strided(const Word* from, Word* to, Walk walk, int64_t count) {
  for (int64_t i = first_item(); i < count; i += item_stride()) {
    int64_t x, y;
    offsets_of(walk, i, x, y);
    to[y] = from[x];
  }
}

template <class Word>
std::unique_ptr<Kernel> copy_by(const void* from, void* to, const Walk& walk) {
  return kernel_of([walk, from = static_cast<const Word*>(from), to = static_cast<Word*>(to), count = walk.count(),
                    blocks = blocks_for(walk.count(), kThreads)](cudaStream_t stream) {
    launch(copy_strided<Word>, blocks, kThreads, 0, stream, from, to, walk, count);
  });
}

// A tile of a transposition, [kTile][kTile] words; its rows are padded so that the words of a column are in different
// banks of shared memory.
constexpr int kTile = 64, kTileRows = kThreads / kTile;
constexpr int64_t kLeastTransposed = 16;  // of both dims

// Transposes the last dim with the dim whose elements are neighbours in `from`; `rest` has the others.
struct Transposition {
  Walk rest;
  int64_t rows = 0, columns = 0;       // sizes of the dims that are neighbours in `to`, in `from`
  int64_t from_step = 0, to_step = 0;  // strides in `from` along rows, in `to` along columns
  int64_t row_tiles = 0, column_tiles = 0, batch = 1;

  explicit Transposition(const Walk& walk) {
    const int last = walk.dims - 1;
    int turned = -1;
    for (int d = 0; d < last; d++)
      if (walk.from[d] == 1) turned = d;
    if (turned < 0 || walk.to[last] != 1 || walk.from[last] == 0) return;
    rows = walk.size[last], columns = walk.size[turned];
    from_step = walk.from[last], to_step = walk.to[turned];
    for (int d = 0; d < last; d++)
      if (d != turned) rest.add(walk.size[d], walk.from[d], walk.to[d]);
    row_tiles = (rows + kTile - 1) / kTile, column_tiles = (columns + kTile - 1) / kTile, batch = rest.count();
  }
  bool worthwhile() const { return rows >= kLeastTransposed && columns >= kLeastTransposed; }
};

template <class Word>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    transpose_tiles(const Word* from, Word* to, Transposition t) {
  constexpr int kPadding = sizeof(Word) < 4 ? static_cast<int>(4 / sizeof(Word)) : 1;
  __shared__ Word tile[kTile][kTile + kPadding];
  const int across = static_cast<int>(threadIdx.x) % kTile, down = static_cast<int>(threadIdx.x) / kTile;
  const int64_t tiles = t.row_tiles * t.column_tiles;
  for (int64_t i = blockIdx.x; i < tiles * t.batch; i += gridDim.x) {
    const int64_t entry = i / tiles, rest = i - entry * tiles, row_tile = rest / t.column_tiles;
    const int64_t row = row_tile * kTile, column = (rest - row_tile * t.column_tiles) * kTile;
    int64_t x, y;
    offsets_of(t.rest, entry, x, y);
#pragma unroll 8
    for (int r = 0; r < kTile; r += kTileRows)
      if (row + r + down < t.rows && column + across < t.columns)
        tile[r + down][across] = from[x + (row + r + down) * t.from_step + column + across];
    __syncthreads();
#pragma unroll 8
    for (int c = 0; c < kTile; c += kTileRows)
      if (column + c + down < t.columns && row + across < t.rows)
        to[y + (column + c + down) * t.to_step + row + across] = tile[across][c + down];
    __syncthreads();
  }
}

template <class Word>
std::unique_ptr<Kernel> transpose_by(const void* from, void* to, const Transposition& t) {
  const int64_t tiles = t.row_tiles * t.column_tiles * t.batch;
  return kernel_of([t, from = static_cast<const Word*>(from), to = static_cast<Word*>(to),
                    blocks = blocks_for(tiles, 1, INT32_MAX)](cudaStream_t stream) {
    launch(transpose_tiles<Word>, blocks, kThreads, 0, stream, from, to, t);
  });
}

void expect_same_dtype(const OpView& view, size_t read) {
  view.expect(view.write(0).dtype == view.read(read).dtype, "what it writes has another type");
}

// `from` and `to` are offsets in elements.
std::unique_ptr<Kernel> copies(const OpView& view, size_t read, Walk walk, int64_t from, int64_t to) {
  expect_same_dtype(view, read);
  const int64_t bytes = dtype_bytes(view.read(read).dtype);
  const char* x = static_cast<const char*>(view.read(read).ptr) + from * bytes;
  char* y = static_cast<char*>(view.write(0).ptr) + to * bytes;
  const uint64_t both = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y);
  if (both % 16 == 0 && walk.widen(16 / bytes)) return copy_by<uint4>(x, y, walk);
  const auto by = [&]<class Word>() {
    const Transposition t(walk);
    return t.worthwhile() ? transpose_by<Word>(x, y, t) : copy_by<Word>(x, y, walk);
  };
  if (bytes == 8) return by.template operator()<uint64_t>();
  if (bytes == 4) return by.template operator()<uint32_t>();
  return by.template operator()<uint16_t>();
}

struct Strides {
  int64_t of[kMostDims];
  Strides(const OpView& view, const Shape& shape) {
    view.expect(shape.rank() <= kMostDims, shape_text(shape) + " has more than 8 dims");
    int64_t stride = 1;
    for (size_t i = shape.rank(); i-- > 0;) of[i] = stride, stride *= shape[i];
  }
};

std::unique_ptr<Kernel> make_reshape(const OpView& view) {
  const Tensor x = view.read(0), y = view.write(0);
  view.expect_count(y, x.count());
  if (x.ptr == y.ptr) return kernel_of([](cudaStream_t) {});
  Walk walk;
  walk.add(x.count(), 1, 1);
  return copies(view, 0, walk, 0, 0);
}

std::unique_ptr<Kernel> make_permute(const OpView& view) {
  const Tensor x = view.read(0), y = view.write(0);
  const std::vector<double> order = view.numbers("order");
  view.expect(order.size() == x.shape.rank() && x.shape.rank() == y.shape.rank(), shape_text(y.shape));
  const Strides from(view, x.shape), to(view, y.shape);
  Walk walk;
  for (size_t i = 0; i < order.size(); i++) {
    const auto dim = static_cast<size_t>(order[i]);
    view.expect(dim < x.shape.rank() && x.shape[dim] == y.shape[i], shape_text(y.shape));
    walk.add(y.shape[i], from.of[dim], to.of[i]);
  }
  return copies(view, 0, walk, 0, 0);
}

std::unique_ptr<Kernel> make_expand(const OpView& view) {
  const Tensor x = view.read(0), y = view.write(0);
  view.expect(x.shape.rank() == y.shape.rank(), shape_text(y.shape));
  const Strides from(view, x.shape), to(view, y.shape);
  Walk walk;
  for (size_t i = 0; i < y.shape.rank(); i++) walk.add(y.shape[i], x.shape[i] == y.shape[i] ? from.of[i] : 0, to.of[i]);
  return copies(view, 0, walk, 0, 0);
}

// A tensor as [outer, size, inner] around the op's dim.
struct Around {
  int64_t outer = 1, size = 1, inner = 1;
  Around(const OpView& view, const Shape& shape) {
    const int64_t dim = view.integer("dim");
    view.expect(dim >= 0 && dim < static_cast<int64_t>(shape.rank()), shape_text(shape));
    for (int64_t i = 0; i < static_cast<int64_t>(shape.rank()); i++)
      (i < dim ? outer : i == dim ? size : inner) *= shape[static_cast<size_t>(i)];
  }
  int64_t row() const { return size * inner; }
};

std::unique_ptr<Kernel> make_slice(const OpView& view) {
  const Around x(view, view.read(0).shape), y(view, view.write(0).shape);
  const int64_t start = view.integer("start");
  view.expect(x.outer == y.outer && x.inner == y.inner && start >= 0 && start + y.size <= x.size,
              shape_text(view.write(0).shape));
  Walk walk;
  walk.add(x.outer, x.row(), y.row());
  walk.add(y.row(), 1, 1);
  return copies(view, 0, walk, start * x.inner, 0);
}

template <class T>
__global__ void pad_rows(const T* x, T* y, T value, int64_t outer, int64_t own, int64_t row, int64_t before) {
  for (int64_t i = first_item(); i < outer * row; i += item_stride()) {
    const int64_t at = i / row, place = i - at * row - before;
    y[i] = place >= 0 && place < own ? x[at * own + place] : value;
  }
}

template <class T>
std::unique_ptr<Kernel> padded(const OpView& view) {
  const Around x(view, view.read(0).shape), y(view, view.write(0).shape);
  const int64_t before = view.integer("before");
  view.expect(x.outer == y.outer && x.inner == y.inner && before >= 0 && before + x.size <= y.size,
              shape_text(view.write(0).shape));
  T value;
  if constexpr (std::is_same_v<T, bf16>)
    value = __float2bfloat16_rn(static_cast<float>(view.number("value")));
  else
    value = static_cast<T>(view.number("value"));
  return kernel_of([=, from = view.in<T>(0), to = view.out<T>(0),
                    blocks = blocks_for(y.outer * y.row(), kThreads)](cudaStream_t stream) {
    launch(pad_rows<T>, blocks, kThreads, 0, stream, from, to, value, y.outer, x.row(), y.row(), before * y.inner);
  });
}

std::unique_ptr<Kernel> make_pad(const OpView& view) {
  return with_number(view.write(0).dtype, [&]<class T>() { return padded<T>(view); });
}

std::unique_ptr<Kernel> make_concat(const OpView& view) {
  const Around y(view, view.write(0).shape);
  std::vector<std::unique_ptr<Kernel>> parts;
  int64_t done = 0;
  for (size_t i = 0; i < view.reads(); i++) {
    const Around x(view, view.read(i).shape);
    view.expect(x.outer == y.outer && x.inner == y.inner, shape_text(view.read(i).shape));
    Walk walk;
    walk.add(x.outer, x.row(), y.row());
    walk.add(x.row(), 1, 1);
    parts.push_back(copies(view, i, walk, 0, done * y.inner));
    done += x.size;
  }
  view.expect(done == y.size, shape_text(view.write(0).shape));
  return kernel_of([parts = std::move(parts)](cudaStream_t stream) {
    for (const std::unique_ptr<Kernel>& part : parts) part->run(stream);
  });
}

const KernelFamily kFamily = {
    {"reshape", make_reshape, nullptr, takes_any}, {"permute", make_permute, nullptr, takes_any},
    {"slice", make_slice, nullptr, takes_any},     {"pad", make_pad, nullptr, takes_any},
    {"concat", make_concat, nullptr, takes_any},   {"expand", make_expand, nullptr, takes_any}};

}  // namespace
}  // namespace prun::cuda
