// Fingerprints of tensors (prun/fingerprint.h). They are sums of integers, so the order of blocks does not matter.
#include <prun/fingerprint.h>

#include <vector>

#include "block.cuh"
#include "launch.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;
using Sum = unsigned long long;

__global__ void clear_prints(Sum* prints, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += kThreads) prints[i] = 0;
}

__global__ void cut_prints(Sum* prints, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += kThreads) prints[i] &= kFingerprintMask;
}

template <class Word>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks) add_words(const Word* words, int64_t count, Sum* print) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                threads = static_cast<int64_t>(gridDim.x) * kThreads;
  Sum sum = 0;
  for (int64_t i = thread; i < count; i += threads) sum += fingerprint_of(words[i], i);
  sum = warp_reduce(sum, [](Sum a, Sum b) { return a + b; });
  if (threadIdx.x % kWarp == 0) atomicAdd(print, sum);
}

struct Printed {
  const void* data;
  int64_t words;
  bool halves;  // words of 16 bits
};

std::unique_ptr<Kernel> make_fingerprint(const OpView& view) {
  const int64_t n = static_cast<int64_t>(view.reads());
  view.expect_count(view.write(0), n);
  std::vector<Printed> tensors;
  for (size_t i = 0; i < view.reads(); ++i) {
    const auto words = [&]<class T>() {
      return Printed{view.in<T>(i), view.read(i).count() * (sizeof(T) == 8 ? 2 : 1), sizeof(T) == 2};
    };
    switch (view.read(i).dtype) {
      case PRUN_F64:
        tensors.push_back(words.template operator()<double>());
        break;
      case PRUN_I64:
        tensors.push_back(words.template operator()<int64_t>());
        break;
      case PRUN_I32:
        tensors.push_back(words.template operator()<int32_t>());
        break;
      default:
        tensors.push_back(with_float(view.read(i).dtype, words));
    }
  }
  return kernel_of([tensors, n, prints = reinterpret_cast<Sum*>(view.out<int64_t>(0))](cudaStream_t stream) {
    launch(clear_prints, 1, kThreads, 0, stream, prints, n);
    for (int64_t i = 0; i < n; ++i) {
      const Printed& t = tensors[i];
      if (t.words == 0) continue;
      const unsigned blocks = blocks_for(t.words, kThreads * 16, 4096);
      if (t.halves)
        launch(add_words<uint16_t>, blocks, kThreads, 0, stream, static_cast<const uint16_t*>(t.data), t.words,
               prints + i);
      else
        launch(add_words<uint32_t>, blocks, kThreads, 0, stream, static_cast<const uint32_t*>(t.data), t.words,
               prints + i);
    }
    launch(cut_prints, 1, kThreads, 0, stream, prints, n);
  });
}

const KernelFamily kFamily = {{"fingerprint", make_fingerprint, nullptr, takes_any}};

}  // namespace
}  // namespace prun::cuda
