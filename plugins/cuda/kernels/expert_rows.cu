// pack_rows and unpack_rows: the rows with a token of a round, between the slots of experts and one run of rows.
//
// One block first computes where the rows of each expert from each source begin. Slots without a token become zeros,
// also in rounds without any token, because GEMMs may multiply them.
#include "block.cuh"
#include "launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

// Slots [experts, sources·size] of rows; the round takes those of each source from its token `before` on.
struct Rows {
  int64_t experts, sources, size, before, width;

  __device__ int64_t taken(const int32_t* filled, int64_t run) const {
    const int64_t n = filled[run % experts * sources + run / experts] - before;
    return n < 0 ? 0 : n < size ? n : size;
  }
};

// Sets first[p·experts + e] to the packed row at which the rows of an expert from a source begin. Each thread adds up
// a part of the runs.
__global__ void __launch_bounds__(kThreads) find_first(Rows rows, const int32_t* filled, int64_t* first) {
  __shared__ int64_t sums[kThreads];
  const int64_t runs = rows.experts * rows.sources, part = (runs + kThreads - 1) / kThreads;
  const int64_t begin = threadIdx.x * part, end = begin + part < runs ? begin + part : runs;
  int64_t sum = 0;
  for (int64_t run = begin; run < end; ++run) sum += rows.taken(filled, run);
  sums[threadIdx.x] = sum;
  __syncthreads();
  int64_t row = 0;
  for (unsigned t = 0; t < threadIdx.x; ++t) row += sums[t];
  for (int64_t run = begin; run < end; ++run) {
    first[run] = row;
    row += rows.taken(filled, run);
  }
}

template <class T, int N, bool packing>
__global__ void move_rows(Rows rows, const int32_t* filled, const int64_t* first, const T* x, T* y) {
  const int64_t packs = rows.width / N, all = rows.experts * rows.sources * rows.size * packs;
  for (int64_t i = first_item(); i < all; i += item_stride()) {
    const int64_t slot = i / packs, column = (i - slot * packs) * N;
    const int64_t place = slot % rows.size, source = slot / rows.size % rows.sources;
    const int64_t run = source * rows.experts + slot / rows.size / rows.sources;
    const bool taken = place < rows.taken(filled, run);
    const int64_t packed = (first[run] + place) * rows.width + column;
    if (packing && taken) store_pack(y + packed, load_pack<N>(x + i * N));
    if (packing) continue;
    Pack<T, N> pack{};
    if (taken) pack = load_pack<N>(x + packed);
    store_pack(y + i * N, pack);
  }
}

size_t first_bytes(const OpView& view) { return static_cast<size_t>(view.read(1).count()) * sizeof(int64_t); }

template <class T, bool packing>
std::unique_ptr<Kernel> make(const OpView& view) {
  const Tensor slotted = packing ? view.read(0) : view.write(0);
  view.expect(slotted.shape.rank() == 3, shape_text(slotted.shape) + " should be of three dims");
  view.expect_count(view.write(0), view.read(0).count());
  const int64_t experts = slotted.shape[0], sources = view.read(1).shape.last();
  view.expect_count(view.read(1), experts * sources);
  view.expect(sources > 0 && slotted.shape[1] % sources == 0, "slots do not divide into those of the sources");
  const int64_t size = slotted.shape[1] / sources;
  const Rows rows{experts, sources, size, view.integer("round") * size, slotted.shape[2]};
  const T* x = view.in<T>(0);
  T* y = view.out<T>(0);
  const bool packed = rows_aligned(rows.width, x, y);
  return kernel_of([=, filled = view.in<int32_t>(1), room = scratch(view, first_bytes(view)),
                    count = slotted.count()](cudaStream_t stream) {
    int64_t* first = static_cast<int64_t*>(room.data);
    launch(find_first, 1, kThreads, 0, stream, rows, filled, first);
    launch(packed ? move_rows<T, kPack<T>, packing> : move_rows<T, 1, packing>,
           blocks_for(count / (packed ? kPack<T> : 1), kThreads), kThreads, 0, stream, rows, filled, first, x, y);
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
