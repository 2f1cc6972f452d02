// dropout: the mask is drawn and never stored, so forward and backward are the same kernel. prun/philox.h defines the
// random words.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/random_words.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vectors.h"
#include "prun/philox.h"

namespace prun::cpu {
namespace {

constexpr int64_t kGroup = kRandomGroups * 4 * kRandomBlocks;  // elements whose random words are drawn together

// Drops elements [first, first + n) of a sample.
template <class T>
void drop(const T* x, T* y, int64_t n, const RoundKeys& keys, uint64_t sample, int64_t first, uint32_t bound,
          float factor) {
  with_lanes([=, &keys]<int lanes>() PRUN_INLINED {
    alignas(64) uint32_t words[kGroup];
    for (int64_t at = 0; at < n;) {
      const int64_t group = (first + at) / kGroup, skip = first + at - group * kGroup;
      const int64_t count = std::min(n - at, kGroup - skip);
      random_words<lanes>(keys, sample, static_cast<uint64_t>(group * kRandomGroups * kRandomBlocks), words);
      int64_t i = 0;
      for (; i + lanes <= count; i += lanes) {
        typename Lanes<lanes>::Words word;
        std::memcpy(&word, words + skip + i, sizeof word);
        const Floats<lanes> kept = factor * load_lanes<lanes>(x + at + i);
        store_lanes<lanes>(y + at + i, Floats<lanes>(word >= bound ? kept : Floats<lanes>{}));
      }
      for (; i < count; ++i) store(y[at + i], words[skip + i] >= bound ? factor * load(x[at + i]) : 0.0f);
      at += count;
    }
  });
}

template <class T>
std::unique_ptr<Kernel> dropout_kernel(const OpView& view) {
  const Attrs& attrs = view.attrs();
  const Shape& shape = view.read(0).shape;
  PRUN_CHECK(shape.size() == 2 || shape.size() == 3, shape_text(shape));
  const int64_t batch = shape[0], length = shape.size() == 3 ? shape[1] : 1, width = last_dim(shape);
  const Share split = view.share("split_axis");
  const int64_t sample = view.share("rows_axis").index * attrs.integer("samples", batch) + attrs.integer("first");
  const double p = attrs.number("p");
  PRUN_CHECK(p >= 0 && p < 1, std::to_string(p));
  view.expect_count(view.write(0), batch * length * width);
  return kernel_of([x = view.in<T>(0), y = view.out<T>(0), rows = batch * length, length, width, sample,
                    whole = attrs.integer("width", split.of * width), column = split.index * width,
                    at = view.token_positions(length), key = static_cast<uint64_t>(attrs.integer("key")),
                    bound = philox::dropout_bound(p), factor = static_cast<float>(1 / (1 - p)), table = view.table(),
                    threads = view.threads()] {
    const RoundKeys keys(philox::dropout_stream(table->seed, key, static_cast<uint64_t>(table->step)));
    parallel_for(threads, rows, [&](int64_t row, int) {
      drop(x + row * width, y + row * width, width, keys, static_cast<uint64_t>(sample + row / length),
           at.of(row % length) * whole + column, bound, factor);
    });
  });
}

}  // namespace

const Family dropout_kernels = {{"dropout", PRUN_FLOAT_MAKER(read(0), dropout_kernel<T>(view))}};

}  // namespace prun::cpu
