// dropout: the mask is drawn, never stored; forward and backward are the same kernel. See prun/philox.h for the
// words.
#include <cmath>

#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/simd.h"
#include "prun/philox.h"

namespace prun::cpu {
namespace {

constexpr int64_t kGroup = 64, kLanes = 16;

// The words of elements [64·group, 64·group + 64) of a sample: 16 blocks of philox::block side by side, round by round.
PRUN_INLINE void draw(uint64_t stream, uint64_t sample, uint64_t group, uint32_t* words) {
  uint32_t *c0 = words, *c1 = c0 + kLanes, *c2 = c1 + kLanes, *c3 = c2 + kLanes;
  for (uint64_t lane = 0; lane < kLanes; ++lane) {
    c0[lane] = static_cast<uint32_t>(group * kLanes + lane);
    c1[lane] = static_cast<uint32_t>((group * kLanes) >> 32);  // 16 neighbours share it
    c2[lane] = static_cast<uint32_t>(sample);
    c3[lane] = static_cast<uint32_t>(sample >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(stream), k1 = static_cast<uint32_t>(stream >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[lane], p1 = uint64_t{0xCD9E8D57u} * c2[lane];
      c0[lane] = static_cast<uint32_t>(p1 >> 32) ^ c1[lane] ^ k0;
      c1[lane] = static_cast<uint32_t>(p1);
      c2[lane] = static_cast<uint32_t>(p0 >> 32) ^ c3[lane] ^ k1;
      c3[lane] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// Elements [first, first + n) of a sample.
template <class T>
PRUN_CLONES void drop(const T* x, T* y, int64_t n, uint64_t stream, uint64_t sample, int64_t first, uint32_t bound,
                      float factor) {
  uint32_t words[kGroup];
  for (int64_t at = 0; at < n;) {
    const int64_t group = (first + at) / kGroup, skip = first + at - group * kGroup;
    const int64_t count = n - at < kGroup - skip ? n - at : kGroup - skip;
    draw(stream, sample, static_cast<uint64_t>(group), words);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) store(y[at + i], words[skip + i] >= bound ? factor * load(x[at + i]) : 0.0f);
    at += count;
  }
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
    const uint64_t stream = philox::dropout_stream(table->seed, key, static_cast<uint64_t>(table->step));
    parallel_for(threads, rows, [&](int64_t row, int) {
      drop(x + row * width, y + row * width, width, stream, static_cast<uint64_t>(sample + row / length),
           at.of(row % length) * whole + column, bound, factor);
    });
  });
}

}  // namespace

const Family dropout_kernels = {{"dropout", PRUN_FLOAT_MAKER(read(0), dropout_kernel<T>(view))}};

}  // namespace prun::cpu
