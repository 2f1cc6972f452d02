// embedding_grad: the sum of the tokens' rows for each row of the table, added in token order, and zeros in the others.
//
// Tokens are sorted by their rows first (ranks.cuh), so that each row of the table has a run of tokens, in their order.
// Where in the list a run lies is up to who comes first, what it holds is not: the same bits in every run.
#include "block.cuh"
#include "context.h"
#include "embedding.h"
#include "launch.h"
#include "positions.h"
#include "ranks.cuh"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerMultiprocessor = 8;
constexpr int kAhead = 16;  // rows that a thread loads before it adds them: frequent tokens have thousands

// A row of the table that tokens have, and their run in the list.
struct Touched {
  int32_t row, first, count;
};

// What the op's scratch holds, in this order.
struct Lists {
  unsigned long long* used;  // of the lists: touched rows in the upper half, tokens in the lower one
  int32_t* counts;           // of ranks.cuh
  int32_t* starts;           // of each row of the table
  int32_t* tokens;           // sorted
  Touched* touched;
};

__host__ __device__ int64_t rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

struct Sizes {
  Chunks chunks;
  int64_t counts, starts, tokens, touched;  // bytes

  explicit Sizes(int64_t count, int64_t vocab)
      : chunks(count, vocab),
        counts(rounded(static_cast<int64_t>(chunks.bytes()))),
        starts(rounded(vocab * static_cast<int64_t>(sizeof(int32_t)))),
        tokens(rounded(count * static_cast<int64_t>(sizeof(int32_t)))),
        touched(rounded(std::min(vocab, count) * static_cast<int64_t>(sizeof(Touched)))) {}
  size_t bytes() const { return static_cast<size_t>(rounded(1) + counts + starts + tokens + touched); }
  Lists in(void* scratch) const {
    char* at = static_cast<char*>(scratch);
    Lists lists;
    lists.used = reinterpret_cast<unsigned long long*>(at);
    lists.counts = reinterpret_cast<int32_t*>(at += rounded(1));
    lists.starts = reinterpret_cast<int32_t*>(at += counts);
    lists.tokens = reinterpret_cast<int32_t*>(at += starts);
    lists.touched = reinterpret_cast<Touched*>(at + tokens);
    return lists;
  }
};

// Room in the lists for each row, a warp's rows at once.
__global__ void __launch_bounds__(kThreads) make_room(Chunks chunks, Lists lists) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t base = first_item() - lane; base < chunks.buckets; base += item_stride()) {
    const int64_t row = base + lane;
    const int32_t count = row < chunks.buckets ? begin_chunks(chunks, lists.counts, row) : 0;
    const unsigned long long wanted = count > 0 ? 1ull << 32 | static_cast<unsigned>(count) : 0;
    unsigned long long up_to = wanted;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const unsigned long long below = __shfl_up_sync(kAllLanes, up_to, distance);
      if (lane >= distance) up_to += below;
    }
    unsigned long long first = 0;
    if (lane == kWarp - 1) first = atomicAdd(lists.used, up_to);
    first = __shfl_sync(kAllLanes, first, kWarp - 1) + up_to - wanted;
    if (count == 0) continue;
    const int32_t start = static_cast<int32_t>(first & 0xffffffffu);
    lists.starts[row] = start;
    lists.touched[first >> 32] = {static_cast<int32_t>(row), start, count};
  }
}

struct PutInList {
  const int32_t* starts;
  int32_t* list;
  __device__ void operator()(int64_t token, int32_t row, int32_t rank) const {
    list[starts[row] + rank] = static_cast<int32_t>(token);
  }
};

// A block for each touched row; a thread adds N of its columns, token after token.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) add_rows(Lists lists, const T* dy, float* dtable, int64_t width) {
  const int64_t rows = static_cast<int64_t>(*lists.used >> 32);
  for (int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    const Touched row = lists.touched[i];
    const int32_t* tokens = lists.tokens + row.first;
    for (int64_t column = static_cast<int64_t>(threadIdx.x) * N; column < width; column += kThreads * N) {
      float sum[N] = {};
      int32_t k = 0;
      for (; k + kAhead <= row.count; k += kAhead) {
        Pack<T, N> ahead[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) ahead[a] = load_pack<N>(dy + tokens[k + a] * width + column);
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
#pragma unroll
          for (int j = 0; j < N; ++j) sum[j] += widen(ahead[a].v[j]);
        }
      }
      for (; k < row.count; ++k) {
        Wide<T> x[N];
        load(dy + tokens[k] * width + column, x);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += x[j];
      }
      store(dtable + row.row * width + column, sum);
    }
  }
}

Sizes sizes_of(const OpView& view) { return Sizes(view.read(0).count(), view.write(0).shape.rows()); }

template <class T>
std::unique_ptr<Kernel> embedding_grad(const OpView& view) {
  constexpr int kColumns = 4;
  const Shape tokens = view.read(0).shape, table = view.write(0).shape;
  const int64_t width = table.last(), count = tokens.count(), length = tokens.last();
  const TokenRow row_of = token_row(view, table);
  view.expect_count(view.read(1), count * width);
  float* dpositions = view.writes() > 1 ? view.out<float>(1) : nullptr;
  const Shape places = dpositions != nullptr ? view.write(1).shape : Shape{};
  view.expect(dpositions == nullptr || (places.rows() >= length && places.last() == width),
              "positions " + shape_text(places) + " for tokens " + shape_text(tokens));
  const T* dy = view.in<T>(1);
  float* dtable = view.out<float>(0);
  const bool packed = width % kColumns == 0 && aligned(dtable) && aligned(dy);
  const Sizes sizes = sizes_of(view);
  const Scratch room = scratch(view, sizes.bytes());
  const unsigned grid = static_cast<unsigned>(std::clamp<int64_t>(
      std::min(count, row_of.vocab), 1, view.context().multiprocessors() * kBlocksPerMultiprocessor));
  return kernel_of([=, lists = sizes.in(room.data), positions = dpositions != nullptr ? places.rows() : 0,
                    at = TokenPositions{0, 1, length, length, 0},
                    batch = length == 0 ? 0 : count / length](cudaStream_t stream) {
    check(cudaMemsetAsync(dtable, 0, static_cast<size_t>(row_of.vocab * width) * sizeof(float), stream),
          "cudaMemsetAsync");
    check(cudaMemsetAsync(lists.used, 0, sizeof(*lists.used), stream), "cudaMemsetAsync");
    count_in_chunks(row_of, sizes.chunks, lists.counts, stream);
    launch(make_room, blocks_for(row_of.vocab, kThreads), kThreads, 0, stream, sizes.chunks, lists);
    rank_in_chunks(row_of, PutInList{lists.starts, lists.tokens}, sizes.chunks, lists.counts, stream);
    launch(packed ? add_rows<T, kColumns> : add_rows<T, 1>, grid, kThreads, 0, stream, lists, dy, dtable, width);
    if (dpositions != nullptr) sum_over_samples(dy, dpositions, batch, positions, width, at, stream);
  });
}

std::unique_ptr<Kernel> make_embedding_grad(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return embedding_grad<T>(view); });
}

constexpr KernelEntry kEntries[] = {
    {"embedding_grad", make_embedding_grad, [](const OpView& view) { return sizes_of(view).bytes(); }},
};

}  // namespace

std::span<const KernelEntry> embedding_grad_kernels() { return kEntries; }

}  // namespace prun::cuda
