// See query_block.h. On the diagonal of a causal mask products end where queries see no further: those that add up
// over keys or queries to the element, scores by eight queries and as many keys.
#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/attention/accumulator_tile.h"

namespace prun::cpu {
namespace {

constexpr int kStep = 8;  // queries, and keys, by which scores on the diagonal begin later

// Scores of some keys with the queries from `first` on.
template <Elements kElements, int lanes, int rows, int vectors>
PRUN_INLINE void score_block(const FloatRows& k, int64_t count, const float* q, int64_t first, float* scores,
                             int64_t ld, Prefetcher& ahead) {
  Sums<lanes, rows, vectors> sums;
  sums.clear();
  sums.template add<kElements>({k.data, k.stride, 1, q + first, kStrip}, count, ahead);
  sums.store(scores + first, ld);
}

// The same of 8 queries and the 16 behind them. CPUs multiply vectors of 16 as fast as those of 8, or half as fast: so
// these take as long as 32 queries do, or as 24.
template <Elements kElements, int rows>
PRUN_INLINE void score_uneven(const FloatRows& k, int64_t count, const float* q, float* scores, int64_t ld,
                              Prefetcher& ahead) {
  Sums<8, rows, 1> narrow;
  Sums<16, rows, 1> wide;
  narrow.clear();
  wide.clear();
  const float* a = k.data;
  Prefetcher::Cursor cursor = ahead.next();
  for (int64_t p = 0; p < count; ++p, ++a, q += kStrip) {
    const Floats<8> first = load_lanes<8>(q);
    const Floats<16> second = load_lanes<16>(q + 8);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      if constexpr (kVectorAsm) {
        Floats<16> x;  // of which both vectors take what they need
        asm("vbroadcastss %1, %0" : "=v"(x) : "m"(a[r * k.stride]));
        const Floats<8> half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
        if constexpr (kElements == Elements::bf16_pairs) {
          asm("vdpbf16ps %2, %1, %0" : "+v"(narrow.at[r][0]) : "v"(half), "v"(first));
          asm("vdpbf16ps %2, %1, %0" : "+v"(wide.at[r][0]) : "v"(x), "v"(second));
        } else {
          narrow.at[r][0] += half * first;
          wide.at[r][0] += x * second;
        }
      } else {
        narrow.at[r][0] += a[r * k.stride] * first;
        wide.at[r][0] += a[r * k.stride] * second;
      }
    }
    cursor.step();
  }
  ahead.keep(cursor);
  narrow.store(scores, ld);
  wide.store(scores + 8, ld);
}

template <Elements kElements, int lanes, int rows>
PRUN_INLINE void score_rows(const FloatRows& k, int64_t count, const float* q, int64_t first, float* scores, int64_t ld,
                            Prefetcher& ahead) {
  if constexpr (lanes == 16) {  // half as long vectors, where whole ones would begin too early
    if (first == kStep) return score_uneven<kElements, rows>(k, count, q + first, scores + first, ld, ahead);
    if (first == 3 * kStep) return score_block<kElements, kStep, rows, 1>(k, count, q, first, scores, ld, ahead);
  }
  each_columns<lanes>(kStrip - first, [&]<int vectors>(int64_t j) PRUN_INLINED {
    score_block<kElements, lanes, rows, vectors>(k, count, q, first + j, scores, ld, ahead);
  });
}

template <Elements kElements, int lanes>
PRUN_INLINE void score_keys(const Strip& strip, const FloatRows& k, int64_t count, const float* q, float* scores,
                            int64_t ld, Prefetcher& ahead) {
  int64_t from = 0, end = std::min(strip.keys, strip.before + kStep);
  for (int64_t first = 0; from < strip.keys; first += kStep) {
    each_rows<kBlockRows<lanes>>(from, end, [&]<int rows>(int64_t j) PRUN_INLINED {
      score_rows<kElements, lanes, rows>(k.from(j), count, q, first, scores + j * ld, ld, ahead);
    });
    from = end;
    end = std::min(strip.keys, end + kStep);
  }
}

}  // namespace

void Strip::score(const FloatRows& k, int64_t head, const float* q, float* scores, int64_t ld,
                  Prefetcher& ahead) const {
  with_lanes([&]<int lanes>()
                 PRUN_INLINED { score_keys<Elements::floats, lanes>(*this, k, head, q, scores, ld, ahead); });
}

void Strip::score_pairs(const FloatRows& k, int64_t head, const float* q, float* scores, int64_t ld,
                        Prefetcher& ahead) const {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    if constexpr (kVectorAsm && lanes == 16)
      score_keys<Elements::bf16_pairs, lanes>(*this, k, head / 2, q, scores, ld, ahead);
    else
      PRUN_CHECK(false, "no products of pairs");
  });
}

void Strip::gather(const float* weights, int64_t ld, const FloatRows& values, int64_t lanes_of_head,
                   const float* factors, float* to, int64_t stride, Prefetcher& ahead) const {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    constexpr int kMost = kBlockRows<lanes>;
    each_rows<kMost>(0, rows, [&]<int block>(int64_t i) PRUN_INLINED {
      const bool triangle = block == kMost && before < keys;
      const int64_t all = triangle ? before + i : std::min(keys, before + i + block);
      each_columns<lanes>(lanes_of_head, [&]<int vectors>(int64_t j) PRUN_INLINED {
        const Operands t{weights + i, 1, ld, values.data + j, values.stride};
        Sums<lanes, block, vectors> sums;
        sums.clear();
        sums.add(t, all, ahead);
        if (block == kMost && triangle) sums.add_lower(t.behind(all));
        if (factors != nullptr) sums.scale(factors + i);
        sums.store(to + i * stride + j, stride);
      });
    });
  });
}

void Strip::scatter(const float* weights, int64_t ld, const FloatRows& from, int64_t lanes_of_head, float* to,
                    int64_t stride, int64_t added, Prefetcher& ahead) const {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    constexpr int kMost = kBlockRows<lanes>;
    const auto block_of = [&]<int block>(int64_t key) PRUN_INLINED {
      const int64_t first = std::max<int64_t>(0, key - before);
      const bool triangle = block == kMost && key >= before && rows - first >= block;
      each_columns<lanes>(lanes_of_head, [&]<int vectors>(int64_t j) PRUN_INLINED {
        const Operands t =
            Operands{weights + key * ld, ld, 1, from.data + j, from.stride}.behind(first + (triangle ? block : 0));
        float* c = to + key * stride + j;
        Sums<lanes, block, vectors> sums;
        if (key < added)
          sums.load(c, stride);
        else
          sums.clear();
        if (block == kMost && triangle) sums.add_upper(t.behind(-block));
        sums.add(t, rows - first - (triangle ? block : 0), ahead);
        sums.store(c, stride);
      });
    };
    each_rows<kMost>(0, std::min(keys, before), block_of);
    each_rows<kMost>(std::min(keys, before), keys, block_of);
  });
}

}  // namespace prun::cpu
