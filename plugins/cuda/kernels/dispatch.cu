// dispatch, combine and their gradients: rows are copied between the order of tokens and the slots of experts.
//
// A slot belongs to at most one choice of one token. Kernels that write slots find that choice first, so that each row
// is written once, whether taken or empty. In a later round they also find the experts without any choice, and leave
// their slots as they are (expert_slots.cuh).
#include <algorithm>
#include <limits>

#include "block.cuh"
#include "expert_slots.cuh"
#include "launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

struct Sizes {
  int64_t tokens, k, slots, width;
  bool in_rounds;       // slots are numbered for all tokens of an expert, and the op takes those of a window
  int64_t first, size;  // the window: its first position, and its positions of each expert
  bool later;           // a later round, which without any choice leaves slots as they are

  // Returns the row of the experts' slots that a choice has in this op; -1 = none.
  __device__ int64_t row_of(int32_t slot) const {
    if (slot < 0) return -1;
    if (!in_rounds) return slot < slots ? slot : -1;
    // Divisions of 64 bits take several times as long.
    const int64_t expert = static_cast<uint32_t>(slot) / static_cast<uint32_t>(tokens);
    const int64_t place = slot - expert * tokens - first;
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
                size,
                view.integer("round") > 0 && view.integer("whole") == 0};
  view.expect_count(row, s.tokens * s.width);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  view.expect(s.tokens * s.k <= kMost && s.slots <= kMost,
              shape_text(slots.shape) + " choices of slots in " + shape_text(slotted.shape));
  return s;
}

// The choices that took the slots, -1 = none, and in a later round the experts that have one: the others have -1.
struct Owners {
  int32_t* of_slots;
  int32_t* of_experts;  // null: not a later round
  int64_t size;         // slots of an expert

  __device__ int64_t expert(int64_t slot) const { return static_cast<uint32_t>(slot) / static_cast<uint32_t>(size); }
  // Returns whether the slot remains as it is.
  __device__ bool leaves(int64_t slot) const { return of_experts != nullptr && of_experts[expert(slot)] < 0; }
};

// Finds the choice of the N·k that took each slot. With dweights, sets dweights of a choice without a slot to that of
// other rounds.
__global__ void find_owners(Sizes s, const int32_t* slots, Owners owners, const float* other, float* dweights) {
  for (int64_t i = first_item(); i < s.tokens * s.k; i += item_stride()) {
    const int64_t slot = s.row_of(slots[i]);
    if (slot >= 0) {
      owners.of_slots[slot] = static_cast<int32_t>(i);
      if (owners.of_experts != nullptr) owners.of_experts[owners.expert(slot)] = 1;
    } else if (dweights != nullptr && other != dweights) {
      dweights[i] = other == nullptr ? 0.0f : other[i];
    }
  }
}

size_t owner_bytes(const Tensor& slotted) {
  return static_cast<size_t>(slotted.shape.rows() + slotted.shape[0]) * sizeof(int32_t);
}

Owners enqueue_owners(const Sizes& s, const int32_t* slots, void* room, const float* other, float* dweights,
                      cudaStream_t stream) {
  auto* of_slots = static_cast<int32_t*>(room);
  const Owners owners{of_slots, s.later ? of_slots + s.slots : nullptr, s.size};
  const int64_t count = s.slots + (s.later ? s.slots / s.size : 0);
  check(cudaMemsetAsync(room, 0xff, static_cast<size_t>(count) * sizeof(int32_t), stream), "cudaMemsetAsync");
  launch(find_owners, blocks_for(s.tokens * s.k, kThreads), kThreads, 0, stream, s, slots, owners, other, dweights);
  return owners;
}

// A warp writes a slot.
template <class T, int N>
__global__ void send_rows(Sizes s, const T* x, Owners owners, T* y) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t slot = first_item() / kWarp; slot < s.slots; slot += item_stride() / kWarp) {
    if (owners.leaves(slot)) continue;
    const int32_t choice = owners.of_slots[slot];
    const T* from = x + (choice < 0 ? 0 : choice / static_cast<int32_t>(s.k)) * s.width;
#pragma unroll 4
    for (int64_t column = lane * N; column < s.width; column += kWarp * N) {
      Pack<T, N> pack{};
      if (choice >= 0) pack = load_pack<N>(from + column);
      store_pack(y + slot * s.width + column, pack);
    }
  }
}

// Computes out[n] = Σ over the choices j of w[n][j]·y[slot[n][j]], in their order; without weights each w is 1. Adds it
// to `other` unless that is null. A warp has every `teams`-th run of 32 packs of a token, and each lane finds the row
// of one of its choices.
template <class T, int N>
__global__ void gather_rows(Sizes s, int teams, const T* y, const int32_t* slots, const float* weights, const T* other,
                            T* out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, k = static_cast<int>(s.k);
  for (int64_t item = first_item() / kWarp; item < s.tokens * teams; item += item_stride() / kWarp) {
    const int64_t token = item / teams;
    const int32_t* chosen = slots + token * k;
    bool any = other != out;
    for (int base = 0; base < k; base += kWarp) any = any || (base + lane < k && s.row_of(chosen[base + lane]) >= 0);
    if (warp_reduce(any ? 1 : 0, [](int a, int b) { return a | b; }) == 0) continue;
    // Lane j has the row and the weight of choice j, of any 32 choices at a time.
    int32_t row = lane < k ? static_cast<int32_t>(s.row_of(chosen[lane])) : -1;
    float weight = weights != nullptr && lane < k ? weights[token * k + lane] : 1.0f;
    const int64_t begin = token * s.width;
    for (int64_t start = (item - token * teams) * kWarp * N; start < s.width; start += int64_t{kWarp} * teams * N) {
      const int64_t column = start + lane * N;
      const bool there = column < s.width;
      Wide<T> sum[N] = {};
      if (there && other != nullptr) load(other + begin + column, sum);
      for (int j = 0; j < k; ++j) {
        if (k > kWarp && j % kWarp == 0) {
          row = j + lane < k ? static_cast<int32_t>(s.row_of(chosen[j + lane])) : -1;
          weight = weights != nullptr && j + lane < k ? weights[token * k + j + lane] : 1.0f;
        }
        const int32_t from = __shfl_sync(kAllLanes, row, j % kWarp);
        const float w = __shfl_sync(kAllLanes, weight, j % kWarp);
        if (from < 0 || !there) continue;
        Wide<T> of_choice[N];
        load(y + from * s.width + column, of_choice);
#pragma unroll
        for (int e = 0; e < N; ++e) sum[e] += w * of_choice[e];
      }
      if (there) store(out + begin + column, sum);
    }
  }
}

// Computes dy[slot] = w·dout[n] and dw = dout[n]·y[slot], added to `other` unless that is null: one warp per slot.
template <class T, int N>
__global__ void combine_gradients(Sizes s, const T* y, Owners owners, const float* weights, const T* dout, T* dy,
                                  const float* other, float* dweights) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t slot = first_item() / kWarp; slot < s.slots; slot += item_stride() / kWarp) {
    if (owners.leaves(slot)) continue;
    const int32_t choice = owners.of_slots[slot];
    const T* from = dout + (choice < 0 ? 0 : choice / static_cast<int32_t>(s.k)) * s.width;
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

// Returns the blocks of a kernel with a warp for each slot.
unsigned blocks_of_slots(const OpView& view, const Sizes& s) {
  return blocks_for(s.slots * kWarp, kThreads, blocks_of_round(view, 65535 * 16));
}

template <class T>
std::unique_ptr<Kernel> dispatch(const OpView& view) {
  const Sizes s = sizes_of(view, view.read(1), view.read(0), view.write(0));
  const T* x = view.in<T>(0);
  T* y = view.out<T>(0);
  const bool packed = rows_aligned(s.width, x, y);
  const unsigned blocks = blocks_of_slots(view, s);
  return kernel_of(
      [=, slots = view.in<int32_t>(1), room = scratch(view, owner_bytes(view.write(0)))](cudaStream_t stream) {
        const Owners owners = enqueue_owners(s, slots, room.data, nullptr, nullptr, stream);
        launch(packed ? send_rows<T, kPack<T>> : send_rows<T, 1>, blocks, kThreads, 0, stream, s, x, owners, y);
      });
}

template <class T>
std::unique_ptr<Kernel> gathered(const Sizes& s, const T* y, const int32_t* slots, const float* weights, const T* other,
                                 T* out) {
  const bool packed = rows_aligned(s.width, y, out) && (other == nullptr || rows_aligned(s.width, other));
  // The first round has enough warps to fill a GPU several times; a later one, which has few tokens, to fill it once.
  const int64_t warps = s.first > 0 ? 8192 : 32768;
  const int64_t runs = (s.width / (packed ? kPack<T> : 1) + kWarp - 1) / kWarp;
  const int64_t teams = std::clamp<int64_t>(warps / std::max<int64_t>(1, s.tokens), 1, std::max<int64_t>(1, runs));
  return kernel_of([=](cudaStream_t stream) {
    launch(packed ? gather_rows<T, kPack<T>> : gather_rows<T, 1>, blocks_for(s.tokens * teams * kWarp, kThreads),
           kThreads, 0, stream, s, static_cast<int>(teams), y, slots, weights, other, out);
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
  const unsigned blocks = blocks_of_slots(view, s);
  return kernel_of([=, slots = view.in<int32_t>(1), weights = view.in<float>(2), dweights = view.out<float>(1),
                    other = other_rounds<float>(view, 4, view.write(1)),
                    room = scratch(view, owner_bytes(view.read(0)))](cudaStream_t stream) {
    const Owners owners = enqueue_owners(s, slots, room.data, other, dweights, stream);
    launch(packed ? combine_gradients<T, kPack<T>> : combine_gradients<T, 1>, blocks, kThreads, 0, stream, s, y, owners,
           weights, dout, dy, other, dweights);
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
