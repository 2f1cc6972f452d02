// Fingerprints of tensors (prun/fingerprint.h), at memory bandwidth.
#include "prun/fingerprint.h"

#include <atomic>
#include <vector>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace prun::cpu {
namespace {

template <class Word>
PRUN_CLONES uint64_t sum_of(const Word* words, int64_t begin, int64_t end) {
  uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = begin; i < end; ++i) sum += fingerprint_of(words[i], i);
  return sum;
}

struct Printed {
  const void* data;
  int64_t words;
  bool halves;  // words of 16 bits
  uint64_t sum(int64_t begin, int64_t end) const {
    return halves ? sum_of(static_cast<const uint16_t*>(data), begin, end)
                  : sum_of(static_cast<const uint32_t*>(data), begin, end);
  }
};

std::unique_ptr<Kernel> make_fingerprint(const OpView& view) {
  view.expect_count(view.write(0), static_cast<int64_t>(view.reads()));
  std::vector<Printed> tensors;
  for (size_t i = 0; i < view.reads(); ++i) {
    const auto words = [&]<class T>() {
      return Printed{view.in<T>(i), view.read(i).count() * (sizeof(T) == 8 ? 2 : 1), sizeof(T) == 2};
    };
    tensors.push_back(with_number(view.read(i).dtype, words));
  }
  return kernel_of([tensors, prints = view.out<int64_t>(0), threads = view.threads()] {
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::atomic<uint64_t> sum = 0;
      parallel_ranges(threads, tensors[i].words, [&](int64_t begin, int64_t end) {
        sum.fetch_add(tensors[i].sum(begin, end), std::memory_order_relaxed);
      });
      prints[i] = static_cast<int64_t>(sum.load() & kFingerprintMask);
    }
  });
}

}  // namespace

const Family fingerprint_kernels = {{"fingerprint", make_fingerprint, Accepts::numbers}};

}  // namespace prun::cpu
