// dispatch, combine and their gradients: rows are copied between the order of tokens and the slots of experts.
//
// A slot belongs to at most one choice of one token. Kernels that write slots find that choice first, so that each row
// is written once, whether taken or empty.
#include <limits>

#include "block.cuh"
#include "launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

struct Sizes {
  int64_t tokens, k, slots, width;
  bool in_rounds;       // slots are numbered for all tokens of an expert, and the op takes those of a window
  int64_t first, size;  // the window: its first position, and its positions of each expert

  // Returns the row of the experts' slots that a choice has in this op; -1 = none.
  __device__ int64_t row_of(int32_t slot) const {
    if (slot < 0) return -1;
    if (!in_rounds) return slot < slots ? slot : -1;
    const int64_t expert = slot / tokens, place = slot - expert * tokens - first;
    return place >= 0 && place < size ? expert * size + place : -1;
  }
};

// Checks shapes: `slots` is [N,k], `row` has N rows, `slotted` has the slots of all experts.
Sizes sizes_of(const OpView& view, const Tensor& slots, const Tensor& row, const Tensor& slotted) {
  view.expect(slotted.shape.rank() == 3, shape_text(slotted.shape) + " should be of three dims");
  const int64_t size = slotted.shape[1];
  const Sizes s{slots.shape.rows(),
                slots.shape.last(),
                slotted.shape.rows(),
                slotted.shape.last(),
                view.has("round"),
                view.integer("round") * size,
                size};
  view.expect_count(row, s.tokens * s.width);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  view.expect(s.tokens * s.k <= kMost && s.slots <= kMost,
              shape_text(slots.shape) + " choices of slots in " + shape_text(slotted.shape));
  return s;
}

// Sets owners[slot] to the one of the N·k choices that took the slot. With dweights, sets dweights of a choice without
// a slot to that of other rounds.
__global__ void find_owners(Sizes s, const int32_t* slots, int32_t* owners, const float* other, float* dweights) {
  for (int64_t i = first_item(); i < s.tokens * s.k; i += item_stride()) {
    const int64_t slot = s.row_of(slots[i]);
    if (slot >= 0)
      owners[slot] = static_cast<int32_t>(i);
    else if (dweights != nullptr)
      dweights[i] = other == nullptr ? 0.0f : other[i];
  }
}

size_t owner_bytes(const Tensor& slotted) { return static_cast<size_t>(slotted.shape.rows()) * sizeof(int32_t); }

void enqueue_owners(const Sizes& s, const int32_t* slots, int32_t* owners, const float* other, float* dweights,
                    cudaStream_t stream) {
  check(cudaMemsetAsync(owners, 0xff, static_cast<size_t>(s.slots) * sizeof(int32_t), stream), "cudaMemsetAsync");
  launch(find_owners, blocks_for(s.tokens * s.k, kThreads), kThreads, 0, stream, s, slots, owners, other, dweights);
}

template <class T, int N>
__global__ void send_rows(Sizes s, const T* x, const int32_t* owners, T* y) {
  const int64_t packs = s.width / N;
  for (int64_t i = first_item(); i < s.slots * packs; i += item_stride()) {
    const int64_t slot = i / packs, column = (i - slot * packs) * N;
    const int32_t choice = owners[slot];
    Pack<T, N> pack{};
    if (choice >= 0) pack = load_pack<N>(x + choice / s.k * s.width + column);
    store_pack(y + i * N, pack);
  }
}

// Computes out[n] = Σ over the choices j of w[n][j]·y[slot[n][j]], in their order; without weights each w is 1. Adds it
// to `other` unless that is null.
template <class T, int N>
__global__ void gather_rows(Sizes s, const T* y, const int32_t* slots, const float* weights, const T* other, T* out) {
  const int64_t packs = s.width / N;
  for (int64_t i = first_item(); i < s.tokens * packs; i += item_stride()) {
    const int64_t token = i / packs, column = (i - token * packs) * N;
    bool any = other != out;
    for (int64_t j = token * s.k; j < (token + 1) * s.k; ++j) any = any || s.row_of(slots[j]) >= 0;
    if (!any) continue;
    float sum[N] = {};
    if (other != nullptr) {
      Wide<T> before[N];
      load(other + i * N, before);
#pragma unroll
      for (int e = 0; e < N; ++e) sum[e] = before[e];
    }
    for (int64_t j = token * s.k; j < (token + 1) * s.k; ++j) {
      const int64_t slot = s.row_of(slots[j]);
      if (slot < 0) continue;
      Wide<T> row[N];
      load(y + slot * s.width + column, row);
      const float w = weights == nullptr ? 1.0f : weights[j];
#pragma unroll
      for (int e = 0; e < N; ++e) sum[e] += w * row[e];
    }
    store(out + i * N, sum);
  }
}

// Computes dy[slot] = w·dout[n] and dw = dout[n]·y[slot], added to `other` unless that is null: one warp per slot.
template <class T, int N>
__global__ void combine_gradients(Sizes s, const T* y, const int32_t* owners, const float* weights, const T* dout,
                                  T* dy, const float* other, float* dweights) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t slot = first_item() / kWarp; slot < s.slots; slot += item_stride() / kWarp) {
    const int32_t choice = owners[slot];
    const T* from = dout + (choice < 0 ? 0 : choice / s.k) * s.width;
    const float w = choice < 0 ? 0 : weights[choice];
    float dot = 0;
    for (int64_t column = lane * N; column < s.width; column += kWarp * N) {
      Wide<T> d[N] = {}, row[N] = {};
      if (choice >= 0) load(from + column, d), load(y + slot * s.width + column, row);
#pragma unroll
      for (int e = 0; e < N; ++e) {
        dot += d[e] * row[e];
        d[e] = choice >= 0 ? w * d[e] : 0.0f;
      }
      store(dy + slot * s.width + column, d);
    }
    dot = warp_sum(dot);
    if (lane == 0 && choice >= 0) dweights[choice] = other == nullptr ? dot : other[choice] + dot;
  }
}

template <class T>
unsigned blocks_of(int64_t rows, int64_t width, bool packed) {
  return blocks_for(rows * width / (packed ? kPack<T> : 1), kThreads);
}

template <class T>
std::unique_ptr<Kernel> dispatch(const OpView& view) {
  const Sizes s = sizes_of(view, view.read(1), view.read(0), view.write(0));
  const T* x = view.in<T>(0);
  T* y = view.out<T>(0);
  const bool packed = rows_aligned(s.width, x, y);
  return kernel_of(
      [=, slots = view.in<int32_t>(1), room = scratch(view, owner_bytes(view.write(0)))](cudaStream_t stream) {
        int32_t* owners = static_cast<int32_t*>(room.data);
        enqueue_owners(s, slots, owners, nullptr, nullptr, stream);
        launch(packed ? send_rows<T, kPack<T>> : send_rows<T, 1>, blocks_of<T>(s.slots, s.width, packed), kThreads, 0,
               stream, s, x, owners, y);
      });
}

template <class T>
std::unique_ptr<Kernel> gathered(const Sizes& s, const T* y, const int32_t* slots, const float* weights, const T* other,
                                 T* out) {
  const bool packed = rows_aligned(s.width, y, out) && (other == nullptr || rows_aligned(s.width, other));
  return kernel_of([=](cudaStream_t stream) {
    launch(packed ? gather_rows<T, kPack<T>> : gather_rows<T, 1>, blocks_of<T>(s.tokens, s.width, packed), kThreads, 0,
           stream, s, y, slots, weights, other, out);
  });
}

// Returns the sum of other rounds, operand `read`, to which the op adds; null = none.
template <class T>
const T* other_rounds(const OpView& view, size_t read, const Tensor& result) {
  if (view.reads() <= read) return nullptr;
  view.expect_count(view.read(read), result.count());
  return view.in<T>(read);
}

template <class T>
std::unique_ptr<Kernel> dispatch_grad(const OpView& view) {
  const Sizes s = sizes_of(view, view.read(0), view.write(0), view.read(1));
  return gathered(s, view.in<T>(1), view.in<int32_t>(0), nullptr, other_rounds<T>(view, 2, view.write(0)),
                  view.out<T>(0));
}

template <class T>
std::unique_ptr<Kernel> combine(const OpView& view) {
  const Sizes s = sizes_of(view, view.read(1), view.write(0), view.read(0));
  view.expect_count(view.read(2), s.tokens * s.k);
  return gathered(s, view.in<T>(0), view.in<int32_t>(1), view.in<float>(2), other_rounds<T>(view, 3, view.write(0)),
                  view.out<T>(0));
}

template <class T>
std::unique_ptr<Kernel> combine_grad(const OpView& view) {
  const Sizes s = sizes_of(view, view.read(1), view.read(3), view.read(0));
  view.expect_count(view.read(2), s.tokens * s.k);
  view.expect_count(view.write(0), s.slots * s.width);
  view.expect_count(view.write(1), s.tokens * s.k);
  const T *y = view.in<T>(0), *dout = view.in<T>(3);
  T* dy = view.out<T>(0);
  const bool packed = rows_aligned(s.width, y, dout, dy);
  return kernel_of([=, slots = view.in<int32_t>(1), weights = view.in<float>(2), dweights = view.out<float>(1),
                    other = other_rounds<float>(view, 4, view.write(1)),
                    room = scratch(view, owner_bytes(view.read(0)))](cudaStream_t stream) {
    int32_t* owners = static_cast<int32_t*>(room.data);
    enqueue_owners(s, slots, owners, other, dweights, stream);
    launch(packed ? combine_gradients<T, kPack<T>> : combine_gradients<T, 1>, blocks_for(s.slots * kWarp, kThreads),
           kThreads, 0, stream, s, y, owners, weights, dout, dy, other, dweights);
  });
}

#define PRUN_MAKER(name, value) \
  [](const OpView& view) { return with_float((value).dtype, [&]<class T>() { return name<T>(view); }); }

const KernelFamily kFamily = {
    {"dispatch", PRUN_MAKER(dispatch, view.read(0)), [](const OpView& view) { return owner_bytes(view.write(0)); }},
    {"dispatch_grad", PRUN_MAKER(dispatch_grad, view.read(1))},
    {"combine", PRUN_MAKER(combine, view.read(0))},
    {"combine_grad", PRUN_MAKER(combine_grad, view.read(0)),
     [](const OpView& view) { return owner_bytes(view.read(0)); }},
};

#undef PRUN_MAKER

}  // namespace
}  // namespace prun::cuda
