// pack_rows and unpack_rows: the rows with a token of a round, between the slots of experts and one run of rows.
//
// One block first computes where the rows of each expert from each source begin. Slots without a token become zeros,
// but a later round leaves the slots of experts without any token as they are.
#include "block.cuh"
#include "expert_slots.cuh"
#include "launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

// Sets first[p·experts + e] to the packed row at which the rows of an expert from a source begin, and the last element
// to the number of all rows. Each thread adds up a part of the runs.
__global__ void __launch_bounds__(kThreads) find_first(ExpertSlots slots, int64_t* first) {
  __shared__ int64_t sums[kThreads / kWarp];
  const int64_t runs = slots.experts * slots.sources, part = (runs + kThreads - 1) / kThreads;
  const int64_t begin = threadIdx.x * part, end = begin + part < runs ? begin + part : runs;
  int64_t sum = 0;
  for (int64_t run = begin; run < end; ++run) sum += slots.taken(run % slots.experts, run / slots.experts);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int64_t row = sum;  // of this thread's runs and those of the threads before, in the warp
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int64_t before = __shfl_up_sync(kAllLanes, row, distance);
    if (lane >= distance) row += before;
  }
  if (lane == kWarp - 1) sums[warp] = row;
  __syncthreads();
  for (int w = 0; w < warp; ++w) row += sums[w];
  if (threadIdx.x == kThreads - 1) first[runs] = row;
  row -= sum;
  for (int64_t run = begin; run < end; ++run) {
    first[run] = row;
    row += slots.taken(run % slots.experts, run / slots.experts);
  }
}

// A warp moves a row.
template <class T, int N, bool packing>
__global__ void move_rows(ExpertSlots slots, int64_t width, const int64_t* first, const T* x, T* y) {
  const int64_t runs = slots.experts * slots.sources, all = runs * slots.rows;
  if (slots.later && first[runs] == 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t slot = first_item() / kWarp; slot < all; slot += item_stride() / kWarp) {
    const int64_t run = slot / slots.rows, place = slot - run * slots.rows;
    const int64_t expert = run / slots.sources, source = run - expert * slots.sources;
    const bool taken = place < slots.taken(expert, source);
    if (!taken && (packing || slots.leaves(expert))) continue;
    const int64_t packed = taken ? (first[source * slots.experts + expert] + place) * width : 0;
    for (int64_t column = lane * N; column < width; column += kWarp * N) {
      Pack<T, N> pack{};
      if (taken) pack = load_pack<N>(x + (packing ? slot * width : packed) + column);
      store_pack(y + (packing ? packed : slot * width) + column, pack);
    }
  }
}

size_t first_bytes(const OpView& view) { return static_cast<size_t>(view.read(1).count() + 1) * sizeof(int64_t); }

template <class T, bool packing>
std::unique_ptr<Kernel> make(const OpView& view) {
  const Tensor slotted = packing ? view.read(0) : view.write(0);
  view.expect(slotted.shape.rank() == 3, shape_text(slotted.shape) + " should be of three dims");
  view.expect_count(view.write(0), view.read(0).count());
  const ExpertSlots slots = expert_slots_of(view, 1, slotted.shape[0], slotted.shape[1]);
  const T* x = view.in<T>(0);
  T* y = view.out<T>(0);
  const int64_t width = slotted.shape[2];
  const bool packed = rows_aligned(width, x, y);
  return kernel_of([=, room = scratch(view, first_bytes(view)),
                    blocks = blocks_for(slotted.shape.rows() * kWarp, kThreads, blocks_of_round(view, 65535 * 16))](
                       cudaStream_t stream) {
    int64_t* first = static_cast<int64_t*>(room.data);
    launch(find_first, 1, kThreads, 0, stream, slots, first);
    launch(packed ? move_rows<T, kPack<T>, packing> : move_rows<T, 1, packing>, blocks, kThreads, 0, stream, slots,
           width, first, x, y);
  });
}

template <bool packing>
std::unique_ptr<Kernel> make_moved(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return make<T, packing>(view); });
}

const KernelFamily kFamily = {{"pack_rows", make_moved<true>, first_bytes},
                              {"unpack_rows", make_moved<false>, first_bytes}};

}  // namespace
}  // namespace prun::cuda
