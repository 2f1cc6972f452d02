// Detects NaNs and infinities in tensors from their bits, at memory bandwidth. Threads report them by an integer
// atomic, so the result does not depend on their order.
#include <algorithm>
#include <vector>

#include "block.cuh"
#include "launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 8, unsigned long long,
                                  std::conditional_t<sizeof(T) == 4, unsigned, unsigned short>>;

// The bits of +infinity; larger values, without the sign, are NaNs.
template <class T>
inline constexpr BitsOf<T> kInfinity = static_cast<BitsOf<T>>(sizeof(T) == 8   ? 0x7ff0000000000000ull
                                                              : sizeof(T) == 4 ? 0x7f800000ull
                                                                               : 0x7f80ull);
template <class T>
inline constexpr BitsOf<T> kWithoutSign = static_cast<BitsOf<T>>(static_cast<BitsOf<T>>(~BitsOf<T>{0}) >> 1);

// Returns 1 for a NaN, 2 for an infinity, otherwise 0.
template <class T>
__device__ __forceinline__ int kind_of(BitsOf<T> bits) {
  const BitsOf<T> size = bits & kWithoutSign<T>;
  return size > kInfinity<T> ? 1 : size == kInfinity<T> ? 2 : 0;
}

__global__ void clear(int* flags) { *flags = 0; }

// Consecutive shares of a tensor from its beginning: only as many elements were written.
struct Shares {
  const int64_t* counts = nullptr;  // null: all of it was written
  int64_t n = 0;
};

// Checks one tensor. `shift`: position of the tensor's two bits; `noted`: mask of the kinds that are reported.
template <class T>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    look(const BitsOf<T>* data, int64_t count, Shares shares, int noted, int shift, int* flags) {
  if (shares.counts != nullptr) {
    int64_t written = 0;
    for (int64_t i = 0; i < shares.n; ++i) written += shares.counts[i];
    if (written < count) count = written;
  }
  using Bits = BitsOf<T>;
  constexpr int N = kPack<Bits>;
  const Run run = run_of(data, count);
  const Bits* body = data + run.head;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                threads = static_cast<int64_t>(gridDim.x) * kThreads;
  int found = 0;
  for (int64_t pack = thread; pack < run.packs; pack += threads) {
    const auto x = *reinterpret_cast<const Pack<Bits, N>*>(body + pack * N);
#pragma unroll
    for (int i = 0; i < N; ++i) found |= kind_of<T>(x.v[i]);
  }
  // The elements before the first pack and after the last: less than two packs.
  const int64_t i = thread < run.head ? thread : thread + run.packs * N;
  if (thread < 2 * N && i < count) found |= kind_of<T>(data[i]);
  found &= noted;
  if (found != 0) atomicOr(flags, found << shift);
}

struct Looked {
  void (*run)(const Looked& what, int noted, int shift, int* flags, cudaStream_t stream);
  const void* data;
  int64_t count;
  Shares shares;
  unsigned blocks;
};

template <class T>
Looked looked(const OpView& view, size_t i, const Shares& shares) {
  const int64_t count = view.read(i).count();
  const auto run = [](const Looked& what, int noted, int shift, int* flags, cudaStream_t stream) {
    launch(look<T>, what.blocks, kThreads, 0, stream, static_cast<const BitsOf<T>*>(what.data), what.count, what.shares,
           noted, shift, flags);
  };
  return {run, view.in<T>(i), count, shares, blocks_for(count, kThreads * kPack<T>, 4096)};
}

std::unique_ptr<Kernel> make_check_finite(const OpView& view) {
  view.expect_count(view.write(0), 1);
  const bool counted = view.integer("counted") != 0;
  const bool looks = !view.has("root") || view.share("axis").index == view.integer("root");
  const size_t n = view.reads() - (counted ? 1 : 0);
  std::vector<Looked> tensors;
  for (size_t i = 0; looks && i < n; ++i) {
    const Shares shares = counted && i == 0 ? Shares{view.in<int64_t>(n), view.read(n).count()} : Shares{};
    tensors.push_back(view.read(i).dtype == PRUN_F64
                          ? looked<double>(view, i, shares)
                          : with_float(view.read(i).dtype, [&]<class T>() { return looked<T>(view, i, shares); }));
  }
  const int noted = view.integer("infinite") != 0 ? 1 : 3;
  return kernel_of([tensors, noted, flags = view.out<int32_t>(0)](cudaStream_t stream) {
    launch(clear, 1, 1, 0, stream, flags);
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].count > 0) tensors[i].run(tensors[i], noted, static_cast<int>(2 * i), flags, stream);
  });
}

const KernelFamily kFamily = {{"check_finite", make_check_finite, nullptr, takes_any}};

}  // namespace
}  // namespace prun::cuda
