// embedding_grad: each row of the table receives the sum of its tokens' gradients, added in token order; other rows are
// 0.
//
// Tokens are first sorted by their rows (ranks.cuh), so that each row of the table has a run of tokens in their order.
// The place of a run in the list depends on the order of atomics; its content does not, so results are bitwise
// identical in every run.
//
// A warp adds a slice of columns of one run, in a software pipeline:
//
//      token ids    | load ids 0 | load ids 1                     | load ids 2                     | ..
//      rows of dy   |            | load kRows rows by ids 0, add  | load kRows rows by ids 1, add  | ..
//
// Word frequencies follow Zipf's law, so a few runs have thousands of tokens: their slices are narrower and have more
// loads in flight, and they are added first.
#include "block.cuh"
#include "cuda/device/context.h"
#include "embedding.h"
#include "launch.h"
#include "ranks.cuh"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerMultiprocessor = 2;  // 128 registers for the loads in flight
constexpr int kWaves = 4;                                    // blocks in the grid per resident block
constexpr int kAhead = 16;                                   // rows that a lane loads before it adds them
constexpr int kAheadInLong = 48;                             // rows of a long run that a lane loads, one column each
// Lengths of the longest run that is too short for kAhead, and of the longest that is not long.
constexpr int kRare = 4, kLong = 64;

// A row of the table that has tokens, and its run in the list.
struct Touched {
  int32_t row, first, count;
};

// The parts of the op's scratch, in this order.
struct Lists {
  unsigned long long* used;  // [0]: short runs in the high half, tokens in the low half; [1]: long runs
  int32_t* counts;           // see ranks.cuh
  int32_t* starts;           // first token of each row of the table
  int32_t* tokens;           // sorted
  Touched* touched;          // [capacity]: short runs from the front, long ones from the back
  int64_t capacity;
};

__host__ __device__ int64_t rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

struct Sizes {
  Chunks chunks;
  int64_t capacity;                         // number of rows that the tokens may touch
  int64_t counts, starts, tokens, touched;  // bytes

  explicit Sizes(int64_t count, int64_t vocab)
      : chunks(count, vocab),
        capacity(std::min(vocab, count)),
        counts(rounded(static_cast<int64_t>(chunks.bytes()))),
        starts(rounded(vocab * static_cast<int64_t>(sizeof(int32_t)))),
        tokens(rounded(count * static_cast<int64_t>(sizeof(int32_t)))),
        touched(rounded(capacity * static_cast<int64_t>(sizeof(Touched)))) {}
  size_t bytes() const { return static_cast<size_t>(rounded(1) + counts + starts + tokens + touched); }
  Lists in(void* scratch) const {
    char* at = static_cast<char*>(scratch);
    Lists lists;
    lists.used = reinterpret_cast<unsigned long long*>(at);
    lists.counts = reinterpret_cast<int32_t*>(at += rounded(1));
    lists.starts = reinterpret_cast<int32_t*>(at += counts);
    lists.tokens = reinterpret_cast<int32_t*>(at += starts);
    lists.touched = reinterpret_cast<Touched*>(at + tokens);
    lists.capacity = capacity;
    return lists;
  }
};

// Allocates each row's place in the lists, for the rows of a warp together.
__global__ void __launch_bounds__(kThreads) make_room(Chunks chunks, Lists lists) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t base = first_item() - lane; base < chunks.buckets; base += item_stride()) {
    const int64_t row = base + lane;
    const int32_t count = row < chunks.buckets ? begin_chunks(chunks, lists.counts, row) : 0;
    const bool is_short = count > 0 && count <= kLong;
    const unsigned long long wanted = (is_short ? 1ull << 32 : 0ull) | static_cast<unsigned>(count);
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
    const int64_t place = is_short ? static_cast<int64_t>(first >> 32)
                                   : lists.capacity - 1 - static_cast<int64_t>(atomicAdd(lists.used + 1, 1ull));
    lists.touched[place] = {static_cast<int32_t>(row), start, count};
  }
}

struct PutInList {
  const int32_t* starts;
  int32_t* list;
  __device__ void operator()(int64_t token, int32_t row, int32_t rank) const {
    list[starts[row] + rank] = static_cast<int32_t>(token);
  }
};

// Adds N columns of a run, kRows tokens at a time. All lanes of a warp must call it with the same run.
//
// Loads are unconditional, because nvcc waits for each conditional load: a lane without columns loads the first ones,
// and after the run's end the last token is loaded again.
template <int N, int kRows, class T>
__device__ __forceinline__ void add_run(const Touched& run, const int32_t* all_tokens, const T* dy, float* dtable,
                                        int64_t width, int64_t column) {
  constexpr int kIds = (kRows + kWarp - 1) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool inside = column < width;
  const T* from = dy + (inside ? column : 0);
  const int32_t* tokens = all_tokens + run.first;
  const auto load_ids = [&](int32_t first, int32_t(&ids)[kIds]) {
#pragma unroll
    for (int i = 0; i < kIds; ++i) ids[i] = tokens[min(first + i * kWarp + lane, run.count - 1)];
  };
  int32_t ids[kIds];
  load_ids(0, ids);
  float sum[N] = {};
#pragma unroll 1
  for (int32_t k = 0; k < run.count; k += kRows) {
    int32_t next[kIds];
    load_ids(k + kRows, next);
    Pack<T, N> ahead[kRows];
#pragma unroll
    for (int a = 0; a < kRows; ++a)
      ahead[a] = load_pack<N>(from + __shfl_sync(kAllLanes, ids[a / kWarp], a % kWarp) * width);
#pragma unroll
    for (int a = 0; a < kRows; ++a) {
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += k + a < run.count ? ahead[a].wide(j) : 0.0f;  // +0 changes no bit
    }
#pragma unroll
    for (int i = 0; i < kIds; ++i) ids[i] = next[i];
  }
  if (inside) store(dtable + run.row * width + column, sum);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    add_rows(Lists lists, const T* dy, float* dtable, int64_t width) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = first_item() / kWarp, stride = item_stride() / kWarp;
  const int64_t narrow_slices = (width + kWarp - 1) / kWarp, slices = (width + kWarp * N - 1) / (kWarp * N);
  const int64_t long_units = static_cast<int64_t>(lists.used[1]) * narrow_slices;
  const int64_t units = long_units + static_cast<int64_t>(lists.used[0] >> 32) * slices;
  for (int64_t unit = first; unit < units; unit += stride) {
    if (unit < long_units) {
      const Touched run = lists.touched[lists.capacity - 1 - unit / narrow_slices];
      add_run<1, kAheadInLong>(run, lists.tokens, dy, dtable, width, unit % narrow_slices * kWarp + lane);
    } else {
      const int64_t place = unit - long_units;
      const int64_t column = (place % slices * kWarp + lane) * N;
      const Touched run = lists.touched[place / slices];
      if (run.count > kRare)
        add_run<N, kAhead>(run, lists.tokens, dy, dtable, width, column);
      else
        add_run<N, kRare>(run, lists.tokens, dy, dtable, width, column);
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
  const int64_t warps = std::min(count, table.rows()) * ((width + kWarp - 1) / kWarp);
  const unsigned grid =
      blocks_for(warps * kWarp, kThreads, view.context().multiprocessors() * kBlocksPerMultiprocessor * kWaves);
  return kernel_of([=, lists = sizes.in(room.data), rows = table.rows(),
                    positions = dpositions != nullptr ? places.rows() : 0,
                    at = TokenPositions{{}, length, length, 0, length, 0},
                    batch = length == 0 ? 0 : count / length](cudaStream_t stream) {
    check(cudaMemsetAsync(dtable, 0, static_cast<size_t>(rows * width) * sizeof(float), stream), "cudaMemsetAsync");
    check(cudaMemsetAsync(lists.used, 0, 2 * sizeof(*lists.used), stream), "cudaMemsetAsync");
    count_in_chunks(row_of, sizes.chunks, lists.counts, stream);
    launch(make_room, blocks_for(rows, kThreads), kThreads, 0, stream, sizes.chunks, lists);
    rank_in_chunks(row_of, PutInList{lists.starts, lists.tokens}, sizes.chunks, lists.counts, stream);
    launch(packed ? add_rows<T, kColumns> : add_rows<T, 1>, grid, kThreads, 0, stream, lists, dy, dtable, width);
    if (dpositions != nullptr) sum_over_samples(dy, dpositions, batch, positions, width, at, stream);
  });
}

std::unique_ptr<Kernel> make_embedding_grad(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return embedding_grad<T>(view); });
}

const KernelFamily kFamily = {
    {"embedding_grad", make_embedding_grad, [](const OpView& view) { return sizes_of(view).bytes(); }},
};

}  // namespace
}  // namespace prun::cuda
