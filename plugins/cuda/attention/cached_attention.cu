// cached_attention, which replaces attention in generation. It writes the rows' keys and values to the cache, then each
// query attends to the keys up to its position with the online softmax (Milakov and Gimelshein, "Online normalizer
// calculation for softmax", 2018). If queries are too few to fill the GPU, several blocks share the keys of one and a
// second kernel merges their results (Dao et al., "Flash-Decoding", 2023).
//
// A block has up to four queries that attend to one head of keys: query heads of its group and, in a prompt, following
// tokens. So a row of the cache is loaded once for all of them.
//
// In bf16 a chunk of a long prompt runs on tensor cores, by the kernel of the op attend over the cache: a row's span
// ends at its position.
//
// Surprising fact: the number of blocks that share a query depends on the capacity of the cache, because only the
// device stores the number of tokens in it. The launch is therefore the same for every token, and a graph of it can be
// replayed.
#include <cmath>
#include <limits>

#include "attend.h"
#include "cuda/kernels/block.cuh"
#include "cuda/kernels/launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 192, kWarps = kThreads / kWarp;  // two blocks leave a thread 168 registers, four 80
constexpr int kQueries = 4;                               // per block, at most
constexpr float kNone = -std::numeric_limits<float>::infinity();

constexpr int64_t kMostHead = 256;  // elements: eight per lane

struct Cache {
  int64_t batch, length, context, heads, kv_heads, size, splits = 1;
  explicit Cache(const OpView& view)
      : batch(view.read(0).shape[0]),
        length(view.read(0).shape[1]),
        context(view.write(1).shape[1]),
        heads(view.integer("heads", 1)),
        kv_heads(view.integer("kv_heads", heads)),
        size(view.read(0).shape.last() / (heads + 2 * kv_heads)) {
    constexpr int64_t kLeastKeys = 256, kBlocks = 512;  // keys per block; blocks that fill the largest GPU twice
    while (splits * 2 * kLeastKeys <= context && blocks(kQueries) * splits * 2 <= kBlocks) splits *= 2;
  }
  // Queries that attend to the same head of keys, and the blocks for them.
  __host__ __device__ int64_t alike() const { return length * (heads / kv_heads); }
  __host__ __device__ int64_t blocks_alike(int64_t in_block) const { return (alike() + in_block - 1) / in_block; }
  __host__ __device__ int64_t blocks(int64_t in_block) const { return batch * kv_heads * blocks_alike(in_block); }
  __host__ __device__ int64_t row() const { return (heads + 2 * kv_heads) * size; }  // elements of a row of qkv
  __host__ __device__ int64_t kept() const { return 2 * kv_heads * size; }           // elements of a row of the cache
  __host__ __device__ int64_t queries() const { return batch * length * heads; }
  size_t workspace() const { return splits == 1 ? 0 : static_cast<size_t>(queries() * splits * (size + 2)) * 4; }
  // A tile of attend_forward's queries has 128 rows; with less than an eighth of them, or few keys, it saves nothing.
  bool is_chunk(int dtype) const { return dtype == PRUN_BF16 && length >= 16 && context >= 1024; }
  size_t span_bytes() const { return (static_cast<size_t>(batch * length) * sizeof(KeySpan) + 15) / 16 * 16; }
  size_t chunk_bytes() const { return span_bytes() + static_cast<size_t>(queries()) * sizeof(float); }  // and the lse
};

// Writes rows to the cache. If several rows of a sample have the same position, the last one is retained, as if they
// were written one by one. Positions come from the host; a row with an invalid position is not written.
template <class T>
__global__ void keep(const T* qkv, const int32_t* at, T* cache, Cache s) {
  for (int64_t i = first_item(); i < s.batch * s.length * s.kept(); i += item_stride()) {
    const int64_t row = i / s.kept(), element = i - row * s.kept(), end = (row / s.length + 1) * s.length;
    bool last = at[row] >= 0 && at[row] < s.context;
    for (int64_t later = row + 1; later < end; ++later) last = last && at[later] != at[row];
    if (last)
      cache[(row / s.length * s.context + at[row]) * s.kept() + element] =
          qkv[row * s.row() + s.heads * s.size + element];
  }
}

__global__ void limit_keys(const int32_t* at, int32_t* spans, int64_t rows, int64_t context) {
  for (int64_t row = first_item(); row < rows; row += item_stride())
    spans[2 * row] = 0, spans[2 * row + 1] = min(at[row], static_cast<int>(context) - 1) + 1;
}

// A partial softmax is Σ exp(score − top)·value and Σ exp(score − top), not yet divided.
__device__ __forceinline__ float shift_of(float top) { return top == kNone ? 0.0f : top; }

// Merges several partial softmaxes, `stride` apart: each has `size` elements, then top and total.
template <class Store>
__device__ __forceinline__ void merge(const float* parts, int64_t count, int64_t stride, int64_t size, Store store) {
  float top = kNone;
  for (int64_t p = 0; p < count; ++p) top = fmaxf(top, parts[p * stride + size]);
  for (int64_t e = threadIdx.x; e < size; e += blockDim.x) {
    float sum = 0, total = 0;
    for (int64_t p = 0; p < count; ++p) {
      const float weight = expf(parts[p * stride + size] - shift_of(top));
      sum += weight * parts[p * stride + e];
      total += weight * parts[p * stride + size + 1];
    }
    store(e, sum, top, total);
  }
}

// Computes the partial softmaxes; blocks are (queries, split). A warp processes kWarp / kLanes keys at a time, and a
// key takes kLanes lanes of kPacks packs of N elements.
//
// The lanes of a key have a softmax of their own, so warps exchange nothing before the end. Loads are unconditional,
// because nvcc waits for each conditional load: lanes without columns and keys after the last load valid rows, which
// are masked.
template <class T, int N, int kLanes, int kPacks, int kQ>
__global__ void __launch_bounds__(kThreads, kQ == 1 && N > 1 ? 4 : 2)
    attend(const T* qkv, const int32_t* at, const T* cache, T* out, float* found, Cache s) {
  // kAtOnce: keys per load; kAhead: loads of keys in flight, and as many of values.
  constexpr int kAtOnce = kWarp / kLanes, kAhead = N == 1 ? 2 : 4 / kPacks;
  constexpr int kParts = kWarps * kAtOnce;
  PRUN_SHARED(shared);
  float* parts = reinterpret_cast<float*>(shared);  // [kQ][kParts][size + 2]
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t group = s.heads / s.kv_heads, alike = s.alike(), stride = s.size + 2;
  const int64_t kv_head = blockIdx.x / s.blocks_alike(kQ) % s.kv_heads,
                sample = blockIdx.x / (s.blocks_alike(kQ) * s.kv_heads);
  const int64_t first_query = blockIdx.x % s.blocks_alike(kQ) * kQ;
  // Returns the row of query q of the block; a query beyond the last repeats the last one.
  const auto row_of = [&](int q) { return sample * s.length + min(first_query + q, alike - 1) / group; };
  const auto head_of = [&](int q) { return kv_head * group + min(first_query + q, alike - 1) % group; };

  int keys[kQ], most = 0;
#pragma unroll
  for (int q = 0; q < kQ; ++q) {
    keys[q] = min(at[row_of(q)], static_cast<int>(s.context) - 1) + 1;
    most = max(most, keys[q]);
  }
  const int share = (most + static_cast<int>(s.splits) - 1) / static_cast<int>(s.splits);
  const int first = static_cast<int>(blockIdx.y) * share, end = min(first + share, most);

  const int column = lane % kLanes * N;
  bool inside[kPacks];
  float own[kQ][kPacks][N], sum[kQ][kPacks][N] = {}, top[kQ], total[kQ] = {};
  const float scale = 1.0f / sqrtf(static_cast<float>(s.size));
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    inside[p] = column + p * kLanes * N < s.size;
#pragma unroll
    for (int q = 0; q < kQ; ++q) {
      load(qkv + row_of(q) * s.row() + head_of(q) * s.size + (inside[p] ? column + p * kLanes * N : 0), own[q][p]);
#pragma unroll
      for (int i = 0; i < N; ++i) own[q][p][i] = inside[p] ? own[q][p][i] * scale : 0.0f;
    }
  }
#pragma unroll
  for (int q = 0; q < kQ; ++q) top[q] = kNone;

  const T* k_rows = cache + sample * s.context * s.kept() + kv_head * s.size;
  const int64_t to_values = s.kv_heads * s.size;
  for (int from = first + warp * kAhead * kAtOnce + lane / kLanes; from - lane / kLanes < end;
       from += kWarps * kAhead * kAtOnce) {
    Pack<T, N> k[kAhead][kPacks], v[kAhead][kPacks];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const T* k_row = k_rows + min(from + j * kAtOnce, end - 1) * s.kept();
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const T* k_from = k_row + (inside[p] ? column + p * kLanes * N : 0);
        k[j][p] = load_pack<N>(k_from);
        v[j][p] = load_pack<N>(k_from + to_values);
      }
    }
    float weight[kAhead][kQ];  // contains scores first
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
#pragma unroll
      for (int q = 0; q < kQ; ++q) {
        float dot = 0;
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
#pragma unroll
          for (int i = 0; i < N; ++i) dot += own[q][p][i] * k[j][p].wide(i);
        }
#pragma unroll
        for (int distance = kLanes / 2; distance > 0; distance /= 2) dot += __shfl_xor_sync(kAllLanes, dot, distance);
        const int key = from + j * kAtOnce;
        weight[j][q] = key < end && key < keys[q] ? dot : kNone;
      }
    }
#pragma unroll
    for (int q = 0; q < kQ; ++q) {
      float larger = top[q];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) larger = fmaxf(larger, weight[j][q]);
      const float shift = shift_of(larger), correction = expf(top[q] - shift);
      top[q] = larger, total[q] *= correction;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum[q][p][i] *= correction;
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) total[q] += weight[j][q] = expf(weight[j][q] - shift);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
#pragma unroll
      for (int q = 0; q < kQ; ++q) {
        if (weight[j][q] == 0) continue;  // a masked value may be infinite
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
#pragma unroll
          for (int i = 0; i < N; ++i) sum[q][p][i] += weight[j][q] * v[j][p].wide(i);
        }
      }
    }
  }

#pragma unroll
  for (int q = 0; q < kQ; ++q) {
    float* mine = parts + (q * kParts + warp * kAtOnce + lane / kLanes) * stride;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (inside[p]) mine[column + p * kLanes * N + i] = sum[q][p][i];
    }
    if (lane % kLanes == 0) mine[s.size] = top[q], mine[s.size + 1] = total[q];
  }
  __syncthreads();
  for (int q = 0; q < kQ && first_query + q < alike; ++q) {
    const int64_t query = row_of(q) * s.heads + head_of(q);
    float* part = found + (query * s.splits + blockIdx.y) * stride;
    merge(parts + q * kParts * stride, kParts, stride, s.size, [&](int64_t e, float x, float largest, float all) {
      if (s.splits == 1) {
        out[query * s.size + e] = narrow<T>(x / all);
      } else {
        part[e] = x;
        if (e == 0) part[s.size] = largest, part[s.size + 1] = all;
      }
    });
  }
}

template <class T>
__global__ void merge_splits(const float* found, T* out, Cache s) {
  const int64_t query = blockIdx.x;
  merge(found + query * s.splits * (s.size + 2), s.splits, s.size + 2, s.size,
        [&](int64_t e, float x, float, float all) { out[query * s.size + e] = narrow<T>(x / all); });
}

template <class T>
using Attend = void (*)(const T* qkv, const int32_t* at, const T* cache, T* out, float* found, Cache s);

// The kernel for a shape, and the number of parts of a query that its block merges.
template <class T>
struct Attending {
  Attend<T> kernel;
  int64_t queries, parts;  // queries per block; parts per query

  template <int N, int kLanes, int kPacks, int kQ>
  static Attending of() {
    return {attend<T, N, kLanes, kPacks, kQ>, kQ, kWarps * (kWarp / kLanes)};
  }
  template <int kLanes, int kPacks>
  static Attending of(const Cache& s) {
    return s.alike() == 1 ? of<kPack<T>, kLanes, kPacks, 1>() : of<kPack<T>, kLanes, kPacks, kQueries / kPacks>();
  }
  static Attending of(const Cache& s, bool packed) {
    constexpr int N = kPack<T>;
    if (!packed) return of<1, kWarp, kMostHead / kWarp, 1>();
    if (s.size <= 8 * N) return of<8, 1>(s);
    if (s.size <= 16 * N) return of<16, 1>(s);
    if (s.size <= 32 * N) return of<32, 1>(s);
    return of<32, kMostHead / (kWarp * N)>(s);
  }
};

std::unique_ptr<Kernel> chunk_attention(const OpView& view, const Cache& s) {
  const Scratch memory = scratch(view, s.chunk_bytes());
  auto* const spans = static_cast<int32_t*>(memory.data);
  const bf16* qkv = view.in<bf16>(0);
  bf16* cache = view.out<bf16>(1);
  AttendForward<bf16> a{};
  AttendSizes& sizes = a.sizes;
  sizes.batch = s.batch, sizes.queries = static_cast<int>(s.length), sizes.keys = static_cast<int>(s.context);
  sizes.heads = static_cast<int>(s.heads), sizes.kv_heads = static_cast<int>(s.kv_heads);
  sizes.group = sizes.heads / sizes.kv_heads, sizes.head = sizes.value = static_cast<int>(s.size);
  sizes.scale = 1.0f / std::sqrt(static_cast<float>(s.size));
  sizes.rules = {s.context, false, 0};
  sizes.spans = spans;
  a.out = view.out<bf16>(0);
  sizes.vector = rows_aligned(s.size, qkv, cache);
  sizes.pairs = s.size % 2 == 0 && reinterpret_cast<uintptr_t>(a.out) % 4 == 0;
  a.q = {qkv, s.row(), s.row() * s.length};
  a.k = {cache, s.kept(), s.kept() * s.context};
  a.v = {cache + s.kv_heads * s.size, s.kept(), s.kept() * s.context};
  a.lse = reinterpret_cast<float*>(static_cast<char*>(memory.data) + s.span_bytes());
  return kernel_of([=, at = view.in<int32_t>(1), own = attend_forward(a), held = memory.owned](cudaStream_t stream) {
    launch(keep<bf16>, blocks_for(s.batch * s.length * s.kept(), kThreads), kThreads, 0, stream, qkv, at, cache, s);
    launch(limit_keys, blocks_for(s.batch * s.length, kThreads), kThreads, 0, stream, at, spans, s.batch * s.length,
           s.context);
    own->run(stream);
  });
}

template <class T>
std::unique_ptr<Kernel> cached_attention(const OpView& view) {
  const Cache s(view);
  view.expect_count(view.read(1), s.batch * s.length);
  view.expect_count(view.read(2), s.batch * s.context * s.kept());
  view.expect_count(view.write(0), s.queries() * s.size);
  if constexpr (std::is_same_v<T, bf16>)
    if (s.is_chunk(PRUN_BF16)) return chunk_attention(view, s);
  const Scratch found = scratch(view, s.workspace());
  const T* qkv = view.in<T>(0);
  T* cache = view.out<T>(1);
  const Attending<T> attending = Attending<T>::of(s, rows_aligned(s.size, qkv, cache));
  return kernel_of([=, at = view.in<int32_t>(1), out = view.out<T>(0)](cudaStream_t stream) {
    float* parts = static_cast<float*>(found.data);
    const dim3 grid(static_cast<unsigned>(s.blocks(attending.queries)), static_cast<unsigned>(s.splits));
    const size_t shared = static_cast<size_t>(attending.queries * attending.parts * (s.size + 2)) * sizeof(float);
    launch(keep<T>, blocks_for(s.batch * s.length * s.kept(), kThreads), kThreads, 0, stream, qkv, at, cache, s);
    launch(attending.kernel, grid, kThreads, shared, stream, qkv, at, cache, out, parts, s);
    if (s.splits > 1) launch(merge_splits<T>, static_cast<unsigned>(s.queries()), kThreads, 0, stream, parts, out, s);
  });
}

std::string refuses_attention(const OpView& view) {
  const int dtype = view.read(0).dtype;
  if (dtype != PRUN_F32 && dtype != PRUN_BF16)
    return std::string(view.kind()) + " has kernels here for f32 and bf16 only";
  const int64_t size = Cache(view).size;
  if (size <= kMostHead) return "";
  return std::string(view.kind()) + ": a head has " + std::to_string(size) + " elements, at most " +
         std::to_string(kMostHead) + " here";
}

size_t workspace(const OpView& view) {
  const Cache s(view);
  return s.is_chunk(view.read(0).dtype) ? s.chunk_bytes() : s.workspace();
}

std::unique_ptr<Kernel> make_cached_attention(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return cached_attention<T>(view); });
}

const KernelFamily kFamily = {
    {"cached_attention", make_cached_attention, workspace, refuses_attention},
};

}  // namespace
}  // namespace prun::cuda
