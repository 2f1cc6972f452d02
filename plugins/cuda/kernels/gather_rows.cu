// gather_rows and gather_rows_grad: rows by ids, x [outer, rows, inner], ids [outer, n], y [outer, n, inner].
//
// An id outside the tensor yields zeros: data are checked before a run. The gradient of a row adds its ids' rows in
// their order. With many ids they are first sorted by their rows (ranks.cuh), as in embedding_grad.cu.
#include "block.cuh"
#include "launch.h"
#include "ranks.cuh"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kFewIds = 16;  // per sample; each element of a row's gradient compares them all
// Elements of rows that are not worth a sort: its lists have some 72 bytes a row.
constexpr int64_t kNarrowRows = 128;

struct Rows {
  int64_t outer = 1, n, rows, inner = 1;
  Rows(const OpView& view, const Tensor& ids, const Tensor& x, const Tensor& y) {
    view.expect(ids.shape.rank() > 0 && x.shape.rank() >= ids.shape.rank(), shape_text(x.shape));
    const size_t shared = ids.shape.rank() - 1;
    for (size_t i = 0; i < shared; i++) outer *= ids.shape[i];
    n = ids.shape.last();
    rows = x.shape[shared];
    for (size_t i = shared + 1; i < x.shape.rank(); i++) inner *= x.shape[i];
    view.expect_count(x, outer * rows * inner);
    view.expect_count(y, outer * n * inner);
  }
  // Returns whether the gradient sorts the ids.
  bool sorts() const { return n > kFewIds && inner >= kNarrowRows && std::max(n, rows) * outer <= INT32_MAX; }
};

template <class Word>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    gather_words(const Word* x, const int32_t* ids, Word* y, Rows at) {
  for (int64_t i = first_item(); i < at.outer * at.n * at.inner; i += item_stride()) {
    const int64_t row = i / at.inner, id = ids[row];
    y[i] = id >= 0 && id < at.rows ? x[(row / at.n * at.rows + id) * at.inner + i - row * at.inner] : Word{};
  }
}

template <class Word>
std::unique_ptr<Kernel> gather_by(const OpView& view, Rows at, int64_t bytes) {
  at.inner = at.inner * bytes / static_cast<int64_t>(sizeof(Word));
  return kernel_of([=, x = static_cast<const Word*>(view.read(0).ptr), ids = view.in<int32_t>(1),
                    y = static_cast<Word*>(view.write(0).ptr),
                    blocks = blocks_for(at.outer * at.n * at.inner, kThreads)](cudaStream_t stream) {
    launch(gather_words<Word>, blocks, kThreads, 0, stream, x, ids, y, at);
  });
}

std::unique_ptr<Kernel> make_gather(const OpView& view) {
  const Tensor x = view.read(0), y = view.write(0);
  const Rows at(view, view.read(1), x, y);
  view.expect(x.dtype == y.dtype, "what it writes has another type");
  const int64_t bytes = dtype_bytes(x.dtype);
  if (at.inner * bytes % 16 == 0 && aligned(static_cast<const char*>(x.ptr), static_cast<const char*>(y.ptr)))
    return gather_by<uint4>(view, at, bytes);
  if (bytes == 8) return gather_by<uint64_t>(view, at, bytes);
  if (bytes == 4) return gather_by<uint32_t>(view, at, bytes);
  if (bytes == 2) return gather_by<uint16_t>(view, at, bytes);
  return gather_by<uint8_t>(view, at, bytes);
}

template <class T>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    scatter_elements(const int32_t* ids, const T* dy, T* dx, Rows at) {
  for (int64_t i = first_item(); i < at.outer * at.rows * at.inner; i += item_stride()) {
    const int64_t place = i / at.inner, column = i - place * at.inner, outer = place / at.rows,
                  row = place - outer * at.rows;
    Wide<T> sum = 0;
    for (int64_t j = outer * at.n; j < (outer + 1) * at.n; j++)
      if (ids[j] == row) sum += widen(dy[j * at.inner + column]);
    dx[i] = narrow<T>(sum);
  }
}

// Returns an id's row among those of all samples; -1 = it is outside.
struct RowOf {
  const int32_t* ids;
  int64_t n, rows;
  __device__ int32_t operator()(int64_t i) const {
    const int64_t id = ids[i];
    return id < 0 || id >= rows ? -1 : static_cast<int32_t>(i / n * rows + id);
  }
};

// The rows' ids, sorted by rows: run r has counts[r] ids from starts[r] on.
struct Runs {
  int32_t *used, *starts, *counts, *list;
};

// Gives each run a place in the list. Its place depends on the order of atomics, its content does not.
__global__ void __launch_bounds__(kThreads) place_runs(Chunks chunks, int32_t* in_chunks, Runs runs) {
  for (int64_t row = first_item(); row < chunks.buckets; row += item_stride()) {
    const int32_t count = begin_chunks(chunks, in_chunks, row);
    runs.counts[row] = count;
    runs.starts[row] = count > 0 ? atomicAdd(runs.used, count) : 0;
  }
}

struct PutInRun {
  Runs runs;
  __device__ void operator()(int64_t id, int32_t row, int32_t rank) const {
    runs.list[runs.starts[row] + rank] = static_cast<int32_t>(id);
  }
};

// Adds N neighbouring elements of a run's rows.
template <class T, int N>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks) add_runs(Runs runs, const T* dy, T* dx, Rows at) {
  const int64_t packs = at.inner / N;
  for (int64_t i = first_item(); i < at.outer * at.rows * packs; i += item_stride()) {
    const int64_t row = i / packs, column = (i - row * packs) * N;
    const int32_t first = runs.starts[row], count = runs.counts[row];
    float sum[N] = {};
#pragma unroll 4
    for (int32_t k = 0; k < count; ++k) {
      const auto pack = load_pack<N>(dy + runs.list[first + k] * at.inner + column);
#pragma unroll
      for (int n = 0; n < N; ++n) sum[n] += pack.wide(n);
    }
    store_pack(dx + i * N, narrowed<T, N>(sum));
  }
}

// The parts of the op's scratch.
struct Parts {
  Chunks chunks;
  int64_t counts, rows, list;

  explicit Parts(const Rows& at)
      : chunks(at.outer * at.n, at.outer * at.rows),
        counts(static_cast<int64_t>(chunks.bytes() / sizeof(int32_t))),
        rows(at.outer * at.rows),
        list(at.outer * at.n) {}
  size_t bytes() const { return static_cast<size_t>(1 + counts + 2 * rows + list) * sizeof(int32_t); }
  Runs in(void* scratch) const {
    int32_t* const at = static_cast<int32_t*>(scratch);
    return {at, at + 1, at + 1 + rows, at + 1 + 2 * rows};
  }
};

template <class T>
std::unique_ptr<Kernel> scattered(const OpView& view) {
  const Rows at(view, view.read(0), view.write(0), view.read(1));
  const int32_t* ids = view.in<int32_t>(0);
  const T* dy = view.in<T>(1);
  T* dx = view.out<T>(0);
  const int64_t elements = at.outer * at.rows * at.inner;
  if (!at.sorts())
    return kernel_of([=, blocks = blocks_for(elements, kThreads)](cudaStream_t stream) {
      launch(scatter_elements<T>, blocks, kThreads, 0, stream, ids, dy, dx, at);
    });
  const Parts parts(at);
  const Scratch memory = scratch(view, parts.bytes());
  const bool packed = rows_aligned(at.inner, dy, dx);
  return kernel_of([=, runs = parts.in(memory.data), keep = memory.owned](cudaStream_t stream) {
    const RowOf row_of{ids, at.n, at.rows};
    int32_t* in_chunks = runs.list + parts.list;
    check(cudaMemsetAsync(runs.used, 0, sizeof *runs.used, stream), "cudaMemsetAsync");
    count_in_chunks(row_of, parts.chunks, in_chunks, stream);
    launch(place_runs, blocks_for(parts.rows, kThreads), kThreads, 0, stream, parts.chunks, in_chunks, runs);
    rank_in_chunks(row_of, PutInRun{runs}, parts.chunks, in_chunks, stream);
    launch(packed ? add_runs<T, kPack<T>> : add_runs<T, 1>, blocks_for(elements / (packed ? kPack<T> : 1), kThreads),
           kThreads, 0, stream, runs, dy, dx, at);
  });
}

std::unique_ptr<Kernel> make_scatter(const OpView& view) {
  return with_float(view.write(0).dtype, [&]<class T>() { return scattered<T>(view); });
}

size_t workspace(const OpView& view) {
  const Rows at(view, view.read(0), view.write(0), view.read(1));
  return at.sorts() ? Parts(at).bytes() : 0;
}

const KernelFamily kFamily = {{"gather_rows", make_gather, nullptr, takes_any},
                              {"gather_rows_grad", make_scatter, workspace}};

}  // namespace
}  // namespace prun::cuda
