// Uses non-temporal stores. memcpy uses them only for copies larger than the whole cache; otherwise it reads every line
// of the destination first and evicts lines that the next step needs.
#include "kernels/cpu/ops/snapshot.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/cpu/parallel.h"

namespace prun::cpu {
namespace {

constexpr int64_t kLine = 64;

void copy_past_caches(const std::byte* from, std::byte* to, int64_t bytes) {
#if defined(__SSE2__)
  // The bytes before the first whole line of the destination.
  const int64_t head = std::min(bytes, (kLine - static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLine)) % kLine);
  std::memcpy(to, from, head);
  int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    __m128i line[4];
    std::memcpy(line, from + at, sizeof line);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + i, line[i]);
  }
  _mm_sfence();
  std::memcpy(to + at, from + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

class Snapshot final : public Kernel {
 public:
  Snapshot(const void* from, void* to, int64_t bytes, int threads)
      : from_(static_cast<const std::byte*>(from)),
        to_(static_cast<std::byte*>(to)),
        bytes_(bytes),
        threads_(threads) {}
  void run() override {
    parallel_ranges(threads_, bytes_,
                    [&](int64_t begin, int64_t end) { copy_past_caches(from_ + begin, to_ + begin, end - begin); });
  }

 private:
  const std::byte* from_;
  std::byte* to_;
  int64_t bytes_;
  int threads_;
};

}  // namespace

std::unique_ptr<Kernel> make_snapshot(const void* from, void* to, int64_t bytes, int threads) {
  return std::make_unique<Snapshot>(from, to, bytes, threads);
}

}  // namespace prun::cpu
